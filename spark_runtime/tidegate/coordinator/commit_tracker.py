"""Which completed snapshots every sink has committed (S2.3, S7.4). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.coordinator.checkpoint_plan import SubtaskState
from tidegate.coordinator.events import Subtask
from tidegate.coordinator.topology import Topology


class CommitTracker:
    """Collects the reports of the subtasks that commit."""

    def __init__(self, topology: Topology) -> None:
        self._subtasks = tuple(
            (c.chain_id, i) for c in topology.chains if c.commits for i in range(topology.parallelism)
        )
        self._by: dict[int, set[Subtask]] = {}

    def completed(self, checkpoint_id: int) -> None:
        """`checkpoint_id` may be committed from now on."""
        if self._subtasks:
            self._by[checkpoint_id] = set()

    def committed(self, subtask: Subtask, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> bool:
        """True when this was the last report that `checkpoint_id` waited for; older ones are then covered."""
        by = self._by.get(checkpoint_id)
        if by is None:
            return False
        by.add(subtask)
        if any(mine not in by and states[mine] != "finished" for mine in self._subtasks):
            return False
        self._by = {c: reported for c, reported in self._by.items() if c > checkpoint_id}
        return True
