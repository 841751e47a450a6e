"""Find checkpoint folders that are not needed any more when a generation begins (S2.3). Pure.

A living driver retires its own checkpoints through its coordinator. This module finds what a dead driver left behind,
from the log and a listing: folders of snapshots of any kind that were claimed and never completed, and completed
checkpoints that were to be deleted when the driver died.

Call it after the fence is in the log: from then on no older claim can complete (S9.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.coordinator.checkpointing.retention import find_retired
from tidegate.coordinator.garbage.shared_files import OWNED_KINDS
from tidegate.coordinator.recovery.restore_point import completed_snapshots, last_committed
from tidegate.jobs.history.checkpoints import RecoveryPoints, checkpoint_views, named_snapshots
from tidegate.jobs.history.rewinds import rewound_checkpoints
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.status import JobStatus

FINAL_STATUSES = (JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING, JobStatus.STOPPED)
"""Statuses that a driver appends after every slot has reported its end."""


@dataclass(frozen=True, slots=True)
class AbandonedFolder:
    """A folder to delete.

    `without_grace`: delete it immediately, because the driver that claimed it ended in order. No zombie of its runs is
    left that could still write to the folder.
    """

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
    """Return the folders that may be deleted, oldest first.

    Only folders that an earlier generation claimed in the log are returned. All others do not belong to the job.

    Args:
        folders: existing folders of checkpoints, of claimed savepoints, and of savepoints that were never completed. A
            folder that is missing here is left alone.
        generation: the own generation, whose claims are left to its coordinator.
        retained: the option `retained_checkpoints`.
        commits: a sink commits in two phases, so that the last committed snapshot is kept.
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
    # Later entries overwrite earlier ones, so that the last status of each generation decides.
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
    """Return the locations of the job's savepoints that the job itself owns (S7.4).

    A savepoint becomes the job's own when a submission claims it and has completed a recovery point. Submissions that
    were refused or never ran have claimed nothing.

    Args:
        running: a submission that counts before its first recovery point, because it is about to complete one.
    """
    claims = {s.number: s.restore for s in specs if s.restore is not None and s.restore.claim_mode == "claim"}
    if not claims:
        return frozenset()
    done = {e.spec for e in entries_by_submission(decisions) if e.kind == "complete" and e.data["kind"] != "savepoint"}
    wanted = [restore for number, restore in claims.items() if number == running or number in done]
    paths, ids = {restore.path for restore in wanted}, {restore.checkpoint_id for restore in wanted}
    own = (d.data for d in decisions if d.kind == "complete" and d.data["kind"] in SAVEPOINT_KINDS)
    return frozenset(data["path"] for data in own if data["path"] in paths or data["checkpoint_id"] in ids)


def restored_checkpoint(decisions: Sequence[Decision], specs: Sequence[Spec], spec_number: int) -> int | None:
    """Return the id of the job's own snapshot that submission `spec_number` restarts from, or None.

    None also when the submission has completed a recovery point itself.
    """
    entries = entries_by_submission(decisions)
    point = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False)).latest(spec_number)
    return point.checkpoint_id if point is not None and point.spec != spec_number else None
