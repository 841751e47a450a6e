"""Where a run starts from: the restore point of this submission, chosen from the decision log alone (S9.3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.contract.errors import SnapshotError
from tidegate.contract.records import Decision, Spec
from tidegate.coordinator.retention import Completed


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


def choose_restore_point(decisions: Sequence[Decision], spec: Spec) -> RestorePoint | None:
    """The newest recovery point completed by this submission, else what the submission names, else None: fresh.

    Raises SnapshotError when the submission names something the log does not hold.
    """
    newest: Decision | None = None
    for decision in _entries_of(decisions, spec.number):
        if decision.kind == "complete" and decision.data["kind"] != "savepoint":
            newest = decision
    if newest is not None:
        stopping = newest.data["kind"] == "stop-savepoint"
        stop_mode = newest.data.get("stop") if stopping else None
        return _point(newest, commit_only=stopping, stop_mode=stop_mode)
    wanted = spec.restore
    if wanted is None:
        return None
    completes = [d for d in decisions if d.kind == "complete"]
    if wanted.path is not None:
        for decision in completes:
            if decision.data["path"] == wanted.path:
                return _point(decision)
        return RestorePoint(wanted.path, wanted.checkpoint_id, 0)
    if wanted.checkpoint_id is not None:
        found = [d for d in completes if d.data["checkpoint_id"] == wanted.checkpoint_id]
    else:
        found = [d for d in completes if d.data["kind"] != "savepoint"]
    if not found:
        what = f"checkpoint {wanted.checkpoint_id}" if wanted.checkpoint_id is not None else "any completed checkpoint"
        raise SnapshotError(
            f"there is no record of {what}",
            where=f"job {spec.job_id}",
            remedy="`tidegate checkpoints` lists what can be restored",
        )
    return _point(found[-1])


def completed_after(decisions: Sequence[Decision], point: RestorePoint, spec: Spec) -> list[int]:
    """Ids of recovery points newer than `point` that earlier submissions completed, and so permitted to commit
    (S9.3)."""
    if point.checkpoint_id is None:
        return []
    earlier: list[int] = []
    submission = 0
    for decision in decisions:
        if decision.kind == "fence":
            submission = decision.data["spec"]
        permits = decision.kind == "complete" and decision.data["kind"] != "savepoint"
        if permits and submission < spec.number and decision.data["checkpoint_id"] > point.checkpoint_id:
            earlier.append(decision.data["checkpoint_id"])
    return earlier


def completed_snapshots(decisions: Sequence[Decision], existing: set[str]) -> list[Completed]:
    """Completed snapshots whose folders are still there, oldest first. Args: existing: their locations."""
    return [
        Completed(d.data["checkpoint_id"], d.data["kind"], d.data["path"])
        for d in decisions
        if d.kind == "complete" and (d.data["path"] in existing or d.data["kind"] in ("savepoint", "stop-savepoint"))
    ]


def last_committed(decisions: Sequence[Decision]) -> int | None:
    """The newest checkpoint whose commits are known to be done."""
    ids = [d.data["checkpoint_id"] for d in decisions if d.kind == "committed"]
    return ids[-1] if ids else None


def _entries_of(decisions: Sequence[Decision], spec_number: int) -> list[Decision]:
    out: list[Decision] = []
    submission = 0
    for decision in decisions:
        if decision.kind == "fence":
            submission = decision.data["spec"]
        if submission == spec_number:
            out.append(decision)
    return out


def _point(decision: Decision, *, commit_only: bool = False, stop_mode: str | None = None) -> RestorePoint:
    data = decision.data
    return RestorePoint(data["path"], data["checkpoint_id"], decision.number, commit_only, stop_mode)
