"""Where a run starts from: the restore point of this submission, chosen from the decision log alone (S9.3). Pure."""

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
"""Statuses after which a submission is not run again."""


@dataclass(frozen=True)
class RestorePoint:
    """A snapshot to start from.

    Attributes:
        location: folder relative to the root, or URL.
        checkpoint_id: when known from the log; None for a path the user gave.
        log_number: of the "complete" entry; 0 when the log does not hold it.
        commit_only: it is a stop-savepoint of this very submission: what remains is to commit and to end (S7.7).
        stop_mode: with `commit_only`: suspend or drain.
    """

    location: str
    checkpoint_id: int | None
    log_number: int
    commit_only: bool = False
    stop_mode: str | None = None


def choose_restore_point(decisions: Sequence[Decision], specs: Sequence[Spec], spec_number: int) -> RestorePoint | None:
    """The newest recovery point completed by submission `spec_number`, else what it names, else None: fresh.

    Candidates for "latest" are descendants of the submission's own restore point; abandoned timelines are none (S9.3).
    Raises SnapshotError when the submission names something the log does not hold.
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
        return None  # all that the line had was rejected since: from the beginning
    if found is None:
        what = "any completed checkpoint" if wanted.checkpoint_id is None else f"checkpoint {wanted.checkpoint_id}"
        raise SnapshotError(
            f"there is no record of {what}",
            where=f"job {spec.job_id}",
            remedy="`tidegate checkpoints` lists what can be restored",
        )
    _refuse_other_lineage(specs, spec, found)
    known = completes.get(found.checkpoint_id)
    return RestorePoint(found.path, found.checkpoint_id or None, known.number if known is not None else 0)


def _rejected_restore_points_error(specs: Sequence[Spec], entries: Sequence[LogEntry], spec_number: int) -> bool:
    """The submission would have something to start from, had nothing been rejected (S7.8)."""
    others = [entry for entry in entries if entry.kind != "reject"]
    return RecoveryPoints(specs, others, checkpoint_views(others, ended=False)).restored(spec_number) is not None


def _refuse_rejected(points: RecoveryPoints, specs: Sequence[Spec], entries: Sequence[LogEntry], spec: Spec) -> None:
    """A submission may not begin with a snapshot that was rejected. One that is rejected under it is another matter: it
    goes back to what is in front of that (S7.8)."""
    named = points.find(spec.restore) if spec.restore is not None and spec.restore.kind != "latest" else None
    if named is None or named.checkpoint_id not in points.rejected:
        return
    before = list(takewhile(lambda entry: entry.spec < spec.number, entries))
    views = checkpoint_views(before, ended=False)
    if named.checkpoint_id in RecoveryPoints(specs, before, views).rejected:
        raise _rejected(named.checkpoint_id, f"job {spec.job_id}, snapshot {named.path}")


def _refuse_other_lineage(specs: Sequence[Spec], spec: Spec, found: CheckpointView) -> None:
    """The latest is in the lineage that the submission continues, unless an earlier one, of which nothing had run when
    it was made, has run since."""
    taken_by = next((s for s in specs if s.number == found.spec), spec)
    if spec.restore is not None and spec.restore.kind == "latest" and taken_by.lineage != spec.lineage:
        raise SnapshotError(
            f"{found.path} is the latest now, and of another lineage than when this was submitted",
            where=f"job {spec.job_id}, submission {spec.number}",
            cause=f"submission {taken_by.number} had not run then",
            remedy="Restore again: what it had staged would not be committed otherwise",
        )


def check_verdicts(
    verdicts: Verdicts, spec: Spec, taken: Verdicts, *, lineage: str, checkpoint_id: int, sinks: Sequence[str]
) -> None:
    """A submission may not get around the verdicts on what it restores (S7.8), wherever that lies by now: start from
    what was rejected, or commit what waits because it has no gate itself. A fork commits nothing.

    Args:
        taken: the verdicts on the line of the submission that took the snapshot: of one that lies elsewhere the line of
            `spec` does not tell what it comes from.
        lineage, checkpoint_id: of the snapshot.
        sinks: uids of the pipeline's two-phase sinks.

    Raises:
        SnapshotError: names what was rejected, or lists what waits.
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
        f"checkpoints {waiting} wait for a verdict, and this submission would commit what they staged",
        where=f"job {spec.job_id}, sinks {', '.join(sinks)}",
        cause="its option commit is 'automatic', that of the submission before was 'on_request'",
        remedy="Restore with commit=on_request, and approve or reject them first",
    )


def check_discarded_verdicts(
    specs: Sequence[Spec], decisions: Sequence[Decision], spec: Spec, taken: Verdicts, checkpoint_id: int
) -> None:
    """A submission may not begin with a snapshot that holds what waits for a verdict, and has gone: an earlier one went
    back in front of it, and what its lineage had staged behind that was removed (S7.4, S7.8).

    Args:
        taken: the verdicts on the line of the submission that took the snapshot.

    Raises:
        SnapshotError: names what is gone, and the submission that went back.
    """
    waiting = _waiting_checkpoints(taken, checkpoint_id)
    if not waiting:
        return
    entries = entries_by_submission(decisions)
    if _passed_over(entries, checkpoint_id):
        raise _missing_checkpoint_error(
            spec, checkpoint_id, [checkpoint_id], "the run after that which took it went on from an older one"
        )
    points, ran = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False)), may_have_run(entries)
    for other in specs:
        if other.number not in ran or other.number >= spec.number or other.lineage != spec.lineage:
            continue
        line = points.lineage(other.number)
        gone = [n for n in waiting if taken.views[n].spec < other.number and n > line.get(taken.views[n].spec, 0)]
        if gone:
            cause = f"submission {other.number} went back in front of them before there was a verdict"
            raise _missing_checkpoint_error(spec, checkpoint_id, gone, cause)


def _missing_checkpoint_error(spec: Spec, checkpoint_id: int, gone: Sequence[int], cause: str) -> SnapshotError:
    return SnapshotError(
        f"checkpoint {checkpoint_id} holds what checkpoints {gone} had staged, which is gone",
        where=f"job {spec.job_id}",
        cause=f"{cause}, and reads their input again",
        remedy="Restore one in front of them, or one taken since (`tidegate checkpoints`)",
    )


def _passed_over(entries: Sequence[LogEntry], checkpoint_id: int) -> bool:
    """Its own submission has had a later run, and that began with something older: of a savepoint, which is no recovery
    point, behind which its run completed none (S2.4)."""
    claim = next((e for e in entries if e.kind == "claim" and e.data["checkpoint_id"] == checkpoint_id), None)
    if claim is None or claim.data["kind"] != "savepoint":
        return False
    run_id, number = claim.decision.run_id, claim.decision.number
    later = [e for e in entries if e.spec == claim.spec and e.decision.number > number]
    complete = [e for e in later if e.kind == "complete" and e.data["kind"] != "savepoint"]
    held = any(e.decision.run_id == run_id and e.data["checkpoint_id"] > checkpoint_id for e in complete)
    return not held and any(e.decision.run_id not in ("", run_id) for e in later)


def _waiting_checkpoints(taken: Verdicts, checkpoint_id: int) -> list[int]:
    """Of what a snapshot holds, that which has no verdict yet, oldest first; a savepoint's own part waits for that on a
    later checkpoint. Args: taken: on the line of the submission that took it."""
    waiting = [n for n in taken.waiting if n <= checkpoint_id]
    known = taken.views.get(checkpoint_id)
    if known is not None and known.kind == "savepoint" and taken.gated and checkpoint_id > taken.approved:
        if not any(withheld.covers(checkpoint_id) for withheld in taken.withheld):
            waiting.append(checkpoint_id)
    return waiting


def _rejected(checkpoint_id: int, where: str) -> SnapshotError:
    return SnapshotError(
        f"checkpoint {checkpoint_id} was rejected, or came after one that was",
        where=where,
        cause="what a rejected checkpoint holds must never be committed",
        remedy="Restore the latest, which is in front of it, or another (`tidegate checkpoints`)",
    )


def check_drained(point: RestorePoint, spec: Spec, drained_operators: Sequence[str]) -> None:
    """Refuse a snapshot whose drain made operators fire early, unless the submission allows it (S7.5).

    Args:
        drained_operators: uid and kind of each.

    Raises:
        SnapshotError: names the operators.
    """
    allowed = spec.restore is not None and spec.restore.allow_drained
    if drained_operators and not point.commit_only and not allowed:
        raise SnapshotError(
            f"snapshot {point.location} was taken by a drain",
            where=f"job {spec.job_id}, operators {', '.join(drained_operators)}",
            cause="their input had not ended: open windows fired early and would emit again, joins took a side in part",
            remedy="Restore an earlier snapshot, or set allow_drained to accept that",
        )


def end_status(decisions: Sequence[Decision], spec_number: int) -> tuple[str, Mapping[str, Any]] | None:
    """Status and data with which submission `spec_number` came to its end: FINISHED, STOPPED or CANCELED; None: it may
    run. One that failed may be tried again. A rejection that was to stop it is its end, though its driver died
    before it said so (S7.8), or answered: then the data tell the answer, as `rejected`."""
    own = [e for e in entries_by_submission(decisions) if e.spec == spec_number]
    told = [e.data for e in own if e.kind == "status"]
    if told and told[-1]["status"] in FINAL_STATUSES:
        return told[-1]["status"], {name: value for name, value in told[-1].items() if name != "status"}
    stopped = next((e.data for e in own if e.kind == "reject" and e.data["then"] == "stop"), None)
    if stopped is None:
        return None
    n = stopped["checkpoint_id"]
    rejected = {"checkpoint_id": n, "command": stopped.get("command")}
    return "STOPPED", {"reason": rejection_text(n, stopped["by"], stopped.get("reason", "")), "rejected": rejected}


def rejection_text(checkpoint_id: int, by: str, reason: str) -> str:
    """Why a job stopped, or goes back. Args: reason: in the words of who rejected; may be empty."""
    return f"checkpoint {checkpoint_id} was rejected by {by}" + (f": {reason}" if reason else "")


def completed_snapshots(
    decisions: Sequence[Decision],
    existing: set[str],
    taken_back: Collection[int] = (),
    claimed: Collection[str] = (),
) -> list[CompletedCheckpoint]:
    """Completed snapshots whose folders are still there, oldest first.

    Args:
        existing: locations of those that the job owns.
        taken_back: ids of those that are no restore points any more (S9.3).
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
        and (d.data["path"] in existing or (d.data["kind"] in SAVEPOINT_KINDS and d.data["path"] not in claimed))
    ]


def last_committed(decisions: Sequence[Decision], taken_back: Collection[int] = ()) -> int | None:
    """The newest checkpoint whose commits are known to be done, and were not taken back since."""
    ids = [
        d.data["checkpoint_id"]
        for d in decisions
        if d.kind == "committed" and d.data["checkpoint_id"] not in taken_back
    ]
    return ids[-1] if ids else None
