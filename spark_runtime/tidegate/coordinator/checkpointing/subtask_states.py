"""The state of every subtask of a run, with counters over all subtasks (S1.3, S7.3). Pure.

Because of the counters, an event costs the same for any number of subtasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.checkpointing.checkpoint_plan import SubtaskState
from tidegate.coordinator.topology import Topology


class SubtaskStates:
    """The states of all subtasks of one run."""

    def __init__(self, topology: Topology, finished: Iterable[Subtask]) -> None:
        """Args: finished: subtasks that had finished before this run, and are not started."""
        self._topology = topology
        self.by_subtask: dict[Subtask, SubtaskState] = dict.fromkeys(topology.subtasks(), "created")
        self._count: Counter[SubtaskState] = Counter({"created": len(self.by_subtask)})
        self._naturally_ended: Counter[int] = Counter()
        self._ended_sources: set[int] = set()
        for subtask in finished:
            self.set(subtask, "finished")

    def set(self, subtask: Subtask, state: SubtaskState, *, natural: bool = True) -> None:
        """Set the state of `subtask`. `natural`: it ended by itself and not by a stop. Only its first report counts."""
        before = self.by_subtask[subtask]
        self.by_subtask[subtask] = state
        self._count[before] -= 1
        self._count[state] += 1
        ended = ("ended", "finished")
        if natural and state in ended and before not in ended:
            self._naturally_ended[subtask[0]] += 1

    @property
    def all_up(self) -> bool:
        """True when all subtasks have started."""
        return not self._count["created"]

    @property
    def all_ended(self) -> bool:
        """True when no subtask reads data any more, and at least one waits for a snapshot to finish with (S7.3)."""
        ended = self._count["ended"]
        return bool(ended) and ended + self._count["finished"] == len(self.by_subtask)

    @property
    def all_finished(self) -> bool:
        """True when all subtasks have finished, and therefore the run is over."""
        return self._count["finished"] == len(self.by_subtask)

    def reached_end_of_data(self, chain_id: int) -> bool:
        """Return True once per source chain: when all its subtasks have ended naturally."""
        if not self._topology.chains[chain_id].is_source or chain_id in self._ended_sources:
            return False
        if self._naturally_ended[chain_id] < self._topology.parallelism:
            return False
        self._ended_sources.add(chain_id)
        return True
