"""Which checkpoint folders nobody needs, found when a reign begins (S2.3). Pure.

While a driver lives, its coordinator retires what it no longer needs. What a dead one left is found here, from the log
and a listing: folders of snapshots of any kind that were claimed and never completed, and completed ones that were to
go when the driver died.
To be asked behind the fence: from then on no older claim can complete (S9.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.coordinator.checkpointing.retention import find_retired
from tidegate.coordinator.garbage.shared_files import OWNED_KINDS
from tidegate.coordinator.recovery.restore_point import completed_snapshots, last_committed
from tidegate.jobs.history.checkpoints import RecoveryPoints, checkpoint_views
from tidegate.jobs.history.rewinds import rewound_checkpoints
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.status import JobStatus

FINAL_STATUSES = (JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING, JobStatus.STOPPED)
"""Statuses that a driver appends when every slot has said that it is over."""


@dataclass(frozen=True, slots=True)
class AbandonedFolder:
    """A folder to delete. `at_once`: the driver that claimed it ended in order, so that no zombie of its runs is left
    for whose sake to wait."""

    path: str
    without_grace: bool


def find_abandoned_folders(
    decisions: Sequence[Decision],
    folders: Collection[str],
    specs: Sequence[Spec],
    *,
    spec_number: int,
    generation: int,
    retained: int,
    commits: bool,
) -> tuple[AbandonedFolder, ...]:
    """What may go, oldest first. Only folders that the log knows as claimed by an earlier generation; anything else is
    not ours.

    Args:
        folders: existing folders of checkpoints, of claimed savepoints, and of savepoints that were never completed;
            one that is missing here is left alone.
        generation: the own one; what it claims is its coordinator's business.
        retained: `retained_checkpoints`.
        commits: some sink commits in two phases, so that the last committed snapshot stays.
    """
    gone_back_past = rewound_checkpoints(specs, entries_by_submission(decisions))
    claimed = claimed_savepoints(decisions, specs)
    completed = completed_snapshots(decisions, set(folders), gone_back_past, claimed)
    done = {d.data["checkpoint_id"] for d in decisions if d.kind == "complete"}
    verdicts = find_verdicts(specs, decisions, spec_number)
    gone = find_retired(
        completed,
        retained=retained,
        last_committed=last_committed(decisions, gone_back_past) if commits else None,
        restored=restored_checkpoint(decisions, specs, spec_number),
        pinned=verdicts.pinned,
        rejected=verdicts.rejected,
    )
    needed = {c.checkpoint_id for c in completed} - {c.checkpoint_id for c in gone}
    named = named_snapshots(decisions, specs, spec_number)
    clean = {d.generation: d.data["status"] in FINAL_STATUSES for d in decisions if d.kind == "status"}
    return tuple(
        AbandonedFolder(d.data["path"], clean.get(d.generation, False))
        for d in decisions
        if d.kind == "claim"
        and (d.data["kind"] in OWNED_KINDS or d.data["path"] in claimed or d.data["checkpoint_id"] not in done)
        and d.data["path"] in folders
        and d.generation < generation
        and d.data["checkpoint_id"] not in needed
        and d.data["path"] not in named
    )


def claimed_savepoints(
    decisions: Sequence[Decision], specs: Sequence[Spec], running: int | None = None
) -> frozenset[str]:
    """Locations of the job's savepoints that it owns itself, since a submission claimed them (S7.4) and has completed a
    recovery point of its own: one that was refused, or never ran, has claimed nothing.

    Args: running: a submission that counts before that, because it is about to complete one.
    """
    claims = {s.number: s.restore for s in specs if s.restore is not None and s.restore.claim_mode == "claim"}
    if not claims:
        return frozenset()
    done = {e.spec for e in entries_by_submission(decisions) if e.kind == "complete" and e.data["kind"] != "savepoint"}
    wanted = [restore for number, restore in claims.items() if number == running or number in done]
    paths, ids = {restore.path for restore in wanted}, {restore.checkpoint_id for restore in wanted}
    own = (d.data for d in decisions if d.kind == "complete" and d.data["kind"] in SAVEPOINT_KINDS)
    return frozenset(data["path"] for data in own if data["path"] in paths or data["checkpoint_id"] in ids)


def named_snapshots(decisions: Sequence[Decision], specs: Sequence[Spec], spec_number: int) -> frozenset[str]:
    """Folders that submission `spec_number` would start from again, and that later ones start from: by name, or as the
    latest of their line."""
    entries = entries_by_submission(decisions)
    points = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False))
    named: set[str] = set()
    for spec in specs:
        if spec.number >= spec_number:
            point = points.latest(spec.number)
            named |= {point.path} if point is not None else set()
    return frozenset(named)


def restored_checkpoint(decisions: Sequence[Decision], specs: Sequence[Spec], spec_number: int) -> int | None:
    """Id of the job's own snapshot that submission `spec_number` restarts from, while it has completed no recovery
    point itself."""
    entries = entries_by_submission(decisions)
    point = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False)).latest(spec_number)
    return point.checkpoint_id if point is not None and point.spec != spec_number else None
