"""What sources have counted, such as bad records, and no position in a snapshot holds any more (S4.2, S6.2). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidegate.channel.control.protocol import Acknowledged, Subtask, SubtaskFinished
from tidegate.coordinator.topology import Topology
from tidegate.snapshot.metadata import OperatorState

SourceCounts = Mapping[str, Mapping[str, int]]
"""Source uid -> name -> count."""


class EndedSources:
    """The counts of one run's sources that have ended, in this run or before it.

    A reader counts in its positions, so that a restore brings the counts back. A subtask that has ended takes part in
    no snapshot, and of a source that has ended as a whole no reader is restored: their counts go into the metadata.

    Attributes:
        carried: those that the restored snapshot holds; no reader of this run reports them.
    """

    def __init__(self, carried: SourceCounts, topology: Topology) -> None:
        self._uids = {chain.chain_id: chain.operators[0] for chain in topology.chains if chain.is_source}
        uids = set(self._uids.values())
        self.carried = {uid: dict(counts) for uid, counts in carried.items() if uid in uids}
        self._last: dict[Subtask, Mapping[str, int]] = {}

    def note(self, message: Acknowledged | SubtaskFinished) -> None:
        """Take the last counts of a source subtask that has processed all its data."""
        if message.counters:
            self._last[message.subtask] = message.counters

    def held(self, operators: Sequence[OperatorState]) -> dict[str, dict[str, int]]:
        """What goes into the metadata of a snapshot. Args: operators: of the snapshot."""
        chains = {uid: chain_id for chain_id, uid in self._uids.items()}
        out = {}
        for operator in operators:
            if operator.uid not in chains:
                continue
            total = Counter(self.carried.get(operator.uid, {}))
            for subtask in operator.subtasks:
                is_read = operator.status != "finished" and subtask.handle is not None
                if subtask.finished and not is_read:
                    total.update(self._last.get((chains[operator.uid], subtask.index), {}))
            if total:
                out[operator.uid] = dict(sorted(total.items()))
        return out
