"""The coordinator's input events and output actions. Frozen data without behaviour.

Some of them are messages of `channel.control.protocol`: messages of subtasks are events. The actions `Trigger`,
`Durable`, `PauseSources` and `LetFinish` are sent to every slot unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tidegate.channel.control.protocol import (
    Acknowledged,
    Durable,
    LetFinish,
    PauseSources,
    Subtask,
    SubtaskEvent,
    Trigger,
)
from tidegate.channel.elements import CheckpointKind, StopMode
from tidegate.jobs.history.verdicts import WithheldRange

RefusalCode = Literal[
    "shut_down",
    "job_ended",
    "checkpointing_off",
    "periodic_off",
    "periodic_queued",
    "too_many_requests",
    "not_all_required_subtasks_running",
    "stop_in_progress",
    "claim_failed",
    "too_many_uncommitted",
]
"""Why a request is refused (S1.2, S1.3)."""

AbortCode = Literal[
    "expired",
    "declined",
    "io",
    "subsumed",
    "subtask_finished",
    "alignment_aborted",
    "partially_finished",
    "job_stops",
    "job_ended",
    "shutdown",
    "stop_timeout",
]
"""Why a pending snapshot was aborted.

- `expired`, `declined`, `io`: failures. They count, except for savepoints (S2.2).
- `subsumed`: a newer snapshot completed.
- `subtask_finished`: a subtask finished before it could take part (S1.5).
- `alignment_aborted`: a subtask received a newer barrier or a cancel marker (S3.4).
- `partially_finished`: some but not all subtasks of an operator with union state have finished (S6.3).
- `job_stops`: a stop-savepoint completed first, or replaces a final snapshot.
- `job_ended`: all subtasks had finished.
- `shutdown`: the run is over.
- `stop_timeout`: the time of the stop was up (S7.7).
"""
Then = Literal["stop", "replay", "quarantine"]
"""Effect of a rejection on the job: it stops, restarts immediately from the snapshot before the rejected
checkpoint, or continues without the rejected output."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for one snapshot (S1.2).

    Attributes:
        kind: checkpoint, savepoint, stop-savepoint or final.
        periodic: sent by the periodic scheduler.
        request_id: the command that waits for the answer; None: nobody waits.
        stop: mode of the stop, for a stop-savepoint.
        path: parent folder of a savepoint; None: the default.
        timeout_ms: time that a stop has from command to end. Its savepoint does not expire sooner after its trigger.
        data_ended: a stop that is planned again, after its first trigger has ended the data.
        by: who sent the request, for display; "": the job itself.
    """

    kind: CheckpointKind
    periodic: bool = False
    request_id: str | None = None
    stop: StopMode | None = None
    path: str | None = None
    timeout_ms: int = 0
    data_ended: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A user's verdict on a checkpoint of the commit gate (S7.8).

    Attributes:
        request_id: the command that waits for the answer.
        approves: True: "commit <= `checkpoint_id`"; False: reject it and all later checkpoints.
        checkpoint_id: None: the newest checkpoint that waits; only for approvals.
        by: who gave the verdict, for display.
        then: what happens to the job after a rejection.
        reason: reason of a rejection, for display.
    """

    request_id: str
    approves: bool
    checkpoint_id: int | None
    by: str
    then: Then = "stop"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TimeOutStop:
    """The time of a stop is up (S7.7). Also an event.

    Attributes:
        request_id: the stop's command; None: any stop in progress.
        limit: the timeout of the stop, in words: "10 min".
        path, mode: folder and mode of the stop's savepoint, if an earlier run completed it.
        at_work: subtask -> uids of its operators that have not finished the requested work, as far as known.
    """

    request_id: str | None
    limit: str
    path: str | None = None
    mode: StopMode | None = None
    at_work: Mapping[Subtask, tuple[str, ...]] = field(default_factory=dict, compare=False)


RunRequest: TypeAlias = SnapshotRequest | Verdict | TimeOutStop
"""A request that a command passes to a run, or to the next run if none is active."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """A user or the scheduler requests a snapshot."""

    request: SnapshotRequest


@dataclass(frozen=True, slots=True)
class LocationReady:
    """The claim is durable and the storage location exists."""

    checkpoint_id: int
    path: str


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """The id could not be claimed, or the location could not be created."""

    reason: str


@dataclass(frozen=True, slots=True)
class CompletionDurable:
    """`_metadata` is written and "complete n" is in the log, as entry `log_number`."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class CompletionFailed:
    """`_metadata` or the log entry could not be written."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeletionsOverdue:
    """This many folders of retired checkpoints are past their grace period and still not deleted (S2.3)."""

    folders: int


@dataclass(frozen=True, slots=True)
class CheckpointApproved:
    """ "commit <= `checkpoint_id`" is in the log, as entry `log_number` (S7.8)."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined:
    """A "reject" entry with then=quarantine is in the log (S7.8)."""

    withheld: WithheldRange


Event: TypeAlias = (
    Tick
    | SubtaskEvent
    | SnapshotRequested
    | LocationReady
    | ClaimFailed
    | CompletionDurable
    | CompletionFailed
    | CheckpointApproved
    | CheckpointQuarantined
    | DeletionsOverdue
    | TimeOutStop
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class ClaimCheckpoint:
    """Claim the next checkpoint id durably and create its location. Answer with LocationReady or ClaimFailed."""

    request: SnapshotRequest


@dataclass(frozen=True, slots=True)
class SendAbort:
    """Notify every subtask that `checkpoint_id` will never complete, and record the abort.

    `counts`: the abort counts towards `tolerable_checkpoint_failures` (S2.2).
    """

    checkpoint_id: int
    reason: str
    code: AbortCode
    counts: bool = False


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """Write `_metadata`, then append "complete n". Answer with CompletionDurable or CompletionFailed (S2.1)."""

    checkpoint_id: int
    kind: CheckpointKind
    stop: StopMode | None
    path: str
    triggered_ms: int
    acks: Mapping[Subtask, Acknowledged]
    finished: frozenset[Subtask]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Notify every subtask that `checkpoint_id` is complete. The permit names log entry `log_number`."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class SendPermit:
    """Order every subtask to commit all up to `checkpoint_id`. The permit names log entry `log_number` (S7.8)."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class SendQuarantine:
    """Order every subtask to move `withheld` output to quarantine and never commit it (S7.8)."""

    withheld: WithheldRange


@dataclass(frozen=True, slots=True)
class RecordCommitted:
    """Append "committed n" to the log."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint:
    """Delete a completed checkpoint that is no longer needed, or an aborted snapshot of any kind.

    The folder is deleted after its grace period (S2.3).
    """

    checkpoint_id: int
    path: str


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Answer command `request_id`."""

    request_id: str
    ok: bool
    code: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailRun:
    """Fail the run: too many checkpoints failed, or a stop failed after EndOfData was sent (S2.2, S7.7).

    `stop_given_up`: the time of a stop was up. This does not count as a failure.
    """

    reason: str
    stop_given_up: bool = False


@dataclass(frozen=True, slots=True)
class RecordSourceEnd:
    """Record that all subtasks of source chain `chain` have reached the end of their data."""

    chain: int


@dataclass(frozen=True, slots=True)
class EndRun:
    """End the run, because every subtask has finished.

    Attributes:
        stop: the mode, if a stop-savepoint ended the job; None: it ended naturally.
        uncommitted: checkpoints that the commit gate did not let commit (S7.8).
    """

    stop: StopMode | None
    checkpoint_id: int | None
    path: str | None
    request_id: str | None = None
    uncommitted: tuple[int, ...] = ()


Action: TypeAlias = (
    ClaimCheckpoint
    | Trigger
    | SendAbort
    | CompleteCheckpoint
    | NotifyComplete
    | Durable
    | SendPermit
    | SendQuarantine
    | PauseSources
    | LetFinish
    | RecordCommitted
    | DeleteCheckpoint
    | CommandAnswer
    | FailRun
    | RecordSourceEnd
    | EndRun
)
