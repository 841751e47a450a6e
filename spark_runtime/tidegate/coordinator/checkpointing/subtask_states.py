"""What every subtask of a run is doing, and what follows for all of them, counted so that an event costs the same
whatever the number of subtasks. Pure (S1.3, S7.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.checkpointing.checkpoint_plan import SubtaskState
from tidegate.coordinator.topology import Topology


class SubtaskStates:
    """The states of all subtasks of one run."""

    def __init__(self, topology: Topology, finished: Iterable[Subtask]) -> None:
        """Args: finished: subtasks that do not exist in this run."""
        self._topology = topology
        self.by_subtask: dict[Subtask, SubtaskState] = dict.fromkeys(topology.subtasks(), "created")
        self._count: Counter[SubtaskState] = Counter({"created": len(self.by_subtask)})
        self._naturally_ended: Counter[int] = Counter()
        self._told: set[int] = set()
        for subtask in finished:
            self.set(subtask, "finished")

    def set(self, subtask: Subtask, state: SubtaskState, *, natural: bool = True) -> None:
        """`subtask` is in `state` now. `natural`: it ended by itself, not by a stop; what it said first counts."""
        before = self.by_subtask[subtask]
        self.by_subtask[subtask] = state
        self._count[before] -= 1
        self._count[state] += 1
        ended = ("ended", "finished")
        if natural and state in ended and before not in ended:
            self._naturally_ended[subtask[0]] += 1

    @property
    def all_up(self) -> bool:
        """No subtask is still to come up."""
        return not self._count["created"]

    @property
    def all_ended(self) -> bool:
        """Nothing reads any more, and somebody waits for a snapshot that lets it finish (S7.3)."""
        ended = self._count["ended"]
        return bool(ended) and ended + self._count["finished"] == len(self.by_subtask)

    @property
    def all_finished(self) -> bool:
        """The run is over."""
        return self._count["finished"] == len(self.by_subtask)

    def reached_end_of_data(self, chain_id: int) -> bool:
        """True once per source chain: when all its subtasks have ended by themselves."""
        if not self._topology.chains[chain_id].is_source or chain_id in self._told:
            return False
        if self._naturally_ended[chain_id] < self._topology.parallelism:
            return False
        self._told.add(chain_id)
        return True
