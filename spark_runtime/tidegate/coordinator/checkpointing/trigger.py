"""May a request for a snapshot start now? (S1.2, S1.3) Pure functions of a small frozen view.

A request is judged twice. `admit`, when it comes, refuses what nothing could make true later. `judge`, each time
something has changed while it waits, lets it start, wait, or go. In the order of S1.2: coordinator shut down; periodic
while the scheduler is off; periodic while one is queued; (queue full: `RequestQueue.add`); too many pending; too soon
after the last completion; then the states of subtasks (S1.3). Behind a commit gate, besides: too many uncommitted
(S7.8). Checkpoints wait, besides, while too many retired ones are not deleted (S2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.coordinator.events import RefusalCode, SnapshotRequest

WaitCode = Literal[
    "claiming", "ending", "max_concurrent", "deletions", "uncommitted", "min_pause", "not_all_required_subtasks_running"
]
FORCED_KINDS = ("savepoint", "stop-savepoint")
"""Kinds that neither concurrency nor the pause holds up (S1.2)."""

_MESSAGES: dict[RefusalCode, str] = {
    "shut_down": "the job is not running any more",
    "job_ended": "the job has stopped and only commits what is left",
    "checkpointing_off": "checkpoint_mode is off: this job takes no snapshots. Cancel it, or submit it anew with "
    "checkpoint_mode exactly_once or at_least_once",
    "periodic_off": "the periodic scheduler is off",
    "periodic_queued": "a periodic checkpoint waits already",
    "too_many_uncommitted": "as many checkpoints wait for a verdict as max_uncommitted_checkpoints allows: approve or "
    "reject, then ask again",
    "not_all_required_subtasks_running": "not every subtask that has to take part runs",
}


@dataclass(frozen=True, slots=True)
class StartSnapshot:
    """Claim an id now."""


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """Not now. `until_ms`: when to ask again, where time alone decides."""

    code: WaitCode
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Never; answer it where somebody waits."""

    code: RefusalCode
    message: str


@dataclass(frozen=True, slots=True)
class DropRequest:
    """No longer wanted, by nobody's fault: a final snapshot while a subtask still reads; a periodic one while sources
    pause, which would start with the verdict that lets them read again, and hold nothing new (S7.8)."""


Verdict: TypeAlias = StartSnapshot | KeepWaiting | RefuseRequest | DropRequest


@dataclass(frozen=True, slots=True)
class TriggerConditions:
    """What requests are judged by.

    Attributes:
        shut_down: the run is over.
        commits_only: the run only commits a stop-savepoint (S7.7).
        checkpointing_off: `checkpoint_mode="off"`.
        periodic_on: the job has reached RUNNING and is not stopping (S1.1).
        periodic_queued: one waits already.
        claiming: an id is on its way to the log.
        ending: a snapshot that ends every subtask is on its way, or complete.
        only_final: that is a final one, and not complete: a savepoint starts beside it, a stop's in its place (S7.7).
        all_up: no subtask is still to come up.
        all_ended: nothing reads any more.
        deletes_too_slowly: so many retired checkpoints wait for their deletion that new ones have to wait for it.
        pending: snapshots on their way; at most `max_concurrent` of them.
        pause_ends_ms: when `min_pause_between_checkpoints` after the last completion is over; None: none completed.
        uncommitted: checkpoints that wait for a verdict of the commit gate; at most `max_uncommitted`, None: there is
            no gate (S7.8).
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
    """The pre-checks, in order; None: it may queue."""
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


def decide_start(request: SnapshotRequest, situation: TriggerConditions, now_ms: int) -> Verdict:
    """What becomes of a queued request now."""
    if request.kind == "final" and not situation.all_ended:
        return DropRequest()
    if situation.claiming:
        return KeepWaiting("claiming")
    if situation.ending and not (situation.only_final and request.kind in FORCED_KINDS):
        return KeepWaiting("ending")
    if request.kind not in FORCED_KINDS and situation.pending >= situation.max_concurrent:
        return KeepWaiting("max_concurrent")
    if request.kind == "checkpoint" and situation.deletes_too_slowly:
        return KeepWaiting("deletions")
    if request.kind == "checkpoint" and situation.max_uncommitted is not None:
        if situation.uncommitted >= situation.max_uncommitted and not request.periodic:
            return _refuse("too_many_uncommitted")
        if situation.uncommitted + situation.pending >= situation.max_uncommitted:
            return DropRequest() if request.periodic else KeepWaiting("uncommitted")
    if request.periodic and situation.pause_ends_ms is not None and now_ms < situation.pause_ends_ms:
        return KeepWaiting("min_pause", situation.pause_ends_ms)
    if not situation.all_up:
        code: Literal["not_all_required_subtasks_running"] = "not_all_required_subtasks_running"
        return _refuse(code) if request.periodic else KeepWaiting(code)
    return StartSnapshot()


def _refuse(code: RefusalCode) -> RefuseRequest:
    return RefuseRequest(code, _MESSAGES[code])
