"""What sources have counted, such as bad records, and no position in a snapshot holds any more (S4.2, S6.2). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.coordinator.events import Subtask
from tidegate.coordinator.topology import Topology
from tidegate.snapshot.metadata import OperatorState

SourceCounts = Mapping[str, Mapping[str, int]]
"""Source uid -> name -> count."""


class EndedSources:
    """The counts of one run's sources that have ended, in this run or before it.

    A reader counts in its positions, so that a restore brings the counts back. A subtask that has ended takes part in
    no snapshot, and of a source that has ended as a whole no reader is restored: their counts go into the metadata.

    Attributes:
        carried: those that the restored snapshot holds; no reader of this run tells them.
    """

    def __init__(self, carried: SourceCounts, topology: Topology) -> None:
        self._uids = {chain.chain_id: chain.operators[0] for chain in topology.chains if chain.is_source}
        uids = set(self._uids.values())
        self.carried = {uid: dict(counts) for uid, counts in carried.items() if uid in uids}
        self._last: dict[Subtask, Mapping[str, int]] = {}

    def note(self, message: Mapping[str, Any]) -> None:
        """Take a slot's message; those of source subtasks that have processed all their data tell their last counts."""
        counts = message.get("counters")
        if counts and message["type"] in ("ack", "finished"):
            self._last[message["subtask"][0], message["subtask"][1]] = counts

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
