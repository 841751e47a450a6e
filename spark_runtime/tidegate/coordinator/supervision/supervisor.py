"""Decide what a driver does around and between runs: events in, actions out (S7.5, S7.7, S9.1). Pure.

How to use it:

1. Keep one inbox of events and one loop that processes them: `for action in supervisor.handle(event, now_ms): ...`.
Carry out the actions in order, all on that loop. Callbacks of a run put events into the inbox. They must not call
`handle`, because an action may call the run.
2. Send `BeginSupervision` first. `Terminated` and `CommandArrived` (for commands that the command book accepted) may
come at any time.
3. `WaitForSlots` and `StartRun` start work that continues while events are processed. For a run, send `RunStarted` when
every subtask is running, `RunAnswered` and `RunProgressed` when JobRun reports them, and one `RunTornDown` at the end:
after the run's outcome, its take-down and, for a failed run, `JobRun.shut_down`, whose requests go into `again`.
4. Before a run receives the requests of `StartRun`, let the command book decide about them again, and leave out those
that are not wanted any more; they may have waited long for slots.
5. Send `Tick` when the clock reaches `next_wake_ms()`. Additional `Tick` events have no effect.
6. If an action that appends to the log or reads it (`CheckGeneration`) finds that the driver is fenced, everything
ends: send no further event and no answer.
7. After `EndDriver` the only actions are answers: `handle` answers commands that still arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from tidegate.channel.elements import StopMode
from tidegate.coordinator.events import CommandAnswer, RunRequest, SnapshotRequest, Then, TimeOutStop, Verdict
from tidegate.coordinator.job_run import RunEnded, RunFailed, RunRejected, StopTimedOut
from tidegate.coordinator.stop.answers import stop_result, uncommitted_text
from tidegate.coordinator.supervision.restart_strategy import restart_strategy
from tidegate.coordinator.supervision.retry_policy import RetryPolicy
from tidegate.coordinator.supervision.stop_deadline import RETRY_STOP_MS, StopDeadline, cancelled, earliest
from tidegate.coordinator.supervision.supervision_events import (
    AnswerAllOpen,
    AnswerCommand,
    BeginSupervision,
    CheckGeneration,
    CommandArrived,
    DeleteCheckpoints,
    DeliverToRun,
    EndDriver,
    FailCurrentRun,
    JudgeStop,
    Latest,
    RecordFailure,
    RecordStatus,
    RunAnswered,
    RunImpossible,
    RunProgressed,
    RunStarted,
    RunTornDown,
    SlotsAvailable,
    StartRun,
    StopJudged,
    StopPoint,
    SupervisionAction,
    SupervisionEvent,
    Terminated,
    Tick,
    WaitForSlots,
)
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command
from tidegate.jobs.stop_outcomes import SAVEPOINT_FAILED, SAVEPOINT_OK
from tidegate.units import format_duration

CANCELED = CommandAnswer("", True, "canceled", "the job is cancelled")
"""Answer to every command that requested the cancel."""
EXIT_JOB_FAILED = 6
"""Exit code of a driver whose job failed."""
# 128 + 15 (SIGTERM): the exit code with which shells report a process that a SIGTERM ended.
EXIT_TERMINATED = 143
"""Exit code of a driver that was terminated before it could end its job."""
SIGTERM_STOP = "!SIGTERM"
"""Request id of the stop that SIGTERM starts. No command can have this id."""

Phase = Literal["new", "waiting", "running", "pausing", "over"]
"""`waiting`: for slots. `pausing`: between a failed run and the next."""


def termination_message(reason: str, stop: StopPoint | None = None) -> str:
    """Return the failure message of a job whose driver was terminated before it could end the job."""
    if stop is not None:
        return (
            f"the driver was terminated (SIGTERM) after savepoint {stop.path} completed, but before its output was "
            f"committed: {reason}. Restore the savepoint to continue"
        )
    return (
        f"the driver was terminated (SIGTERM) before a savepoint completed: {reason}. "
        "Restore the latest checkpoint to continue"
    )


def interrupted_answer(stop: StopPoint, reason: str) -> CommandAnswer:
    text = (
        f"savepoint {stop.path} is complete and valid, but the job ended before its output was committed: "
        f"{reason}. Restore the savepoint, which also commits the output"
    )
    data = {"outcome": SAVEPOINT_OK, "mode": stop.mode, "checkpoint_id": stop.checkpoint_id, "path": stop.path}
    return CommandAnswer("", False, SAVEPOINT_OK, text, data)


def end_refusal(code: str, message: str) -> CommandAnswer:
    return CommandAnswer("", False, code, message)


class Supervisor:
    """Restarts, commands, signals and the end of one job under one driver.

    Attributes:
        restarts: number of runs after the first.
    """

    def __init__(self, options: JobOptions) -> None:
        self.restarts = 0
        self._options = options
        self._strategy = RetryPolicy(restart_strategy(options))
        self._phase: Phase = "new"
        self._carried: list[RunRequest] = []
        self._cancel: Command | None = None
        self._terminated = False
        self._terminate_by_ms: int | None = None
        self._resume_ms: int | None = None
        self._check_ms: int | None = None
        self._waiting_since_ms = 0
        self._waited_ms = 0
        self._failures: list[RunFailed] = []
        self._held: list[CommandAnswer] = []
        self._farewell: AnswerAllOpen | None = None
        self._stop: StopPoint | None = None
        self._latest: Latest | None = None
        self._watches: dict[str, StopDeadline] = {}
        self._overdue: CommandAnswer | None = None

    # ------------------------------------------------------------ entry

    def handle(  # noqa: C901, PLR0911, PLR0912 - one case per event
        self, event: SupervisionEvent, now_ms: int
    ) -> list[SupervisionAction]:
        """Process one event. The returned actions must be carried out in order."""
        if self._farewell is not None:
            return [AnswerCommand(self._farewell.to(event.command))] if isinstance(event, CommandArrived) else []
        if isinstance(event, RunTornDown | RunImpossible | StopJudged):
            # Never reset to None: a completed stop-savepoint stays complete, also if a later event does not mention it.
            self._stop = event.stop or self._stop
        match event:
            case BeginSupervision(ended) if ended is not None:
                return self._already_ended(*ended)
            case BeginSupervision():
                self._recheck_stop(now_ms)
                return [RecordStatus("WAITING_FOR_SLOTS"), *self._wait(now_ms)]
            case SlotsAvailable():
                return self._on_slots(now_ms)
            case RunImpossible(failure, exit_code, stop):
                return self._interrupted(failure, stop) or self._failed([failure], exit_code, "", stop)
            case RunStarted():
                return self._on_started(event, now_ms)
            case RunAnswered(answer, run_over):
                return self._on_answer(answer, run_over, now_ms)
            case RunProgressed():
                self._strategy.on_progress()
                return []
            case RunTornDown():
                return self._on_over(event, now_ms)
            case CommandArrived(command):
                return self._on_command(command, now_ms)
            case StopJudged():
                return self._on_stop_judged(event, now_ms)
            case Terminated():
                return self._on_terminated(now_ms)
            case Tick():
                return self._on_tick(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return the time at which the next Tick can change something, or None."""
        if self._check_ms is None:
            return None
        due_ms = self._resume_ms if self._phase == "pausing" else self._terminate_by_ms
        times = (due_ms, self._check_ms, earliest(self._watches.values()))
        return min(t for t in times if t is not None)

    def tries_again(self, command_id: str) -> bool:
        """Return whether the command is a stop at its second try. It has been started, so it does not expire (S9.4)."""
        watch = self._watches.get(command_id)
        return watch is not None and watch.first is not None

    # ------------------------------------------------------------ from run to run

    def _wait(self, now_ms: int) -> list[SupervisionAction]:
        self._phase, self._waiting_since_ms = "waiting", now_ms
        return [WaitForSlots()]

    def _on_slots(self, now_ms: int) -> list[SupervisionAction]:
        # The slots may become available after a cancel or SIGTERM has already ended the wait.
        if self._phase != "waiting":
            return []
        self._waited_ms += now_ms - self._waiting_since_ms
        self._phase = "running"
        requests, self._carried = tuple(self._carried), []
        # The wait for slots may have been long. A fenced driver must
        # not start a run that competes with the new driver's run.
        return [self._recheck_stop(now_ms), StartRun(requests)]

    def _on_started(self, started: RunStarted, now_ms: int) -> list[SupervisionAction]:
        """Record that the job is running, and send the answers to failed stops that waited for this.

        They are not sent if this run commits the savepoint of the stop: that savepoint did complete, although the
        store's response about it was lost.
        """
        # The strategy's clock stops while the job waits for slots, so that waiting is no sign of a stable run.
        self._strategy.on_running(now_ms - self._waited_ms)
        for watch in self._watches.values():
            watch.started(now_ms)
        data = {"run_id": started.run_id}
        if started.restored_from is not None:
            data["restored_from"] = started.restored_from
        held, self._held = self._held, []
        self._watches = {n: watch for n, watch in self._watches.items() if watch.held is None}
        return [
            RecordStatus("RUNNING", data),
            *(AnswerCommand(answer) for answer in held if not started.commit_only),
        ]

    def _on_answer(self, answer: CommandAnswer, run_over: bool, now_ms: int) -> list[SupervisionAction]:
        if answer.request_id == SIGTERM_STOP:  # refused because of another stop: that stop ends the job, too
            refused = answer.code != "stop_in_progress"
            return [FailCurrentRun(RunFailed(answer.message))] if refused and not run_over else []
        watch = self._watches.get(answer.request_id)
        if watch is not None and watch.is_late(now_ms) and answer.code in (SAVEPOINT_FAILED, SAVEPOINT_OK):
            return self._stop_timed_out(watch, answer, now_ms, run_over=run_over)
        return self._answer(answer, now_ms, run_over=run_over)

    def _answer(self, answer: CommandAnswer, now_ms: int, *, run_over: bool) -> list[SupervisionAction]:
        """Send an answer, or keep the answer to a failed stop until the job is running again.

        "The job continues" is sent only when it is true. The stop's deadline limits the wait, because runs may fail
        repeatedly.
        """
        watch = self._watches.get(answer.request_id)
        result = watch.answer(answer) if watch is not None else answer
        if run_over and answer.code == SAVEPOINT_FAILED:
            if watch is not None:
                watch.pause(answer, now_ms)
            self._held.append(result)
            return []
        self._watches.pop(answer.request_id, None)
        return [AnswerCommand(result)]

    def _on_over(self, over: RunTornDown, now_ms: int) -> list[SupervisionAction]:
        # An order to end a stop is not carried over:
        # `_resume_stop_deadlines` makes the stop due again for the next run.
        self._carried += [request for request in over.again if not isinstance(request, TimeOutStop)]
        self._latest = over.latest
        outcome = over.outcome
        if isinstance(outcome, RunEnded):
            return self._ended(outcome)
        rejected = outcome if isinstance(outcome, RunRejected) else None
        if rejected is not None and rejected.then == "stop" and self._cancel is None:
            return self._rejected(rejected)
        interrupted = self._interrupted(outcome, over.stop)
        if interrupted:
            return interrupted
        self._resume_stop_deadlines(now_ms)
        if isinstance(outcome, RunRejected | StopTimedOut):  # no failure: restart immediately, and count no attempt
            self.restarts += 1
            return [RecordStatus("RESTARTING", {"reason": outcome.message}), *self._wait(now_ms)]
        delay_ms = self._strategy.on_failure(outcome, now_ms - self._waited_ms, over.draw)
        # At least 1, because the slice `[-0:]` is the whole list.
        self._failures = [*self._failures, outcome][-max(1, self._strategy.streak) :]
        if delay_ms is None:
            return self._failed(self._failures, EXIT_JOB_FAILED, self._strategy.exhausted, over.stop)
        self.restarts += 1
        self._phase, self._resume_ms = "pausing", now_ms + delay_ms
        return [RecordFailure(outcome), RecordStatus("RESTARTING", {"reason": outcome.message})]

    def _on_tick(self, now_ms: int) -> list[SupervisionAction]:
        actions: list[SupervisionAction] = []
        if self._check_ms is not None and now_ms >= self._check_ms:
            actions.append(self._recheck_stop(now_ms))
        if self._phase == "pausing" and self._resume_ms is not None and now_ms >= self._resume_ms:
            self._resume_ms = None
            actions += self._wait(now_ms)
        elif self._terminate_by_ms is not None and now_ms >= self._terminate_by_ms:
            self._terminate_by_ms = None
            limit = f"sigterm_timeout {format_duration(self._options.sigterm_timeout)}"
            actions.append(DeliverToRun(TimeOutStop(None, limit)))  # its answer names the cause of the delay
            actions.append(FailCurrentRun(RunFailed(f"the job had not stopped within {limit}")))
        for watch in [w for w in self._watches.values() if w.deadline_ms is not None and w.is_late(now_ms)]:
            actions += self._on_stop_timeout(watch, now_ms)
        return actions

    # ------------------------------------------------------------ stops whose time is up

    def _on_stop_timeout(self, watch: StopDeadline, now_ms: int) -> list[SupervisionAction]:
        """Let the run end the stop and report its state.

        Without a run, first check whether the command is still wanted.
        """
        if self._phase == "running":
            given_up = watch.give_up(self._stop)
            return [DeliverToRun(given_up)] if watch.held is None else []  # the new run has not received the stop
        watch.deadline_ms = now_ms + RETRY_STOP_MS
        return [JudgeStop(watch.command.command_id)]

    def _on_stop_judged(self, judged: StopJudged, now_ms: int) -> list[SupervisionAction]:
        watch = self._watches.get(judged.command_id)
        if watch is None or self._phase == "running":
            return []
        self._latest = judged.latest
        self._carried = [request for request in self._carried if request.request_id != judged.command_id]
        self._held = [answer for answer in self._held if answer.request_id != judged.command_id]
        if judged.wanted:
            result = watch.answer_while_down() if self._stop is None else watch.uncommitted(self._stop)
            return self._stop_timed_out(watch, result, now_ms, run_over=False)
        del self._watches[judged.command_id]
        return []

    def _stop_timed_out(
        self, watch: StopDeadline, result: CommandAnswer, now_ms: int, *, run_over: bool
    ) -> list[SupervisionAction]:
        """Carry out `on_timeout` (S7.7). A complete savepoint can only be committed, so that there is no second try."""
        if watch.on_timeout == "cancel" and self._cancel is None:
            del self._watches[watch.command.command_id]
            self._overdue = result
            return self._on_cancel(watch.command, "because of on_timeout=cancel")
        if not watch.tries_again or result.code == SAVEPOINT_OK:
            return self._answer(result, now_ms, run_over=run_over)
        request = watch.retry(result)
        if self._phase == "running" and not run_over:
            watch.started(now_ms)
            return [DeliverToRun(request)]
        self._carried.append(request)
        return []

    def _resume_stop_deadlines(self, now_ms: int) -> None:
        """Make stops due again whose run ended before it could end them: the next run gets the order immediately."""
        for watch in self._watches.values():
            if watch.given_up:
                watch.given_up, watch.deadline_ms = False, now_ms

    def _recheck_stop(self, now_ms: int) -> CheckGeneration:
        """Check the generation now, and once per `heartbeat_timeout`.

        A driver that appends nothing would otherwise not notice a newer generation. It would hold its slots and read
        its sources without limit (S9.2).
        """
        self._check_ms = now_ms + self._options.heartbeat_timeout // timedelta(milliseconds=1)
        return CheckGeneration()

    # ------------------------------------------------------------ commands and signals

    def _on_command(self, command: Command, now_ms: int) -> list[SupervisionAction]:
        arguments, by = command.arguments, command.issued_by
        path, request_id = arguments.get("path"), command.command_id
        match command.verb:
            case "checkpoint":
                return self._request(SnapshotRequest("checkpoint", request_id=request_id, by=by))
            case "savepoint":
                return self._request(SnapshotRequest("savepoint", request_id=request_id, path=path, by=by))
            case "stop":
                watch = StopDeadline.of(command, self._options.stop_timeout, now_ms)
                self._watches[request_id] = watch
                return self._request(watch.request)
            case "cancel":
                return self._on_cancel(command, f"by {by}")
            case "commit" | "reject":
                n = arguments.get("checkpoint_id")
                then: Then = arguments.get("then") or "stop"
                reason = str(arguments.get("reason") or "")
                return self._request(Verdict(request_id, command.verb == "commit", n, by, then, reason))

    def _request(self, request: RunRequest) -> list[SupervisionAction]:
        """Pass a request to the active run, else to the next one."""
        if self._phase == "running":
            return [DeliverToRun(request)]
        self._carried.append(request)
        return []

    def _on_cancel(self, command: Command, how: str) -> list[SupervisionAction]:
        """Cancel the job. Further cancels are answered together with the first, when the job has ended."""
        if self._cancel is not None:
            return []
        self._cancel = command
        if self._phase == "running":
            return [FailCurrentRun(RunFailed(f"cancelled {how}"))]
        return self._canceled(command)

    def _on_terminated(self, now_ms: int) -> list[SupervisionAction]:
        """Suspend the job with a savepoint within `sigterm_timeout`. Without an active run there is nothing to save."""
        if self._terminated:
            return []
        self._terminated = True
        if self._phase != "running":
            reason = self._failures[-1].message if self._failures else "no run of the job had started"
            return self._timed_out(reason, self._stop)
        if self._options.checkpoint_mode == "off":
            return [FailCurrentRun(RunFailed("checkpoint_mode is off, so no savepoint can be taken"))]
        self._terminate_by_ms = now_ms + self._options.sigterm_timeout // timedelta(milliseconds=1)
        return [DeliverToRun(SnapshotRequest("stop-savepoint", request_id=SIGTERM_STOP, stop="suspend"))]

    def _interrupted(self, failure: RunFailed, stop: StopPoint | None) -> list[SupervisionAction]:
        """Return the actions that end a job that was cancelled or terminated during the run."""
        if self._cancel is not None:
            return self._canceled(self._cancel)
        return self._timed_out(failure.message, stop) if self._terminated else []

    # ------------------------------------------------------------ how it ends

    def _ended(self, outcome: RunEnded) -> list[SupervisionAction]:
        otherwise = end_refusal("job_ended", "the job has ended")
        left = outcome.uncommitted
        if outcome.stop is None and left:
            data = {"reason": uncommitted_text(left), "uncommitted": list(left)}
            return self._over("FINISHED_COMMIT_PENDING", data, AnswerAllOpen(otherwise), exit_code=0)
        if outcome.stop is None:
            return self._over("FINISHED", {}, AnswerAllOpen(otherwise), exit_code=0)
        assert outcome.path is not None and outcome.checkpoint_id is not None, "a stop has a savepoint"
        mode: StopMode = "drain" if outcome.stop == "drain" else "suspend"
        answer = stop_result("", mode, outcome.checkpoint_id, outcome.path, left)
        for watch in self._watches.values():
            if outcome.request_id in (watch.command.command_id, None):
                answer = watch.answer(answer)
        return self._over("STOPPED", {"stop": dict(answer.data)}, AnswerAllOpen(otherwise, {"stop": answer}), 0)

    def _already_ended(self, status: str, data: Mapping[str, Any]) -> list[SupervisionAction]:
        """Record the status again, after this driver's fence. Open commands get the answers of the earlier driver."""
        by_verb: dict[str, CommandAnswer] = {}
        stop = data.get("stop")
        if status == "STOPPED" and stop is not None:
            by_verb["stop"] = stop_result(
                "", stop["mode"], stop["checkpoint_id"], stop["path"], stop.get("uncommitted", ())
            )
        if status == "CANCELED":
            by_verb["cancel"] = CANCELED
            if stop is not None:
                by_verb["stop"] = CommandAnswer("", False, stop["outcome"], str(data.get("reason", "")), stop)
        if status == "STOPPED" and stop is None and "reason" in data:
            return self._rejected(RunRejected(data["reason"]), data.get("rejected"))
        return self._over(
            status, data, AnswerAllOpen(end_refusal("job_ended", "the job has ended"), by_verb), exit_code=0
        )

    def _rejected(self, outcome: RunRejected, unanswered: Mapping[str, Any] | None = None) -> list[SupervisionAction]:
        """End the job before the rejected checkpoint, as the verdict demands (S7.8).

        `unanswered`: checkpoint and command, if the driver that carried out the verdict may have died before its
        answer.
        """
        text = f"the job has stopped: {outcome.message}"
        own: tuple[CommandAnswer, ...] = ()
        if unanswered is not None and unanswered["command"] is not None:
            data = {"checkpoint_id": unanswered["checkpoint_id"]}
            own = (CommandAnswer(unanswered["command"], True, "rejected", text, data),)
        farewell = AnswerAllOpen(end_refusal("rejected", text), own=own)
        return self._over("STOPPED", {"reason": outcome.message}, farewell, 0)

    def _canceled(self, command: Command) -> list[SupervisionAction]:
        by = f"by {command.issued_by}"
        farewell = AnswerAllOpen(end_refusal("job_ended", f"the job was cancelled {by}"), {"cancel": CANCELED})
        data: dict[str, Any] = {"reason": by}
        stop: CommandAnswer | None = None
        if self._overdue is not None:
            stop = cancelled(self._overdue, self._latest)
            data["reason"] = f"{by}: {stop.message}"
        if self._stop is not None:
            why = self._overdue.message if self._overdue is not None else f"it was cancelled {by}"
            stop = interrupted_answer(self._stop, why)
        if stop is not None:
            farewell = replace(farewell, by_verb={**farewell.by_verb, "stop": stop})
            data["stop"] = dict(stop.data)
        return self._over("CANCELED", data, farewell, 0)

    def _timed_out(self, reason: str, stop: StopPoint | None) -> list[SupervisionAction]:
        return self._failed([RunFailed(termination_message(reason, stop))], EXIT_TERMINATED, "", stop)

    def _failed(
        self, failures: list[RunFailed], exit_code: int, prefix: str, stop: StopPoint | None
    ) -> list[SupervisionAction]:
        """Fail the job with the first failure as root cause: failures of later runs may be its consequence.

        If there are later failures, the first is recorded again, so that it is the last failure in the log.
        """
        first, last = failures[0], failures[-1]
        recorded = [RecordFailure(last)] + ([RecordFailure(first)] if first != last else [])
        by_verb: dict[str, CommandAnswer] = {}
        data: dict[str, Any] = {"reason": prefix + first.message}
        if stop is not None:
            by_verb["stop"] = interrupted_answer(stop, first.message)
            data["stop"] = dict(by_verb["stop"].data)
        farewell = AnswerAllOpen(end_refusal("job_failed", first.message), by_verb)
        return [*recorded, *self._over("FAILED", data, farewell, exit_code)]

    def _over(
        self, status: str, data: Mapping[str, Any], farewell: AnswerAllOpen, exit_code: int
    ) -> list[SupervisionAction]:
        """End the job. The status is recorded first, so that a client that reads an answer finds the job ended."""
        self._phase, self._farewell = "over", farewell
        self._resume_ms = self._terminate_by_ms = self._check_ms = None
        held: list[SupervisionAction] = []
        for answer in self._held if "stop" not in farewell.by_verb else ():
            otherwise = farewell.otherwise
            text = f"{answer.message}; but the job did not run again: {otherwise.message}"
            result = {**answer.data, "outcome": otherwise.code}
            held.append(AnswerCommand(replace(answer, code=otherwise.code, message=text, data=result)))
        # A stop must keep the state, even a stop that an earlier driver carried out: nothing is deleted, despite
        # `retention`.
        stopping = self._overdue is not None or (self._stop is None and "stop" in data)
        if self._options.retention == "delete" and status in ("FINISHED", "CANCELED") and not stopping:
            # After the status entry: if the driver dies in between,
            # the job has ended and no driver needs the checkpoints.
            held.insert(0, DeleteCheckpoints())
        return [RecordStatus(status, data), *held, farewell, EndDriver(exit_code)]
