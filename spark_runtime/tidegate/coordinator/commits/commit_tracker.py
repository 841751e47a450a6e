"""Track which completed snapshots all sinks have committed (S2.3, S7.4). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.topology import Topology


@dataclass
class _Open:
    """A completed snapshot: the subtasks that reported its commit, and how many running subtasks have not."""

    missing: int
    reported: set[Subtask] = field(default_factory=set)


class CommitTracker:
    """Collect commit reports of subtasks. A report costs the same for any number of subtasks.

    A finished subtask counts as one that has committed, because it commits everything before it finishes.
    """

    def __init__(self, topology: Topology) -> None:
        chains = [c.chain_id for c in topology.chains if c.commits]
        self._running = {(chain, i) for chain in chains for i in range(topology.parallelism)}
        self._commits = bool(chains)
        self._open: dict[int, _Open] = {}

    def completed(self, checkpoint_id: int) -> None:
        """Start tracking `checkpoint_id`, whose commit is permitted from now on."""
        if self._commits:
            self._open[checkpoint_id] = _Open(len(self._running))

    def finished(self, subtask: Subtask) -> None:
        """Record that `subtask` has finished."""
        if subtask not in self._running:
            return
        self._running.discard(subtask)
        for entry in self._open.values():
            # True counts as 1: a subtask that reported before it finished has already been subtracted.
            entry.missing -= subtask not in entry.reported

    def committed(self, subtask: Subtask, checkpoint_id: int) -> None:
        """Record that `subtask` has committed every transaction up to `checkpoint_id`.

        Repeated reports and reports for unknown or older snapshots have no effect.
        """
        entry = self._open.get(checkpoint_id)
        if entry is None or subtask in entry.reported:
            return
        entry.reported.add(subtask)
        # A finished subtask has been subtracted by `finished`. Its report may arrive later.
        entry.missing -= subtask in self._running

    def take_committed(self) -> int | None:
        """Return the newest snapshot that all subtasks have committed since the last call, or None.

        Its commit includes all older snapshots.
        """
        done = [n for n, entry in self._open.items() if not entry.missing]
        if not done:
            return None
        newest = max(done)
        self._open = {n: entry for n, entry in self._open.items() if n > newest}
        return newest
