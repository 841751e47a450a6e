"""Which completed snapshots every sink has committed (S2.3, S7.4). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.topology import Topology


@dataclass
class _Open:
    """A completed snapshot: who has reported, and how many neither have nor have finished."""

    missing: int
    reported: set[Subtask] = field(default_factory=set)


class CommitTracker:
    """Collects the reports of the subtasks that commit; a report costs the same whatever their number.

    A subtask that has finished has committed all it ever will.
    """

    def __init__(self, topology: Topology) -> None:
        chains = [c.chain_id for c in topology.chains if c.commits]
        self._running = {(chain, i) for chain in chains for i in range(topology.parallelism)}
        self._commits = bool(chains)
        self._open: dict[int, _Open] = {}

    def completed(self, checkpoint_id: int) -> None:
        """`checkpoint_id` may be committed from now on."""
        if self._commits:
            self._open[checkpoint_id] = _Open(len(self._running))

    def finished(self, subtask: Subtask) -> None:
        """`subtask` has finished."""
        if subtask not in self._running:
            return
        self._running.discard(subtask)
        for entry in self._open.values():
            entry.missing -= subtask not in entry.reported

    def committed(self, subtask: Subtask, checkpoint_id: int) -> None:
        """`subtask` has committed every transaction up to `checkpoint_id`. Again, unknown or covered: no difference."""
        entry = self._open.get(checkpoint_id)
        if entry is None or subtask in entry.reported:
            return
        entry.reported.add(subtask)
        entry.missing -= subtask in self._running

    def take_committed(self) -> int | None:
        """The newest snapshot that everybody has committed since the last call; older ones are covered by it."""
        done = [n for n, entry in self._open.items() if not entry.missing]
        if not done:
            return None
        newest = max(done)
        self._open = {n: entry for n, entry in self._open.items() if n > newest}
        return newest
