"""The history of a job's snapshots, and the recovery points for restores, derived from the decision log (S2.4, S2.5,
S9.3). Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tidegate.clock import elapsed_ms
from tidegate.jobs.history.submissions import LogEntry, entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.records import Decision, RestoreFrom, Spec

RECOVERY_KINDS = frozenset({"checkpoint", "final", "stop-savepoint"})
"""Kinds of snapshots that are recovery points when completed. An intermediate savepoint is not one (S2.4)."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A claimed snapshot.

    Attributes:
        checkpoint_id: id of the snapshot, never used twice in the life of a job; 0: a snapshot from outside the job
            whose id is unknown.
        kind: "checkpoint", "savepoint", "stop-savepoint" or "final".
        status: "pending", "completed" or "aborted".
        path: folder, relative to the root, or a URL.
        generation: generation that claimed it.
        triggered_at: time.
        completed_at: time of completion or abort.
        duration_ms: time from trigger to completion or abort.
        reason: why it was aborted.
        code: code of the abort, for programs, as the driver recorded it (docs/job-directory.md), or "driver_replaced"
            or "job_ended"; "" if it was not aborted, or an older version recorded no code.
        committed: the output that it covers is committed.
        metrics: metrics that the driver recorded (S2.5).
        spec: submission that took it.
        verdict: verdict of the commit gate: "waiting", "approved", "rejected" or "quarantined" (rejected; the job
            continues from it without its output); "": it needs no verdict (S7.8).
        taken_back: a rewind deleted its committed output, so it can no longer be restored (S9.3).
        watermark_us: a watermark that the whole job had passed at the trigger, microseconds since the epoch. Everything
            before it is in the snapshot, including its output. None: no such watermark was known.
        by: name of the requester, for readers; "": the job itself.
        sinks: uids of the two-phase-commit sinks with output to commit; (): there is nothing to commit.
        readable_until: time until which its sources can continue from it, as known at its completion; None: no limit
            is known. It cannot be restored later, for example because a topic has deleted the records.
        deleted: its files do not exist any more, so it cannot be restored. The log does not record this: it is only
            set in the views of `jobs.client.snapshot_presence`.
        settled_by, committed_by: number of the log entry that completed or aborted it, and of the entry that records
            the commit; 0: there is none.
    """

    checkpoint_id: int
    kind: str
    status: Literal["pending", "completed", "aborted"]
    path: str
    generation: int
    triggered_at: str = ""
    completed_at: str | None = None
    duration_ms: int | None = None
    reason: str | None = None
    code: str = ""
    committed: bool = False
    metrics: Mapping[str, Any] = field(default_factory=dict)
    spec: int = 0
    verdict: Literal["", "waiting", "approved", "rejected", "quarantined"] = ""
    taken_back: bool = False
    watermark_us: int | None = None
    by: str = ""
    sinks: tuple[str, ...] = ()
    readable_until: str | None = None
    deleted: bool = False
    settled_by: int = 0
    committed_by: int = 0

    @property
    def is_recovery_point(self) -> bool:
        """Return whether it is completed and has a kind from which a recovery may start (S2.4)."""
        return self.status == "completed" and self.kind in RECOVERY_KINDS

    @property
    def is_published(self) -> bool:
        """Return whether it is a recovery point whose output is visible in the sinks and will stay visible."""
        settled = self.committed or not (self.sinks or self.verdict)
        return self.is_recovery_point and settled and not self.taken_back and self.verdict in ("", "approved")


def next_checkpoint_id(decisions: Sequence[Decision]) -> int:
    """Return the id of the next claim: one more than any id of the log, also of abandoned timelines (S1.4)."""
    return 1 + max((d.data["checkpoint_id"] for d in decisions if d.kind == "claim"), default=0)


def checkpoint_views(entries: Sequence[LogEntry], *, ended: bool) -> tuple[CheckpointView, ...]:
    """Return every claimed snapshot, oldest first.

    Args:
        entries: the whole log.
        ended: the job has a terminal status, so pending snapshots will never complete.
    """
    done: list[CheckpointView] = []
    views: dict[int, CheckpointView] = {}  # snapshots that a later entry may change; few, even in a long log
    for entry in entries:
        match entry.kind:
            case "fence":
                reason = f"generation {entry.decision.generation} took over"
                done += _abort_pending(views, "driver_replaced", reason, entry.decision.at)
            case "claim":
                view = _claimed(entry)
                views[view.checkpoint_id] = view
            case "complete" | "abort":
                pending = views.get(entry.data["checkpoint_id"])
                if pending is not None and pending.status == "pending":
                    views[pending.checkpoint_id] = settled = _settled(pending, entry)
                    # A "committed" entry covers no aborted snapshot and no
                    # savepoint without stop, so that these cannot change any more.
                    if settled.status == "aborted" or settled.kind == "savepoint":
                        done.append(views.pop(settled.checkpoint_id))
            case "committed":
                done += _mark_committed(views, entry)
    if ended:
        done += _abort_pending(views, "job_ended", "the job ended", None)
    return tuple(sorted([*done, *views.values()], key=lambda view: view.checkpoint_id))


def _claimed(entry: LogEntry) -> CheckpointView:
    data = entry.data
    return CheckpointView(
        checkpoint_id=data["checkpoint_id"],
        kind=data["kind"],
        status="pending",
        path=data["path"],
        generation=entry.decision.generation,
        triggered_at=data.get("triggered_at") or entry.decision.at,
        spec=entry.spec,
        watermark_us=data.get("watermark_us"),
        by=str(data.get("by") or ""),
    )


def _settled(pending: CheckpointView, entry: LogEntry) -> CheckpointView:
    metrics: Mapping[str, Any] = entry.data.get("metrics") or {}
    measured_ms = metrics.get("duration_ms")
    if isinstance(measured_ms, int | float):
        duration_ms: int | None = round(measured_ms)
    else:
        duration_ms = elapsed_ms(pending.triggered_at, entry.decision.at)
    done = entry.kind == "complete"
    return replace(
        pending,
        status="completed" if done else "aborted",
        kind=entry.data.get("kind", pending.kind),
        path=entry.data.get("path", pending.path),
        completed_at=entry.decision.at,
        duration_ms=duration_ms,
        reason=None if done else str(entry.data.get("reason") or ""),
        code="" if done else str(entry.data.get("code") or ""),
        metrics=metrics,
        sinks=tuple(sorted(entry.data.get("sinks") or ())),
        readable_until=entry.data.get("readable_until"),
        settled_by=entry.decision.number,
    )


def _mark_committed(views: dict[int, CheckpointView], entry: LogEntry) -> list[CheckpointView]:
    """Mark the snapshots that a "committed n" entry covers: n, and earlier completed ones of its submission (S7.4).

    Removes them from `views`.
    """
    newest = entry.data["checkpoint_id"]
    spec = views[newest].spec if newest in views else entry.spec
    covered = [
        view.checkpoint_id
        for view in views.values()
        if view.status == "completed"
        and (view.checkpoint_id == newest or (view.checkpoint_id < newest and view.spec == spec))
    ]
    by = entry.decision.number
    return [replace(views.pop(checkpoint_id), committed=True, committed_by=by) for checkpoint_id in covered]


def _abort_pending(views: dict[int, CheckpointView], code: str, reason: str, at: str | None) -> list[CheckpointView]:
    """Mark all pending snapshots as aborted. Removes them from `views`."""
    pending = [view.checkpoint_id for view in views.values() if view.status == "pending"]
    return [
        replace(views.pop(checkpoint_id), status="aborted", reason=reason, code=code, completed_at=at)
        for checkpoint_id in pending
    ]


def named_snapshots(decisions: Sequence[Decision], specs: Sequence[Spec], spec_number: int) -> frozenset[str]:
    """Return the folders that submission `spec_number` and later submissions start from.

    They name a folder, or start from the latest recovery point of their line.
    """
    entries = entries_by_submission(decisions)
    points = RecoveryPoints(specs, entries, checkpoint_views(entries, ended=False))
    latest = (points.latest(spec.number) for spec in specs if spec.number >= spec_number)
    return frozenset(point.path for point in latest if point is not None)


class RecoveryPoints:
    """The snapshots from which submissions may be restored, by the line of submissions that restored each other (S9.3).

    Attributes:
        rejected: ids of snapshots that can no longer be restored: those that a verdict rejected, later ones of the same
            line, and all snapshots of submissions restored from these (S7.8).
    """

    def __init__(self, specs: Sequence[Spec], entries: Sequence[LogEntry], views: Sequence[CheckpointView]) -> None:
        self._specs = {spec.number: spec for spec in specs}
        self._entries = entries
        self._views = views
        self._ran = may_have_run(entries)
        self._points: dict[int, list[CheckpointView]] = {}
        for view in views:
            if view.is_recovery_point:
                self._points.setdefault(view.spec, []).append(view)
        self.rejected: frozenset[int] = frozenset()
        for entry in entries:
            if entry.kind == "reject" and entry.data.get("then") != "quarantine":
                self.rejected |= self._gone_with(entry)

    def latest(self, spec_number: int) -> CheckpointView | None:
        """Return the newest recovery point of submission `spec_number`, or else the snapshot it was restored from.

        None: it started without a snapshot and has completed none. Snapshots of abandoned timelines are ignored.
        """
        return self._newest(spec_number, None)

    def restored(self, spec_number: int) -> CheckpointView | None:
        """Return the snapshot that submission `spec_number` starts from; None: it starts without one, or it is missing.

        If that snapshot has been rejected since, return the newest one before it.
        """
        return self._newest(spec_number, 0)

    def _newest(self, number: int, below: int | None) -> CheckpointView | None:
        """Return the newest point of submission `number` or its ancestors; its own need an id less than `below`."""
        while number in self._specs:
            own = [
                view
                for view in self._points.get(number, ())
                if view.checkpoint_id not in self.rejected and (below is None or view.checkpoint_id < below)
            ]
            if own:
                return own[-1]
            restore = self._specs[number].restore
            if restore is None:
                return None
            # Submissions that never ran have taken no snapshot and changed nothing, so that they are skipped.
            number, below = next_submission_that_ran(number, self._ran), None
            if restore.kind != "latest":
                named = self.find(restore)
                if named is None or named.checkpoint_id not in self.rejected:
                    return named
                number, below = named.spec, named.checkpoint_id
        return None

    def lineage(self, spec_number: int, newest: int | None = None) -> dict[int, int]:
        """Return the submissions from which the state of `spec_number` comes, itself included, each with the newest id
        that is part of this state. `newest`: as of the snapshot with this id; None: as of now."""
        line = {spec_number: sys.maxsize if newest is None else newest}
        point = self.restored(spec_number)
        while point is not None and point.spec and point.spec not in line:
            line[point.spec] = point.checkpoint_id
            point = self.restored(point.spec)
        return line

    def _gone_with(self, reject: LogEntry) -> set[int]:
        """Return the ids that one rejection invalidates. These were claimed before the verdict, and are the rejected or
        newer ones of its submission, or belong to a submission that was restored from one of these."""
        gone: set[int] = set()
        first = reject.data["checkpoint_id"]
        before = reject.decision.number
        claimed = {e.data["checkpoint_id"] for e in self._entries if e.kind == "claim" and e.decision.number < before}
        of_spec = next((view.spec for view in self._views if view.checkpoint_id == first), None)
        # Ascending: a submission is restored from an earlier one, whose rejected snapshots are then already in `gone`.
        for number in sorted(self._specs):
            own = {v.checkpoint_id for v in self._views if v.spec == number and v.checkpoint_id in claimed}
            origin = self.restored(number)
            if origin is not None and origin.checkpoint_id in gone:
                gone |= own
            elif number == of_spec:
                gone |= {checkpoint_id for checkpoint_id in own if checkpoint_id >= first}
        return gone

    def find(self, restore: RestoreFrom) -> CheckpointView | None:
        """Return the snapshot that `restore` names by path or id. A path that the log does not contain is external."""
        for view in reversed(self._views):
            known = (
                view.path == restore.path if restore.path is not None else view.checkpoint_id == restore.checkpoint_id
            )
            if known and view.status == "completed":
                return view
        if restore.path is None:
            return None
        return CheckpointView(restore.checkpoint_id or 0, restore.kind, "completed", restore.path, generation=0)

    def ended_before(self, spec_number: int) -> frozenset[str]:
        """Return the sources that had ended when the snapshot that `spec_number` starts from was claimed."""
        ended: set[str] = set()
        point, descendant = self.restored(spec_number), spec_number
        while point is not None and 0 < point.spec < descendant:
            claim = self._claim_number(point)
            ended |= {
                str(entry.data["source"])
                for entry in self._entries
                if entry.kind == "end_of_data" and entry.spec == point.spec and entry.decision.number < claim
            }
            descendant = point.spec
            point = self.restored(descendant)
        return frozenset(ended)

    def _claim_number(self, point: CheckpointView) -> int:
        claims = (e for e in self._entries if e.kind == "claim" and e.data["checkpoint_id"] == point.checkpoint_id)
        return next(claim.decision.number for claim in claims)
