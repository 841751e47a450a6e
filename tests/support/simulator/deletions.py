"""A store that takes long to delete: its measures, and the checker that sees folders pile up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from simulator.store import Disk
from tidegate.coordinator.checkpointing.retention import MAX_OVERDUE_DELETIONS
from tidegate.jobs.records import Decision

WEIGHT = 16
"""Folders of a real job that one folder here stands for: a seed completes some ten checkpoints, and the limit is 32."""
POLL_MS = 40
"""How often it is looked whether something is due, milliseconds."""
SLOW_PHASE_MS = 3_000
"""By how much longer faults strike where deletions are slow: a folder is due after more than a second."""
BUSY = 0.1
"""Part of the rounds in which users act as in other seeds: with each driver the count begins again."""
SLOWNESS_MS = (300, 800, 3_000)
"""How long the deletion of one folder takes, milliseconds; the last is longer than the slow phase."""
SLACK_MS = 150
"""From the time that a folder is not needed by the checker's rules to its retirement, at most."""
MARGIN = 2
"""Folders by which the checker's count may exceed the runtime's limit: those whose commit is on its way."""


@dataclass(frozen=True)
class _Unneeded:
    generation: int
    since_ms: int


class DeletionChecker:
    """S2.3: a periodic or user checkpoint starts only while few retired ones are past their grace and still there.

    Counts from outside: completed checkpoints of the reigning generation that no rule keeps and that the disk holds.
    """

    def __init__(self, demand: Callable[[str, bool, str], None], disk: Disk, grace_ms: int) -> None:
        """Args: grace_ms: from the retirement of a folder until it may be deleted."""
        self._demand = demand
        self._disk = disk
        self._grace_ms = grace_ms
        self._unneeded: dict[str, _Unneeded] = {}

    def decided(
        self, entry: Decision, now_ms: int, completed: Mapping[int, Decision], needed: Callable[[], Collection[str]]
    ) -> None:
        """An entry of the log. Args: completed: by id. needed: folders that some rule keeps."""
        if entry.kind == "complete":
            kept = needed()
            for one in completed.values():
                path, own = one.data["path"], one.generation == entry.generation
                if own and one.data["kind"] == "checkpoint" and path not in kept:
                    self._unneeded.setdefault(path, _Unneeded(one.generation, now_ms))
        elif entry.kind == "claim" and entry.data["kind"] == "checkpoint":
            due = [
                path
                for path, folder in self._unneeded.items()
                if folder.generation == entry.generation
                and folder.since_ms + self._grace_ms + SLACK_MS < now_ms
                and any(key.startswith(f"{path}/") for key in self._disk.objects)
            ]
            limit = MAX_OVERDUE_DELETIONS // WEIGHT + MARGIN
            n = entry.data["checkpoint_id"]
            self._demand("deletions", len(due) <= limit, f"{n} was claimed while {len(due)} folders wait: {due}")
