"""Snapshots that can no longer be restored because a rewind deleted their committed output, derived from the decision
log (S9.3). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.jobs.history.checkpoints import CheckpointView
from tidegate.jobs.history.submissions import LogEntry
from tidegate.jobs.records import Spec


@dataclass(frozen=True, slots=True)
class Rewind:
    """A "rewind" entry.

    Attributes:
        checkpoint_id: snapshot to which the sinks were rewound.
        lineage: lineage whose transactions were deleted.
        gone: ids claimed in that lineage after the snapshot and before the entry. Their state counts rows that were
            deleted, so they must never be restored.
        is_done: a snapshot of the lineage has completed since. No slot starts before the rewind has ended, so every
            sink has done its part. If False, the next driver repeats the rewind.
    """

    checkpoint_id: int
    lineage: str
    gone: frozenset[int]
    is_done: bool


def find_rewinds(specs: Iterable[Spec], entries: Sequence[LogEntry]) -> tuple[Rewind, ...]:
    """Return all rewinds of a job, oldest first. `entries` is the whole log."""
    lineages = {spec.number: spec.lineage for spec in specs}
    found: list[Rewind] = []
    claimed: dict[int, str | None] = {}
    for entry in entries:
        lineage = lineages.get(entry.spec)
        match entry.kind:
            case "claim":
                claimed[entry.data["checkpoint_id"]] = lineage
            case "complete":
                found = [replace(r, is_done=True) if r.lineage == lineage else r for r in found]
            case "rewind":
                n = entry.data["checkpoint_id"]
                gone = frozenset(other for other, of in claimed.items() if other > n and of == lineage)
                found.append(Rewind(n, lineage or "", gone, is_done=False))
    return tuple(found)


def rewound_checkpoints(specs: Iterable[Spec], entries: Sequence[LogEntry]) -> frozenset[int]:
    """Return the ids of all snapshots of the job that rewinds have invalidated. They must not be restored."""
    return frozenset().union(*(rewind.gone for rewind in find_rewinds(specs, entries)))


def mark_rewound(views: Sequence[CheckpointView], gone: Iterable[int]) -> tuple[CheckpointView, ...]:
    """Return the views, with `taken_back` set on the snapshots with these ids."""
    ids = frozenset(gone)
    return tuple(replace(v, taken_back=True, committed=False) if v.checkpoint_id in ids else v for v in views)


def rewound_sinks(entries: Sequence[LogEntry], ids: Iterable[int]) -> Mapping[str, str]:
    """Return the two-phase-commit sinks that the snapshots committed to: uid -> recorded text of its identity."""
    wanted = frozenset(ids)
    found: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "complete" and entry.data["checkpoint_id"] in wanted:
            found.update(entry.data.get("sinks") or {})
    return found
