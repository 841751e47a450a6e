"""The events that the coordinator takes and the actions that it returns. Frozen data, no behaviour.

Some of both are messages of `channel.control.protocol`: those of subtasks are events, and an action `Trigger`,
`Durable`, `PauseSources` or `LetFinish` is sent to every slot as it is.
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
"""Why a request does not become a snapshot (S1.2, S1.3)."""

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
"""Why a pending snapshot was aborted. The first three are failures and count, but for savepoints (S2.2).
`subsumed`: a newer one completed. `subtask_finished`: before it could take part (S1.5). `alignment_aborted`: a subtask
met a newer barrier or a cancel marker (S3.4). `partially_finished`: some subtasks of an operator with union state have
finished and others not (S6.3). `job_stops`: a stop-savepoint completed first, or takes the place of a final one.
`job_ended`: all had finished. `shutdown`: the run is over. `stop_timeout`: the time of the stop was up (S7.7)."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """One wish for a snapshot (S1.2).

    Attributes:
        kind: checkpoint, savepoint, stop-savepoint or final.
        periodic: asked by the periodic scheduler.
        request_id: the command that waits for the answer; None when nobody does.
        stop: for a stop-savepoint.
        path: where a savepoint goes; None: the default.
        timeout_ms: of a stop, from command to end; its savepoint expires no sooner than that after its trigger.
        data_ended: of a stop that is planned afresh: its first trigger has ended the data.
        by: who asked for it, for people; "": the job itself.
    """

    kind: CheckpointKind
    periodic: bool = False
    request_id: str | None = None
    stop: StopMode | None = None
    path: str | None = None
    timeout_ms: int = 0
    data_ended: bool = False
    by: str = ""


Then = Literal["stop", "replay", "quarantine"]
"""What a rejection does with the job: it ends, goes back at once to what is in front of the rejected, or goes on
without their output."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A person's word on a checkpoint, of the commit gate (S7.8).

    Attributes:
        request_id: the command that waits for the answer.
        approves: "commit <= `checkpoint_id`"; else it and what came after it is rejected.
        checkpoint_id: None: the newest that waits; for an approval only.
        by: for people.
        then: of a rejection.
        reason: of a rejection, for people.
    """

    request_id: str
    approves: bool
    checkpoint_id: int | None
    by: str
    then: Then = "stop"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TimeOutStop:
    """The time of a stop is up (S7.7). An event, too.

    Attributes:
        request_id: of the stop; None: whichever is on its way.
        limit: how much time it had, in words: "10 min".
        path, mode: of the stop's savepoint, where an earlier run completed it.
        at_work: of subtasks the uids of operators that have not done yet what they were asked for, as far as is known.
    """

    request_id: str | None
    limit: str
    path: str | None = None
    mode: StopMode | None = None
    at_work: Mapping[Subtask, tuple[str, ...]] = field(default_factory=dict, compare=False)


Wish: TypeAlias = SnapshotRequest | Verdict | TimeOutStop
"""What a command asks of a run, and of the next one when none is up."""

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """Somebody wants a snapshot."""

    request: SnapshotRequest


@dataclass(frozen=True, slots=True)
class LocationReady:
    """The claim is durable and the storage location exists."""

    checkpoint_id: int
    path: str


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """The id could not be claimed or the location not be created."""

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
    """So many folders of retired checkpoints wait for their deletion, their grace over (S2.3)."""

    folders: int


@dataclass(frozen=True, slots=True)
class CheckpointApproved:
    """ "commit <= `checkpoint_id`" is in the log, as entry `log_number` (S7.8)."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined:
    """ "reject" with then=quarantine is in the log (S7.8)."""

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
    """Claim the next checkpoint id durably, create its location, answer LocationReady or ClaimFailed."""

    request: SnapshotRequest


@dataclass(frozen=True, slots=True)
class SendAbort:
    """Tell every subtask that `checkpoint_id` will never complete, and record it. `counts`: against
    `tolerable_checkpoint_failures` (S2.2)."""

    checkpoint_id: int
    reason: str
    code: AbortCode
    counts: bool = False


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """Write `_metadata`, then append "complete n"; answer CompletionDurable or CompletionFailed (S2.1)."""

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
    """Tell every subtask that `checkpoint_id` is complete; the permit names log entry `log_number`."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class SendPermit:
    """Tell every subtask to commit what is <= `checkpoint_id`; the permit names log entry `log_number` (S7.8)."""

    checkpoint_id: int
    log_number: int


@dataclass(frozen=True, slots=True)
class SendQuarantine:
    """Tell every subtask to move away what is `withheld`, and never to commit it (S7.8)."""

    withheld: WithheldRange


@dataclass(frozen=True, slots=True)
class RecordCommitted:
    """Append "committed n"."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint:
    """A completed checkpoint is no longer needed, or a snapshot of any kind was aborted: its folder goes when its grace
    is over (S2.3)."""

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
    """The run must fail over: too many checkpoint failures, or a failed stop after EndOfData flowed (S2.2, S7.7).
    `stop_given_up`: the time of a stop was up, which is nobody's failure."""

    reason: str
    stop_given_up: bool = False


@dataclass(frozen=True, slots=True)
class RecordSourceEnd:
    """All subtasks of chain `chain` (a source) have reached the end of their data."""

    chain: int


@dataclass(frozen=True, slots=True)
class EndRun:
    """Every subtask has finished. `stop` is set when a stop-savepoint ended the job, else it is the natural end.
    `uncommitted`: checkpoints behind a commit gate that were not committed (S7.8)."""

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
