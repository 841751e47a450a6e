"""The view of a job, derived from its submissions, its decision log and its driver's hint. Pure; no view is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tidegate.jobs.history.checkpoints import CheckpointView, RecoveryPoints, checkpoint_views, next_checkpoint_id
from tidegate.jobs.history.restore_commits import mark_committed_by_restores
from tidegate.jobs.history.rewinds import mark_rewound, rewound_checkpoints
from tidegate.jobs.history.statistics import CheckpointStatistics, checkpoint_statistics
from tidegate.jobs.history.submissions import LogEntry, entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.history.verdicts import mark_verdicts, verdicts_from_entries
from tidegate.jobs.records import Decision, Spec, StatusHint

OUTAGE = "outage"
"""Name of the outage that a source waits for, among the details of a `SourceView`: a mapping of `since`, `until` (None:
not limited) and `cause`."""

__all__ = [
    "OUTAGE",
    "CheckpointView",
    "FailureView",
    "JobStatus",
    "JobView",
    "RecoveryPoints",
    "SourceView",
    "derive",
    "derive_durable",
    "failure_views",
    "next_checkpoint_id",
    "with_hint",
]


class JobStatus(StrEnum):
    """Status of a job. CREATED: the job is submitted, and no driver has begun yet."""

    CREATED = "CREATED"
    WAITING_FOR_SLOTS = "WAITING_FOR_SLOTS"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    FINISHED_COMMIT_PENDING = "FINISHED_COMMIT_PENDING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing more happens under this submission."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        JobStatus.STOPPED,
        JobStatus.FINISHED,
        JobStatus.FINISHED_COMMIT_PENDING,
        JobStatus.CANCELED,
        JobStatus.FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source of the current submission.

    Attributes:
        uid: uid of the source.
        boundedness: "bounded", "unbounded", or "unknown" while no hint contains it.
        records: records that all subtasks have read since the run began; None: not counted (batch mode), or not in a
            hint.
        end_of_data: the source has read all its data, and every subtask has passed the end on.
        played_all: a replay source has emitted all its rows and stays open.
        watermark_us: event time, microseconds since the epoch; None: none yet.
        details: other values that the source reports.
    """

    uid: str
    boundedness: str = "unknown"
    records: int | None = None
    end_of_data: bool = False
    played_all: bool = False
    watermark_us: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureView:
    """A failure with its root cause.

    Attributes:
        message: error message, on one line.
        operator: uid of the operator; None when no operator is concerned.
        subtask: index of the subtask; None when no subtask is concerned.
        traceback: traceback of the user's code, if there is one.
        at: time.
        code: class of the error, as in `TidegateError.code`; empty when a user function or a slot failed.
        recovered: the job has run again since.
    """

    message: str
    operator: str | None = None
    subtask: int | None = None
    traceback: str | None = None
    at: str = ""
    code: str = ""
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at the time when its directory was read.

    Attributes:
        job_id: id of the job.
        status: see `JobStatus`.
        reason: reason that the driver recorded with the status.
        spec_number: number of the current submission.
        generation: current generation; 0 before the first.
        run_id: current run; "" when none is known.
        restarts: restarts of the current submission.
        checkpoints: all claimed snapshots, oldest first.
        sources: sources, ordered by uid.
        failure: last failure of the current submission, even if the job has recovered since.
        watermark_us: watermark of the whole job, event time in microseconds since the epoch.
        heartbeat: the driver's counter; None without a hint of the current generation.
        hint_generation: generation of the hint; None without a hint of the current generation.
        before_refusal: the ended job without its newest submissions, which were refused and changed nothing: the
            state that a user has, and that a restore continues. None: the newest submission was not refused, or the
            job had not ended before. See `settled`.
        driver_generation: newest generation that ran the current submission; only its hint is used. 0: none. A
            generation that only commits ran nothing: values of sources stay as the earlier generation reported them.
        slots_registered: free or occupied slots that the driver has counted.
        slots_needed: slots that the job needs.
        stop: {"outcome", "mode", "checkpoint_id", "path"} of the stop that ended the job, or that the job's end cut
            short (`stop_outcomes`). With outcome "commits_pending" also "uncommitted", ids of checkpoints. After a
            timeout also "held_up_by" and "reason", and "asked_mode" when a second attempt ended it.
        last_decision: number of the newest log entry; 0 when there is none.
        latest_recovery_point: snapshot that a restore of "latest" starts from (S2.4, S9.3): the newest recovery point
            of submission `followed`, or else the snapshot that `followed` was restored from.
        restored: snapshot that the current submission starts from; None: it starts without one.
        followed: submission that a restore continues: the newest, without submissions that were refused or never had a
            driver.
        restored_from: folder of the snapshot that the newest run of the current submission started from; None: that
            run started without a snapshot, or no run has started.
        restored_runs: number of runs, of all submissions, that started from a snapshot.
        refused_requests: snapshot requests that were refused since the current run began, by code.
        waiting: checkpoints that wait for a verdict of the commit gate, oldest first (S7.8).
        uncommitted: the waiting checkpoints, and approved ones that are not committed yet.
        counters: counts of operators since the current run began: uid -> name -> number, such as `late_dropped` and
            `processing_time_dropped`.
        sources_paused: the job runs, but reads nothing because `max_uncommitted_checkpoints` wait.
        waits_for_deletions: number of retired checkpoints that the store has not deleted yet, while they are so many
            that no new checkpoint starts (S2.3); else 0.
    """

    job_id: str
    status: JobStatus
    reason: str
    spec_number: int
    generation: int
    run_id: str
    restarts: int
    checkpoints: tuple[CheckpointView, ...]
    sources: tuple[SourceView, ...]
    failure: FailureView | None
    watermark_us: int | None
    heartbeat: int | None
    hint_generation: int | None
    slots_registered: int | None
    slots_needed: int | None
    stop: Mapping[str, Any] | None
    last_decision: int
    latest_recovery_point: CheckpointView | None
    restored: CheckpointView | None = None
    followed: int = 0
    restored_from: str | None = None
    restored_runs: int = 0
    refused_requests: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[int, ...] = ()
    uncommitted: tuple[int, ...] = ()
    sources_paused: bool = False
    waits_for_deletions: int = 0
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    driver_generation: int = 0
    before_refusal: JobView | None = None

    @property
    def settled(self) -> JobView:
        """The view of the job for users. A start that was refused before anything ran does not change the job, so
        this is then the view before it; `status` of this object shows what happened to the refused submission."""
        return self.before_refusal or self

    @property
    def completed(self) -> tuple[CheckpointView, ...]:
        """Completed snapshots of every kind, oldest first."""
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.status == "completed")

    @property
    def statistics(self) -> CheckpointStatistics:
        """Counts and figures of all snapshots (S2.5)."""
        return checkpoint_statistics(self.checkpoints, restored=self.restored_runs, refused=self.refused_requests)

    @property
    def latest_savepoint(self) -> CheckpointView | None:
        """The newest completed savepoint or stop-savepoint."""
        return next((c for c in reversed(self.completed) if c.kind in ("savepoint", "stop-savepoint")), None)

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing more happens under this submission."""
        return self.status.is_terminal

    @property
    def is_active(self) -> bool:
        """Return whether a driver has begun and has recorded no end. It may be dead or alive."""
        return not self.is_terminal and self.status is not JobStatus.CREATED

    def checkpoint(self, checkpoint_id: int) -> CheckpointView | None:
        """Return the snapshot with this id; None when there is none."""
        return next((c for c in self.checkpoints if c.checkpoint_id == checkpoint_id), None)

    def source(self, uid: str) -> SourceView | None:
        """Return the source with this uid; None when there is none."""
        return next((source for source in self.sources if source.uid == uid), None)


def derive(specs: Sequence[Spec], decisions: Sequence[Decision], hint: StatusHint | None) -> JobView:
    """Derive the view of a job.

    Args:
        specs: submissions of the job, ascending; at least one.
        decisions: the decision log, oldest first.
        hint: status hint of the newest generation that ran the job; a hint of another generation is ignored.
    """
    return with_hint(derive_durable(specs, decisions), hint)


def derive_durable(specs: Sequence[Spec], decisions: Sequence[Decision]) -> JobView:
    """Derive the part of the view that depends only on submissions and log.

    The time grows with the length of the log. Callers that poll derive it again only after one of the two has grown,
    and add the current hint with `with_hint`.
    """
    assert specs, "a job has a submission"
    spec = specs[-1]
    entries = entries_by_submission(decisions)
    current = [entry for entry in entries if entry.spec == spec.number]
    status, _ = _status(current)
    views = checkpoint_views(entries, ended=status.is_terminal)
    ran = may_have_run(entries)
    followed = next_submission_that_ran(spec.number + 1, ran)
    verdicts = verdicts_from_entries(specs, entries, views, followed)
    views = mark_committed_by_restores(mark_verdicts(views, verdicts), specs, entries)
    # Last, because a rewind takes back commits that the steps before it have marked.
    views = mark_rewound(views, rewound_checkpoints(specs, entries))
    points = RecoveryPoints(specs, entries, views)
    most = _optional_int(spec.options.get("max_uncommitted_checkpoints"))
    full = verdicts.gated and most is not None and len(verdicts.waiting) >= most
    view = JobView(
        job_id=spec.job_id,
        generation=decisions[-1].generation if decisions else 0,
        run_id="",
        checkpoints=views,
        watermark_us=None,
        heartbeat=None,
        hint_generation=None,
        slots_registered=None,
        slots_needed=None,
        last_decision=decisions[-1].number if decisions else 0,
        latest_recovery_point=points.latest(followed),
        followed=followed,
        restored_runs=sum(1 for e in entries if e.kind == "status" and e.data.get("restored_from")),
        waiting=verdicts.waiting,
        uncommitted=verdicts.uncommitted,
        sources_paused=full and status is JobStatus.RUNNING,
        **_of_submission(spec.number, entries, points),
    )
    if status.is_terminal and spec.number not in ran and followed in ran:
        before = replace(view, **_of_submission(followed, entries, points))
        return replace(view, before_refusal=before if before.is_terminal else None)
    return view


def _of_submission(number: int, entries: Sequence[LogEntry], points: RecoveryPoints) -> dict[str, Any]:
    """Return the fields of a view that concern one submission."""
    own = [entry for entry in entries if entry.spec == number]
    status, status_data = _status(own)
    ended = points.ended_before(number) | {str(e.data["source"]) for e in own if e.kind == "end_of_data"}
    return {
        "spec_number": number,
        "status": status,
        "reason": str(status_data.get("reason") or ""),
        "stop": status_data.get("stop"),
        "restarts": sum(1 for e in own if e.kind == "status" and e.data.get("status") == JobStatus.RESTARTING),
        "sources": _sources(ended, {}),
        "failure": _failure(own),
        "restored": points.restored(number),
        "restored_from": _restored_from(own),
        "driver_generation": max((e.decision.generation for e in own if _starts_running(e)), default=0),
    }


def with_hint(view: JobView, hint: StatusHint | None) -> JobView:
    """Add a driver's hint to a view of `derive_durable`. A hint of another generation than `driver_generation` is
    ignored. If a generation that only commits has begun since, the hint is not a sign of life."""
    if hint is None or hint.generation != view.driver_generation:
        return view
    data = hint.data
    is_current = hint.generation == view.generation
    return replace(
        view,
        run_id=hint.run_id,
        restarts=_int(data.get("restarts"), view.restarts),
        sources=_sources({source.uid for source in view.sources}, data),
        watermark_us=_optional_int(data.get("watermark_us")),
        heartbeat=hint.heartbeat if is_current else None,
        hint_generation=hint.generation if is_current else None,
        slots_registered=_optional_int(data.get("slots_registered")),
        slots_needed=_optional_int(data.get("slots_needed")),
        refused_requests=_counts(data.get("refused_requests")),
        counters=_counters(data.get("counters")),
        waits_for_deletions=0 if view.is_terminal else _int(data.get("waits_for_deletions"), 0),
    )


def _status(current: Sequence[LogEntry]) -> tuple[JobStatus, Mapping[str, Any]]:
    """Return the status and the data of its entry. After a later fence without a status entry: RESTARTING."""
    fences = 0
    status = JobStatus.CREATED
    data: Mapping[str, Any] = {}
    for entry in current:
        if _starts_running(entry):
            fences += 1
            status, data = (JobStatus.WAITING_FOR_SLOTS if fences == 1 else JobStatus.RESTARTING), {}
        elif entry.kind == "status":
            status, data = JobStatus(entry.data["status"]), entry.data
    return status, data


def _starts_running(entry: LogEntry) -> bool:
    return entry.kind == "fence" and not entry.data.get("only_commits")


def _restored_from(current: Sequence[LogEntry]) -> str | None:
    newest = next((e for e in reversed(current) if _has_started(e)), None)
    path = None if newest is None else newest.data.get("restored_from")
    return None if path is None else str(path)


def _has_started(entry: LogEntry) -> bool:
    return entry.kind == "status" and entry.data.get("status") == JobStatus.RUNNING


def failure_views(entries: Sequence[LogEntry]) -> tuple[tuple[int, FailureView], ...]:
    """Return every failure with its submission, oldest first."""
    started = {entry.spec: at for at, entry in enumerate(entries) if _has_started(entry)}
    return tuple(
        (
            entry.spec,
            FailureView(
                message=str(entry.data.get("message", "")),
                operator=entry.data.get("operator"),
                subtask=entry.data.get("subtask"),
                traceback=entry.data.get("traceback"),
                at=entry.decision.at,
                code=str(entry.data.get("code") or ""),
                recovered=started.get(entry.spec, -1) > at,
            ),
        )
        for at, entry in enumerate(entries)
        if entry.kind == "failure"
    )


def _failure(current: Sequence[LogEntry]) -> FailureView | None:
    return next((failure for _, failure in reversed(failure_views(current))), None)


def _sources(ended: Collection[str], hint_data: Mapping[str, Any]) -> tuple[SourceView, ...]:
    """Return the sources that the hint or the log contains.

    A source has ended if the hint or the log records its end, or if the snapshot that the submission started from was
    taken after the source's end.
    """
    hints = hint_data.get("sources")
    hints = hints if isinstance(hints, Mapping) else {}
    views: list[SourceView] = []
    for uid in sorted({*ended, *hints}):
        data: Mapping[str, Any] = hints.get(uid, {})
        views.append(
            SourceView(
                uid=uid,
                boundedness=str(data.get("boundedness", "unknown")),
                records=_int(data["records"], 0) if "records" in data else None,
                end_of_data=uid in ended or bool(data.get("end_of_data")),
                played_all=bool(data.get("played_all")),
                watermark_us=_optional_int(data.get("watermark_us")),
                details=data.get("details") or {},
            )
        )
    return tuple(views)


def _counts(value: object) -> Mapping[str, int]:
    return {str(k): _int(n, 0) for k, n in value.items()} if isinstance(value, Mapping) else {}


def _counters(value: object) -> Mapping[str, Mapping[str, int]]:
    return {str(uid): _counts(of) for uid, of in value.items()} if isinstance(value, Mapping) else {}


def _optional_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _int(value: object, default: int) -> int:
    number = _optional_int(value)
    return default if number is None else number
