"""The supervisor's input events and output actions. Frozen data without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tidegate.channel.elements import StopMode
from tidegate.coordinator.events import CommandAnswer, RunRequest
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.coordinator.supervision.restart_strategy import NO_JITTER
from tidegate.jobs.records import Command

Latest: TypeAlias = tuple[int | None, str]
"""Id, if known, and location of a recovery point."""


@dataclass(frozen=True, slots=True)
class StopPoint:
    """A completed stop-savepoint of this submission, of which only the commit remains (S7.7)."""

    checkpoint_id: int
    path: str
    mode: StopMode


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class BeginSupervision:
    """The generation has begun and the pipeline is built. Sent once, as the first event.

    Attributes:
        ended: final status and data, if an earlier driver ended this submission (`recovery.restore_point.end_status`).
            A late launch must not run it again.
    """

    ended: tuple[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class SlotsAvailable:
    """The slots that WaitForSlots requested are available."""


@dataclass(frozen=True, slots=True)
class RunImpossible:
    """The job cannot run, and no restart helps: too few slots in time, or a refused snapshot.

    Attributes:
        exit_code: exit code of the driver.
        stop: see RunTornDown.
    """

    failure: RunFailed
    exit_code: int
    stop: StopPoint | None = None


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Every subtask of the run is running. `commit_only`: the run only commits a completed stop-savepoint."""

    run_id: str
    restored_from: str | None = None
    commit_only: bool = False


@dataclass(frozen=True, slots=True)
class RunAnswered:
    """The run answers a command. `run_over`: the run has its outcome already."""

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
        again: requests that the next run repeats, including those that came too late for this run.
        stop: the completed stop-savepoint of the submission, if there is one now.
        draw: uniform random number in [0, 1), for the delay.
        latest: the recovery point from which the next run would start.
    """

    outcome: RunEnded | RunFailed
    again: tuple[RunRequest, ...] = ()
    stop: StopPoint | None = None
    draw: float = NO_JITTER
    latest: Latest | None = None


@dataclass(frozen=True, slots=True)
class CommandArrived:
    """A command that the command book has accepted."""

    command: Command


@dataclass(frozen=True, slots=True)
class StopJudged:
    """The command book's decision about a stop that no run has (JudgeStop).

    Attributes:
        wanted: True: it may be carried out. False: it was withdrawn, or is already answered.
        stop, latest: see RunTornDown.
    """

    command_id: str
    wanted: bool
    stop: StopPoint | None = None
    latest: Latest | None = None


@dataclass(frozen=True, slots=True)
class Terminated:
    """SIGTERM was received. May be sent twice."""


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
    """Wait until the job's slots are available, then answer SlotsAvailable or RunImpossible.

    StartRun and EndDriver also end the wait.
    """


@dataclass(frozen=True, slots=True)
class StartRun:
    """Choose the restore point and start a run, which receives `requests` first.

    Answer RunTornDown or RunImpossible.
    """

    requests: tuple[RunRequest, ...]


@dataclass(frozen=True, slots=True)
class CheckGeneration:
    """Read the log: a newer fence there ends everything.

    If the store does not respond, nothing happens: a later check may succeed.
    """


@dataclass(frozen=True, slots=True)
class DeliverToRun:
    """Pass a request to the run.

    A run that has its outcome takes none: then the request goes into `again` of RunTornDown.
    """

    request: RunRequest


@dataclass(frozen=True, slots=True)
class JudgeStop:
    """Let the command book decide again about a stop whose time is up and that no run has. Answer StopJudged.

    If the store does not respond, answer nothing: the action is repeated.
    """

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
    """Answer every command that has no answer, including commands that arrive until the driver exits.

    Attributes:
        by_verb: verb -> answer, without the command's id.
        own: answers that name their command.
        otherwise: answer for all other commands.
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
    """Delete all checkpoints: the job has finished or was cancelled, and `retention` keeps none (S2.3).

    A failed deletion does not fail the job.
    """


@dataclass(frozen=True, slots=True)
class EndDriver:
    """End the driver, because the job is over."""

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
