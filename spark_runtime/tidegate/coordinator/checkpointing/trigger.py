"""Decide whether a snapshot request may start now (S1.2, S1.3). Pure functions of a small frozen view of the run.

A request is checked twice. On arrival, `admit_request` refuses requests that can never start. Then, after every
change, `decide_start` starts the waiting request, lets it wait, refuses it, or drops it.

Checks run in the order of S1.2: coordinator shut down; periodic while the scheduler is off; periodic while one is
queued; (queue full: `RequestQueue.add`); too many pending; too soon after the last completion; then the states of
subtasks (S1.3). With a commit gate, too many uncommitted checkpoints also prevent a start (S7.8). Checkpoints also wait
while too many retired checkpoints are not deleted (S2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.coordinator.events import RefusalCode, SnapshotRequest

WaitCode = Literal[
    "claiming", "ending", "max_concurrent", "deletions", "uncommitted", "min_pause", "not_all_required_subtasks_running"
]
FORCED_KINDS = ("savepoint", "stop-savepoint")
"""Kinds that start regardless of the concurrency limit and the minimum pause (S1.2)."""

_MESSAGES: dict[RefusalCode, str] = {
    "shut_down": "the job is not running",
    "job_ended": "the job has stopped, and this run only commits its remaining output",
    "checkpointing_off": "checkpoint_mode is off, so this job takes no snapshots. Cancel the job, or submit it again "
    "with checkpoint_mode exactly_once or at_least_once",
    "periodic_off": "periodic checkpoints are off",
    "periodic_queued": "another periodic checkpoint is already waiting",
    "too_many_uncommitted": "as many checkpoints wait for approval or rejection as max_uncommitted_checkpoints allows. "
    "Approve or reject one of them, then repeat the request",
    "not_all_required_subtasks_running": "some of the subtasks that the snapshot needs are not running. Repeat the "
    "request later",
}


@dataclass(frozen=True, slots=True)
class StartSnapshot:
    """Claim a checkpoint id now."""


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """Wait. `until_ms`: time of the next check, if only the time has to pass."""

    code: WaitCode
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Refuse the request, and answer its sender if one waits."""

    code: RefusalCode
    message: str


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Discard the request without an error.

    Two requests are dropped: a final snapshot while a subtask still reads, and a periodic one while sources are paused.
    The latter would start after the verdict that resumes the sources, and contain nothing new (S7.8).
    """


StartDecision: TypeAlias = StartSnapshot | KeepWaiting | RefuseRequest | DropRequest


@dataclass(frozen=True, slots=True)
class TriggerConditions:
    """The state of the run that decides about requests.

    Attributes:
        shut_down: the run is over.
        commits_only: the run only commits a stop-savepoint (S7.7).
        checkpointing_off: `checkpoint_mode="off"`.
        periodic_on: the job has reached RUNNING and is not stopping (S1.1).
        periodic_queued: a periodic request is already waiting.
        claiming: a checkpoint id is being claimed in the log.
        ending: a snapshot that ends every subtask is pending or complete.
        only_final: the snapshot of `ending` is a final one and not complete. A savepoint may start next to it, and a
            stop-savepoint replaces it (S7.7).
        all_up: all subtasks have started.
        all_ended: no subtask reads data any more.
        deletes_too_slowly: too many retired checkpoints wait for their deletion, so that new checkpoints have to wait.
        pending: number of pending snapshots.
        max_concurrent: limit for `pending`.
        pause_ends_ms: end of `min_pause_between_checkpoints` after the last completion; None: no snapshot has
            completed.
        uncommitted: number of checkpoints that wait for a verdict of the commit gate.
        max_uncommitted: limit for `uncommitted`; None: there is no gate (S7.8).
    """

    shut_down: bool = False
    commits_only: bool = False
    checkpointing_off: bool = False
    periodic_on: bool = True
    periodic_queued: bool = False
    claiming: bool = False
    ending: bool = False
    only_final: bool = False
    all_up: bool = True
    all_ended: bool = False
    deletes_too_slowly: bool = False
    pending: int = 0
    max_concurrent: int = 1
    pause_ends_ms: int | None = None
    uncommitted: int = 0
    max_uncommitted: int | None = None


def admit_request(request: SnapshotRequest, situation: TriggerConditions) -> RefuseRequest | None:
    """Return the reason to refuse a new request, or None if it may queue."""
    if situation.shut_down:
        return _refuse("shut_down")
    if situation.commits_only:
        return _refuse("job_ended")
    if situation.checkpointing_off:
        return _refuse("checkpointing_off")
    if request.periodic and not situation.periodic_on:
        return _refuse("periodic_off")
    if request.periodic and situation.periodic_queued:
        return _refuse("periodic_queued")
    return None


def decide_start(request: SnapshotRequest, situation: TriggerConditions, now_ms: int) -> StartDecision:
    """Decide what happens to a waiting request now."""
    if request.kind == "final" and not situation.all_ended:
        return DropRequest()
    if situation.claiming:
        return KeepWaiting("claiming")
    if situation.ending and not (situation.only_final and request.kind in FORCED_KINDS):
        return KeepWaiting("ending")
    if request.kind not in FORCED_KINDS and situation.pending >= situation.max_concurrent:
        return KeepWaiting("max_concurrent")
    # These two limits apply to periodic and user checkpoints only. A
    # stop or a final snapshot that waited for them could block the end.
    if request.kind == "checkpoint" and situation.deletes_too_slowly:
        return KeepWaiting("deletions")
    if request.kind == "checkpoint" and situation.max_uncommitted is not None:
        if situation.uncommitted >= situation.max_uncommitted and not request.periodic:
            return _refuse("too_many_uncommitted")
        # Pending ones count too, because a checkpoint waits for a verdict when it completes.
        if situation.uncommitted + situation.pending >= situation.max_uncommitted:
            return DropRequest() if request.periodic else KeepWaiting("uncommitted")
    if request.periodic and situation.pause_ends_ms is not None and now_ms < situation.pause_ends_ms:
        return KeepWaiting("min_pause", situation.pause_ends_ms)
    if not situation.all_up:
        code: Literal["not_all_required_subtasks_running"] = "not_all_required_subtasks_running"
        # The scheduler repeats a periodic request by itself. A user's request is kept until the subtasks run.
        return _refuse(code) if request.periodic else KeepWaiting(code)
    return StartSnapshot()


def _refuse(code: RefusalCode) -> RefuseRequest:
    return RefuseRequest(code, _MESSAGES[code])
