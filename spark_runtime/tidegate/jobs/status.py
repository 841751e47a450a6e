"""What a job is doing, derived from its submissions, its decision log and its driver's hint. Pure; nothing of it is
stored."""

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

__all__ = [
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
    """Status of a job. CREATED: submitted, no driver has begun yet."""

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
        """Whether nothing more happens under this submission."""
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
        uid: of the source.
        boundedness: "bounded", "unbounded", or "unknown" while no hint has it.
        records: read so far, all subtasks, since the run began; None: not counted (batch mode), or no hint has it.
        end_of_data: all of it has been read, and every subtask has passed its end on.
        played_all: a replay has played everything once, though the source stays open.
        watermark_us: event time, microseconds since the epoch; None: none yet.
        details: whatever else the source tells.
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
    """The last failure of the current submission: its root cause.

    Attributes:
        message: one line.
        operator: uid, where one is concerned.
        subtask: index, where one is concerned.
        traceback: of the user's code, where there is one.
        at: time.
        code: class of the error, as `TidegateError.code`; empty when a user function or a slot failed.
        recovered: the job has run since.
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
    """A job as of one look at its directory.

    Attributes:
        job_id: of the job.
        status: see `JobStatus`.
        reason: what the driver said with that status.
        spec_number: current submission.
        generation: current reign, 0 before the first.
        run_id: current attempt, "" when none is known.
        restarts: of the current submission.
        checkpoints: all snapshots ever claimed, oldest first.
        sources: by uid.
        failure: last one of the current submission, also when the job has recovered since.
        watermark_us: of the whole job, event time in microseconds since the epoch.
        heartbeat: the driver's counter, None without a hint of the current reign.
        hint_generation: reign of the hint used, where that is the current one.
        driver_generation: newest reign that ran the current submission, whose hint counts; 0: none has. One that only
            commits ran nothing: what the one before it told of sources stays.
        slots_registered: free or taken slots the driver has counted.
        slots_needed: slots the job needs.
        stop: {"outcome", "mode", "checkpoint_id", "path"} of the stop that ended the job, or was cut short by its end
            (`stop_outcomes`); with outcome "commits_pending" also "uncommitted", ids of checkpoints; of one whose time
            was up also "held_up_by" and "reason", and "asked_mode" when a second try ended it.
        last_decision: number of the newest log entry, 0 when there is none.
        latest_recovery_point: what a restore of "latest" starts from (S2.4, S9.3): the newest recovery point that
            submission `followed` completed, else the snapshot it was itself restored from.
        restored: the snapshot that the current submission starts from; None: it starts fresh.
        followed: the submission that a restore goes on from: the newest, but for those that came to nothing, since they
            were refused or never had a driver.
        restored_from: folder of the snapshot that the newest run of the current submission began from; None: it began
            fresh, or none has begun.
        restored_runs: runs, of all submissions, that began from a snapshot.
        refused_requests: requests for snapshots that were refused since the current run began, by code.
        waiting: checkpoints that wait for a verdict of the commit gate, oldest first (S7.8).
        uncommitted: those, and what is approved and not committed yet.
        counters: what operators counted since the current run began: uid -> name -> number, such as `late_dropped` and
            `processing_time_dropped`.
        sources_paused: the job runs, and reads nothing because `max_uncommitted_checkpoints` wait.
        waits_for_deletions: retired checkpoints that the store has not deleted, while no new checkpoint starts because
            there are so many (S2.3); else 0.
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
        """Nothing more happens under this submission."""
        return self.status.is_terminal

    @property
    def is_active(self) -> bool:
        """A driver has begun and not ended, dead or alive."""
        return not self.is_terminal and self.status is not JobStatus.CREATED

    def checkpoint(self, checkpoint_id: int) -> CheckpointView | None:
        """The snapshot of this id."""
        return next((c for c in self.checkpoints if c.checkpoint_id == checkpoint_id), None)

    def source(self, uid: str) -> SourceView | None:
        """The source of this uid."""
        return next((source for source in self.sources if source.uid == uid), None)


def derive(specs: Sequence[Spec], decisions: Sequence[Decision], hint: StatusHint | None) -> JobView:
    """The view of a job.

    Args:
        specs: its submissions, ascending; at least one.
        decisions: its log, oldest first.
        hint: of the newest generation that ran the job; ignored when it is of another one.
    """
    return with_hint(derive_durable(specs, decisions), hint)


def derive_durable(specs: Sequence[Spec], decisions: Sequence[Decision]) -> JobView:
    """The part of the view that submissions and log alone tell. Takes time in proportion to the log; who looks often
    makes it anew only when one of the two has grown, and adds the hint of the moment (`with_hint`)."""
    assert specs, "a job has a submission"
    spec = specs[-1]
    entries = entries_by_submission(decisions)
    current = [entry for entry in entries if entry.spec == spec.number]
    status, status_data = _status(current)
    views = checkpoint_views(entries, ended=status.is_terminal)
    followed = next_submission_that_ran(spec.number + 1, may_have_run(entries))
    verdicts = verdicts_from_entries(specs, entries, views, followed)
    views = mark_committed_by_restores(mark_verdicts(views, verdicts), specs, entries)
    views = mark_rewound(views, rewound_checkpoints(specs, entries))
    points = RecoveryPoints(specs, entries, views)
    most = _optional_int(spec.options.get("max_uncommitted_checkpoints"))
    full = verdicts.gated and most is not None and len(verdicts.waiting) >= most
    ended = points.ended_before(spec.number) | {str(e.data["source"]) for e in current if e.kind == "end_of_data"}
    return JobView(
        job_id=spec.job_id,
        status=status,
        reason=str(status_data.get("reason") or ""),
        spec_number=spec.number,
        generation=decisions[-1].generation if decisions else 0,
        run_id="",
        restarts=sum(1 for e in current if e.kind == "status" and e.data.get("status") == JobStatus.RESTARTING),
        checkpoints=views,
        sources=_sources(ended, {}),
        failure=_failure(current),
        watermark_us=None,
        heartbeat=None,
        hint_generation=None,
        slots_registered=None,
        slots_needed=None,
        stop=status_data.get("stop"),
        last_decision=decisions[-1].number if decisions else 0,
        latest_recovery_point=points.latest(followed),
        restored=points.restored(spec.number),
        followed=followed,
        restored_from=_restored_from(current),
        restored_runs=sum(1 for e in entries if e.kind == "status" and e.data.get("restored_from")),
        waiting=verdicts.waiting,
        uncommitted=verdicts.uncommitted,
        sources_paused=full and status is JobStatus.RUNNING,
        driver_generation=max((e.decision.generation for e in current if _starts_running(e)), default=0),
    )


def with_hint(view: JobView, hint: StatusHint | None) -> JobView:
    """A view of `derive_durable` with what the driver tells of itself; unchanged when the hint is of another reign than
    `driver_generation`. Behind a fence that only commits it is no sign of life."""
    if hint is None or hint.generation != view.driver_generation:
        return view
    told = hint.data
    reigns = hint.generation == view.generation
    return replace(
        view,
        run_id=hint.run_id,
        restarts=_int(told.get("restarts"), view.restarts),
        sources=_sources({source.uid for source in view.sources}, told),
        watermark_us=_optional_int(told.get("watermark_us")),
        heartbeat=hint.heartbeat if reigns else None,
        hint_generation=hint.generation if reigns else None,
        slots_registered=_optional_int(told.get("slots_registered")),
        slots_needed=_optional_int(told.get("slots_needed")),
        refused_requests=_counts(told.get("refused_requests")),
        counters=_counters(told.get("counters")),
        waits_for_deletions=0 if view.is_terminal else _int(told.get("waits_for_deletions"), 0),
    )


def _status(current: Sequence[LogEntry]) -> tuple[JobStatus, Mapping[str, Any]]:
    """Status and its entry's data. After a later fence, before its driver says anything: RESTARTING."""
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
    """Every failure with its submission, oldest first."""
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


def _sources(ended: Collection[str], told: Mapping[str, Any]) -> tuple[SourceView, ...]:
    """Sources that the hint or the log knows. That one has ended is true when either says so, or when the snapshot that
    the submission started from was taken after its end."""
    hints = told.get("sources")
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
