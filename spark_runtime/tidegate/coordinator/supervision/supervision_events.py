"""What the supervisor is told (events) and what it asks for (actions). Frozen data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tidegate.channel.elements import StopMode
from tidegate.coordinator.events import CommandAnswer, Wish
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.coordinator.supervision.restart_strategy import NO_JITTER
from tidegate.jobs.records import Command

Latest: TypeAlias = tuple[int | None, str]
"""Id, where it is known, and place of a recovery point."""


@dataclass(frozen=True, slots=True)
class StopPoint:
    """A completed stop-savepoint of this submission: what is left to do is its commit (S7.7)."""

    checkpoint_id: int
    path: str
    mode: StopMode


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class BeginSupervision:
    """The reign has begun and the pipeline is built. Once, first.

    Attributes:
        ended: the status and its data with which an earlier driver ended this very submission (`recovery.ended_as`).
            A launch that comes late must not run it again.
    """

    ended: tuple[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class SlotsAvailable:
    """The slots that WaitForSlots asked for are offered."""


@dataclass(frozen=True, slots=True)
class RunImpossible:
    """What no restart mends: too few slots in time, a snapshot that is refused.

    Attributes:
        exit_code: of the driver.
        stop: see RunTornDown.
    """

    failure: RunFailed
    exit_code: int
    stop: StopPoint | None = None


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Every subtask of the run is up. `commit_only`: it only commits a completed stop-savepoint."""

    run_id: str
    restored_from: str | None = None
    commit_only: bool = False


@dataclass(frozen=True, slots=True)
class RunAnswered:
    """The run answers a command. `run_over`: it has its outcome already."""

    answer: CommandAnswer
    run_over: bool


@dataclass(frozen=True, slots=True)
class RunProgressed:
    """A checkpoint completed."""


@dataclass(frozen=True, slots=True)
class RunTornDown:
    """The run has been taken down.

    Attributes:
        outcome: how it ended.
        again: requests that the next run takes up again, those that came too late for this one included.
        stop: the completed stop-savepoint of the submission, if there is one by now.
        draw: uniform in [0, 1), for the delay.
        latest: what the next run would start from.
    """

    outcome: RunEnded | RunFailed
    again: tuple[Wish, ...] = ()
    stop: StopPoint | None = None
    draw: float = NO_JITTER
    latest: Latest | None = None


@dataclass(frozen=True, slots=True)
class CommandArrived:
    """A command that the command book has accepted."""

    command: Command


@dataclass(frozen=True, slots=True)
class StopJudged:
    """What the command book says of a stop that no run has (JudgeStop).

    Attributes:
        wanted: it may be carried out; else it was withdrawn, or has its answer.
        stop, latest: see RunTornDown.
    """

    command_id: str
    wanted: bool
    stop: StopPoint | None = None
    latest: Latest | None = None


@dataclass(frozen=True, slots=True)
class Terminated:
    """SIGTERM. May come twice."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


SupervisionEvent: TypeAlias = (
    BeginSupervision
    | SlotsAvailable
    | RunImpossible
    | RunStarted
    | RunAnswered
    | RunProgressed
    | RunTornDown
    | CommandArrived
    | StopJudged
    | Terminated
    | Tick
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class WaitForSlots:
    """See that the job's slots are offered; answer SlotsAvailable or RunImpossible. Ends also with StartRun or
    EndDriver."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Choose the restore point and start a run; give it `requests` first. Answer RunTornDown, or RunImpossible."""

    requests: tuple[Wish, ...]


@dataclass(frozen=True, slots=True)
class CheckGeneration:
    """Read the log: a newer fence there ends everything. A store that does not answer changes nothing, the next look
    may tell."""


@dataclass(frozen=True, slots=True)
class DeliverToRun:
    """Give the run a request. One that has its outcome takes none: then the request goes into RunTornDown's `again`."""

    request: Wish


@dataclass(frozen=True, slots=True)
class JudgeStop:
    """The time of a stop is up and no run has it: let the command book judge it again, answer StopJudged. When the
    store does not tell, answer nothing: it comes again."""

    command_id: str


@dataclass(frozen=True, slots=True)
class FailCurrentRun:
    """Make the run fail, unless it has its outcome."""

    failure: RunFailed


@dataclass(frozen=True, slots=True)
class RecordStatus:
    """Append a status entry."""

    status: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Append a failure entry."""

    failure: RunFailed


@dataclass(frozen=True, slots=True)
class AnswerCommand:
    """Write the result of a command."""

    answer: CommandAnswer


@dataclass(frozen=True, slots=True)
class AnswerAllOpen:
    """Answer every command that has no answer, those that come until the driver is gone included.

    Attributes:
        by_verb: answer for commands of a verb, without the command's id.
        own: answers that name their command.
        otherwise: for all others.
    """

    otherwise: CommandAnswer
    by_verb: Mapping[str, CommandAnswer] = field(default_factory=dict)
    own: tuple[CommandAnswer, ...] = ()

    def to(self, command: Command) -> CommandAnswer:
        """The answer to `command`."""
        own = next((answer for answer in self.own if answer.request_id == command.command_id), None)
        return own or replace(self.by_verb.get(command.verb, self.otherwise), request_id=command.command_id)


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints:
    """The job has finished or was cancelled, and keeps no checkpoints (`retention`, S2.3). Failing to is not the job's
    failure."""


@dataclass(frozen=True, slots=True)
class EndDriver:
    """The job is over, and so is the driver."""

    exit_code: int


SupervisionAction: TypeAlias = (
    WaitForSlots
    | StartRun
    | CheckGeneration
    | DeliverToRun
    | JudgeStop
    | FailCurrentRun
    | RecordStatus
    | RecordFailure
    | AnswerCommand
    | AnswerAllOpen
    | DeleteCheckpoints
    | EndDriver
)
