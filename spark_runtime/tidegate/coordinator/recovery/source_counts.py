"""Counts of sources, such as bad records, that no position in a snapshot holds any more (S4.2, S6.2). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.channel.control.protocol import Acknowledged, Subtask, SubtaskFinished
from tidegate.coordinator.topology import Topology
from tidegate.snapshot.metadata import OperatorState

SourceCounts = Mapping[str, Mapping[str, int]]
"""Source uid -> name -> count."""


class EndedSources:
    """The counts of sources that have ended, in this run or before it.

    A reader stores its counts in its positions, so that a restore brings them back. A subtask that has ended takes part
    in no later snapshot, and a source that has ended as a whole gets no reader. Their counts go into the metadata.

    Attributes:
        carried: counts that the restored snapshot holds, and that no reader of this run reports.
    """

    def __init__(self, carried: SourceCounts, topology: Topology) -> None:
        self._uids = {chain.chain_id: chain.operators[0] for chain in topology.chains if chain.is_source}
        uids = set(self._uids.values())
        self.carried = {uid: dict(counts) for uid, counts in carried.items() if uid in uids}
        self._last: dict[Subtask, Mapping[str, int]] = {}

    def note(self, message: Acknowledged | SubtaskFinished) -> None:
        """Store the last counts of a source subtask that has processed all its data."""
        if message.counters:
            self._last[message.subtask] = message.counters

    def held(self, operators: Sequence[OperatorState]) -> dict[str, dict[str, int]]:
        """Return the counts for the metadata of a snapshot. Args: operators: operators of the snapshot."""
        chains = {uid: chain_id for chain_id, uid in self._uids.items()}
        out = {}
        for operator in operators:
            if operator.uid not in chains:
                continue
            total = Counter(self.carried.get(operator.uid, {}))
            for subtask in operator.subtasks:
                # A restore gives this handle to a reader, which reports its
                # counts itself. Stored here as well, they would count twice.
                is_read = operator.status != "finished" and subtask.handle is not None
                if subtask.finished and not is_read:
                    total.update(self._last.get((chains[operator.uid], subtask.index), {}))
            if total:
                out[operator.uid] = dict(sorted(total.items()))
        return out
