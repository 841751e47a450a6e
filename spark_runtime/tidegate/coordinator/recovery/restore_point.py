"""Choose the snapshot that a run of this submission starts from, from the decision log alone (S9.3). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.coordinator.checkpointing.retention import CompletedCheckpoint
from tidegate.errors import SnapshotError
from tidegate.jobs.history.checkpoints import CheckpointView, RecoveryPoints, checkpoint_views
from tidegate.jobs.history.submissions import LogEntry, entries_by_submission, may_have_run
from tidegate.jobs.history.verdicts import Verdicts
from tidegate.jobs.records import Decision, Spec

FINAL_STATUSES = ("FINISHED", "FINISHED_COMMIT_PENDING", "STOPPED", "CANCELED")
"""Statuses after which a submission never runs again."""


@dataclass(frozen=True)
class RestorePoint:
    """A snapshot to start from.

    Attributes:
        location: folder relative to the root, or URL.
        checkpoint_id: id from the log; None for a path that the user gave.
        log_number: number of its "complete" entry; 0 if the log has none.
        commit_only: it is a stop-savepoint of this submission, so that only its commit and the end remain (S7.7).
        stop_mode: with `commit_only`: suspend or drain.
    """

    location: str
    checkpoint_id: int | None
    log_number: int
    commit_only: bool = False
    stop_mode: str | None = None


def choose_restore_point(decisions: Sequence[Decision], specs: Sequence[Spec], spec_number: int) -> RestorePoint | None:
    """Return the submission's newest recovery point, else the snapshot that it names, else None: a fresh start.

    Candidates for "latest" are descendants of the submission's own restore point, and no snapshots of abandoned
    timelines (S9.3). Raises SnapshotError when the submission names a snapshot that is not in the log.
    """
    completes = {d.data["checkpoint_id"]: d for d in decisions if d.kind == "complete"}
    spec = next(spec for spec in specs if spec.number == spec_number)
    entries = entries_by_submission(decisions)
    points = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False))
    newest = points.latest(spec_number)
    if newest is not None and newest.spec == spec_number:
        decision = completes[newest.checkpoint_id]
        stopping = newest.kind == "stop-savepoint"
        stop_mode = decision.data.get("stop") if stopping else None
        return RestorePoint(newest.path, newest.checkpoint_id, decision.number, stopping, stop_mode)
    wanted = spec.restore
    if wanted is None:
        return None
    _refuse_rejected(points, specs, entries, spec)
    found = points.restored(spec_number)
    if found is None and _rejected_restore_points_error(specs, entries, spec_number):
        return None  # all snapshots of the line have been rejected since: start from the beginning
    if found is None:
        what = "any completed checkpoint" if wanted.checkpoint_id is None else f"checkpoint {wanted.checkpoint_id}"
        raise SnapshotError(
            f"the decision log of the job has no record of {what}",
            where=f"job {spec.job_id}",
            remedy="Restore a snapshot that `tidegate checkpoints` lists",
        )
    _refuse_other_lineage(specs, spec, found)
    known = completes.get(found.checkpoint_id)
    return RestorePoint(found.path, found.checkpoint_id or None, known.number if known is not None else 0)


def _rejected_restore_points_error(specs: Sequence[Spec], entries: Sequence[LogEntry], spec_number: int) -> bool:
    """Return whether the submission would have a snapshot to start from if nothing had been rejected (S7.8)."""
    others = [entry for entry in entries if entry.kind != "reject"]
    return RecoveryPoints(specs, others, checkpoint_views(others, ended=False)).restored(spec_number) is not None


def _refuse_rejected(points: RecoveryPoints, specs: Sequence[Spec], entries: Sequence[LogEntry], spec: Spec) -> None:
    """Refuse a submission that begins with a snapshot that is already rejected (S7.8).

    If the snapshot is rejected during the submission, the submission instead restarts from the snapshot before it.
    """
    named = points.find(spec.restore) if spec.restore is not None and spec.restore.kind != "latest" else None
    if named is None or named.checkpoint_id not in points.rejected:
        return
    before = list(takewhile(lambda entry: entry.spec < spec.number, entries))
    views = checkpoint_views(before, ended=False)
    if named.checkpoint_id in RecoveryPoints(specs, before, views).rejected:
        raise _rejected(named.checkpoint_id, f"job {spec.job_id}, snapshot {named.path}")


def _refuse_other_lineage(specs: Sequence[Spec], spec: Spec, found: CheckpointView) -> None:
    """Refuse "latest" if it now belongs to another lineage than when the submission was made.

    That happens if an earlier submission had not run at that time, and has run since.
    """
    taken_by = next((s for s in specs if s.number == found.spec), spec)
    if spec.restore is not None and spec.restore.kind == "latest" and taken_by.lineage != spec.lineage:
        raise SnapshotError(
            f"the latest snapshot is now {found.path}, which belongs to another lineage than at the time of the "
            "submission",
            where=f"job {spec.job_id}, submission {spec.number}",
            cause=f"submission {taken_by.number} has run since then, and took this snapshot",
            remedy="Submit the restore again, so that the output that the snapshot staged is committed",
        )


def check_verdicts(
    verdicts: Verdicts, spec: Spec, taken: Verdicts, *, lineage: str, checkpoint_id: int, sinks: Sequence[str]
) -> None:
    """Refuse a submission that would bypass verdicts on the restored snapshot (S7.8), wherever the snapshot is now.

    A submission may not start from a rejected checkpoint. Without a commit gate of its own, it may not commit output
    that waits for a verdict. A fork commits nothing of its original.

    Args:
        `taken`: verdicts on the line of the submission that took the snapshot. If the snapshot is stored elsewhere, the
            line of `spec` does not show its origin.
        lineage, checkpoint_id: lineage and id of the snapshot.
        sinks: uids of the pipeline's two-phase-commit sinks.

    Raises:
        SnapshotError: names the rejected checkpoint, or lists the waiting ones.
    """
    if lineage != spec.lineage:
        return
    if checkpoint_id in verdicts.rejected:
        raise _rejected(checkpoint_id, f"job {spec.job_id}")
    if verdicts.gated or not sinks:
        return
    waiting = sorted({*_waiting_checkpoints(taken, checkpoint_id), *verdicts.waiting})
    if not waiting:
        return
    raise SnapshotError(
        f"checkpoints {waiting} wait for approval or rejection, and submission {spec.number} would commit their output "
        "without it",
        where=f"job {spec.job_id}, sinks {', '.join(sinks)}",
        cause=f"the option commit of submission {spec.number} is 'automatic', but the previous submission used "
        "'on_request'",
        remedy="Restore with commit=on_request, then approve or reject these checkpoints",
    )


def check_discarded_verdicts(
    specs: Sequence[Spec], decisions: Sequence[Decision], spec: Spec, taken: Verdicts, checkpoint_id: int
) -> None:
    """Refuse a snapshot that refers to unapproved output which has been deleted since.

    That happens if an earlier submission started from an older snapshot, and therefore deleted the later staged output
    of its lineage (S7.4, S7.8).

    Args:
        `taken`: verdicts on the line of the submission that took the snapshot.

    Raises:
        SnapshotError: names the checkpoints whose output is deleted, and the submission that deleted it.
    """
    waiting = _waiting_checkpoints(taken, checkpoint_id)
    if not waiting:
        return
    entries = entries_by_submission(decisions)
    if _passed_over(entries, checkpoint_id):
        raise _missing_checkpoint_error(
            spec,
            checkpoint_id,
            [checkpoint_id],
            "after the run that took the checkpoint, the next run started from an older snapshot",
        )
    points, ran = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False)), may_have_run(entries)
    for other in specs:
        if other.number not in ran or other.number >= spec.number or other.lineage != spec.lineage:
            continue
        line = points.lineage(other.number)
        gone = [n for n in waiting if taken.views[n].spec < other.number and n > line.get(taken.views[n].spec, 0)]
        if gone:
            cause = f"submission {other.number} started from an older snapshot before they were approved or rejected"
            raise _missing_checkpoint_error(spec, checkpoint_id, gone, cause)


def _missing_checkpoint_error(spec: Spec, checkpoint_id: int, gone: Sequence[int], cause: str) -> SnapshotError:
    return SnapshotError(
        f"checkpoint {checkpoint_id} needs the staged output of checkpoints {gone}, which has been deleted",
        where=f"job {spec.job_id}",
        cause=f"{cause}, and processed the same input again",
        remedy=f"Restore a checkpoint before {gone[0]}, or a newer one (see `tidegate checkpoints`)",
    )


def _passed_over(entries: Sequence[LogEntry], checkpoint_id: int) -> bool:
    """Return whether a later run of the savepoint's own submission started from an older snapshot.

    Only savepoints can be passed over like this: they are not recovery points, and their run may have completed none
    after them (S2.4).
    """
    claim = next((e for e in entries if e.kind == "claim" and e.data["checkpoint_id"] == checkpoint_id), None)
    if claim is None or claim.data["kind"] != "savepoint":
        return False
    run_id, number = claim.decision.run_id, claim.decision.number
    later = [e for e in entries if e.spec == claim.spec and e.decision.number > number]
    complete = [e for e in later if e.kind == "complete" and e.data["kind"] != "savepoint"]
    held = any(e.decision.run_id == run_id and e.data["checkpoint_id"] > checkpoint_id for e in complete)
    # Entries of the driver itself have no run id, and are no sign of a later run.
    return not held and any(e.decision.run_id not in ("", run_id) for e in later)


def _waiting_checkpoints(taken: Verdicts, checkpoint_id: int) -> list[int]:
    """Return the checkpoints in a snapshot that have no verdict yet, oldest first.

    A savepoint's own part waits for the verdict on a later checkpoint.

    Args:
        `taken`: verdicts on the line of the submission that took the snapshot.
    """
    waiting = [n for n in taken.waiting if n <= checkpoint_id]
    known = taken.views.get(checkpoint_id)
    if known is not None and known.kind == "savepoint" and taken.gated and checkpoint_id > taken.approved:
        if not any(withheld.covers(checkpoint_id) for withheld in taken.withheld):
            waiting.append(checkpoint_id)
    return waiting


def _rejected(checkpoint_id: int, where: str) -> SnapshotError:
    return SnapshotError(
        f"checkpoint {checkpoint_id} was rejected, or was taken after a rejected checkpoint",
        where=where,
        cause="the output in a rejected checkpoint must never be committed",
        remedy="Restore the latest checkpoint that was not rejected (`--from latest`), or another one from "
        "`tidegate checkpoints`",
    )


def check_drained(point: RestorePoint, spec: Spec, drained_operators: Sequence[str]) -> None:
    """Refuse a snapshot whose drain made operators fire early, unless the submission allows it (S7.5).

    Args:
        drained_operators: uid and kind of each such operator.

    Raises:
        SnapshotError: names the operators.
    """
    allowed = spec.restore is not None and spec.restore.allow_drained
    if drained_operators and not point.commit_only and not allowed:
        raise SnapshotError(
            f"snapshot {point.location} was taken by a drain",
            where=f"job {spec.job_id}, operators {', '.join(drained_operators)}",
            cause="the drain fired open windows early: after a restore they emit a second time, and joins have read "
            "one input only in part",
            remedy="Restore an earlier snapshot, or set allow_drained to accept the second results",
        )


def end_status(decisions: Sequence[Decision], spec_number: int) -> tuple[str, Mapping[str, Any]] | None:
    """Return the final status of submission `spec_number` and its data, or None if it may still run.

    Final are FINISHED, STOPPED and CANCELED. A failed submission may be run again. A rejection that stops the job is
    final, too, even if its driver died before it recorded the status (S7.8) or answered the command. In that case the
    data contain the answer, as `rejected`.
    """
    own = [e for e in entries_by_submission(decisions) if e.spec == spec_number]
    statuses = [e.data for e in own if e.kind == "status"]
    if statuses and statuses[-1]["status"] in FINAL_STATUSES:
        return statuses[-1]["status"], {name: value for name, value in statuses[-1].items() if name != "status"}
    stopped = next((e.data for e in own if e.kind == "reject" and e.data["then"] == "stop"), None)
    if stopped is None:
        return None
    n = stopped["checkpoint_id"]
    rejected = {"checkpoint_id": n, "command": stopped.get("command")}
    return "STOPPED", {"reason": rejection_text(n, stopped["by"], stopped.get("reason", "")), "rejected": rejected}


def rejection_text(checkpoint_id: int, by: str, reason: str) -> str:
    """Return why a job stopped or was restored to an earlier snapshot. `reason`: in the user's words; may be empty."""
    return f"checkpoint {checkpoint_id} was rejected by {by}" + (f": {reason}" if reason else "")


def completed_snapshots(
    decisions: Sequence[Decision],
    existing: set[str],
    taken_back: Collection[int] = (),
    claimed: Collection[str] = (),
) -> list[CompletedCheckpoint]:
    """Return the completed snapshots whose folders still exist, oldest first.

    Args:
        existing: locations of the snapshots that the job owns.
        taken_back: ids of snapshots that are no recovery points any more (S9.3).
        claimed: locations of savepoints that the job owns.
    """
    return [
        CompletedCheckpoint(
            d.data["checkpoint_id"],
            d.data["kind"],
            d.data["path"],
            d.data.get("stop"),
            d.data["checkpoint_id"] in taken_back,
            d.data["path"] in claimed,
        )
        for d in decisions
        if d.kind == "complete"
        # Unclaimed savepoints belong to users and are not looked
        # for. They may be recovery points, but are never deleted.
        and (d.data["path"] in existing or (d.data["kind"] in SAVEPOINT_KINDS and d.data["path"] not in claimed))
    ]


def last_committed(decisions: Sequence[Decision], taken_back: Collection[int] = ()) -> int | None:
    """Return the newest checkpoint that is known to be committed, and was not rewound since."""
    ids = [
        d.data["checkpoint_id"]
        for d in decisions
        if d.kind == "committed" and d.data["checkpoint_id"] not in taken_back
    ]
    return ids[-1] if ids else None
