"""S7.7: a stop whose time is up: who held it up, and what becomes of the job. First the run's part, then what is around
it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from coordinator_driver import ALL, SOURCE, WINDOW, Driver, of
from test_supervision import BOOM, PHASES, Driven, command, farewell, statuses
from test_supervision import of as chosen

from tidegate.channel.control.protocol import Acknowledged, SubtaskEndedData, SubtaskFinished, SubtaskRunning, Trigger
from tidegate.coordinator import events as ev
from tidegate.coordinator.events import CommandAnswer, SnapshotRequest, TimeOutStop
from tidegate.coordinator.job_run import RunEnded, RunFailed, StopTimedOut
from tidegate.coordinator.supervision.supervision_events import (
    AnswerCommand,
    CommandArrived,
    DeleteCheckpoints,
    DeliverToRun,
    FailCurrentRun,
    JudgeStop,
    RecordFailure,
    RunAnswered,
    RunStarted,
    RunTornDown,
    SlotsAvailable,
    StartRun,
    StopJudged,
    StopPoint,
    Terminated,
    Tick,
)
from tidegate.coordinator.supervision.supervisor import SIGTERM_STOP
from tidegate.jobs.stop_outcomes import CANCELED_IN_STOP, SAVEPOINT_FAILED, SAVEPOINT_OK

GIVE_UP = TimeOutStop("stop", "10 s")


def stopping(**options: Any) -> Driver:
    """A run whose stop-savepoint 1 is on its way."""
    run = Driver(interval_ms=None, **options)
    run.start()
    run.ask("stop-savepoint", "stop", stop="drain", timeout_ms=10_000, by="anna")
    return run


# ---------------------------------------------------------------- in the run


def test_a_stop_that_is_given_up_names_who_has_not_passed_the_end_on() -> None:
    """S7.7: the window waits for the one source; it is the source that holds it up."""
    run = stopping()
    run.send(SubtaskEndedData((SOURCE, 0), natural=False))
    run.ack((SOURCE, 0), 1)
    abort, _, fail, answer = run.send(GIVE_UP)
    assert (abort.checkpoint_id, abort.code, abort.counts) == (1, "stop_timeout", False)
    assert fail.stop_given_up and fail.reason == abort.reason, "the log names them, too"
    assert "operator src, subtask 1 (has not sent the end of its data downstream)" in abort.reason
    assert "win" not in abort.reason and "within 10 s" in abort.reason
    assert "1 of 4 subtasks have acknowledged savepoint 1" in abort.reason
    assert (answer.ok, answer.code) == (
        False,
        SAVEPOINT_FAILED,
    ) and "restarts from its recovery point" in answer.message
    assert answer.data["held_up_by"] == [
        {"operators": ["src"], "subtask": 1, "why": "has not sent the end of its data downstream"}
    ]


def test_a_stop_that_is_given_up_names_who_has_not_written_its_part() -> None:
    """S7.7: everybody has passed the end on, and one part of the savepoint is not durable."""
    run = stopping()
    run.end_data(natural=False)
    for subtask in ALL[:3]:
        run.ack(subtask, 1)
    (abort,) = of(run.send(GIVE_UP), ev.SendAbort)
    assert "held up by operator win -> out, subtask 1 (has not acknowledged savepoint 1);" in abort.reason


def test_of_a_chain_the_operators_that_are_at_work_are_named() -> None:
    """S7.7: as the slot tells; not those of subtasks that hold nobody up."""
    run = stopping()
    run.end_data(natural=False)
    for subtask in ALL[:3]:
        run.ack(subtask, 1)
    at_work = {(WINDOW, 1): ("out",), (WINDOW, 0): ("win",)}
    actions = run.send(replace(GIVE_UP, at_work=at_work))
    (abort,) = of(actions, ev.SendAbort)
    assert "held up by operator out of win -> out, subtask 1 (has not acknowledged" in abort.reason
    (answer,) = of(actions, ev.CommandAnswer)
    (held,) = answer.data["held_up_by"]
    assert (held["operators"], held["at_work"], held["subtask"]) == (["win", "out"], ["out"], 1)


def test_a_stop_that_was_not_triggered_ends_nothing_when_it_is_given_up() -> None:
    """S7.7: it waits for a subtask to come up; the run goes on, and a savepoint asked for later is taken."""
    run = Driver(interval_ms=None)
    for subtask in ALL[:3]:
        run.send(SubtaskRunning(subtask))
    run.ask("stop-savepoint", "stop", stop="drain")
    (answer,) = run.send(GIVE_UP)
    assert (answer.ok, answer.code) == (False, SAVEPOINT_FAILED)
    assert "operator win -> out, subtask 1 (has not started yet)" in answer.message
    assert "no source had stopped, and the job continues" in answer.message
    assert of(run.send(SubtaskRunning(ALL[3])), ev.ClaimCheckpoint) == []
    assert of(run.ask("savepoint", "sp"), Trigger)


def test_a_stop_whose_savepoint_is_complete_is_not_taken_back() -> None:
    """S7.5, S7.7: its commit goes on; who has not committed is named."""
    run = stopping()
    run.end_data(natural=False)
    run.ack_all(1)
    for subtask in [*ALL[:2], (WINDOW, 0)]:
        run.send(SubtaskFinished(subtask))
    (answer,) = run.send(GIVE_UP)
    assert (answer.ok, answer.code, answer.data["checkpoint_id"]) == (False, SAVEPOINT_OK, 1)
    assert "held up by operator win -> out, subtask 1 (has not committed savepoint 1);" in answer.message
    (end,) = of(run.send(SubtaskFinished((WINDOW, 1))), ev.EndRun)
    assert end.stop == "drain"


def test_a_stop_whose_savepoint_is_being_completed_is_not_taken_back() -> None:
    """S2.1, S7.7: the entry "complete 1" may already be in the log, so that its files must stay."""
    run = stopping()
    run.end_data(natural=False)
    for subtask in ALL[:3]:
        run.ack(subtask, 1)
    (complete,) = run.coordinator.handle(Acknowledged(ALL[3], 1, "run"), run.now)
    assert isinstance(complete, ev.CompleteCheckpoint)
    assert run.coordinator.handle(GIVE_UP, run.now) == []
    run.send(ev.CompletionDurable(1, 101))
    assert run.coordinator.stop_completed


def test_a_run_that_only_commits_a_stop_says_who_has_not() -> None:
    run = Driver(interval_ms=None, commit_only=7)
    run.start()
    assert run.ask("stop-savepoint", "stop", stop="drain") == []
    (answer,) = run.send(TimeOutStop("stop", "10 s", "/sp-7", "drain"))
    assert (answer.code, answer.data["checkpoint_id"]) == (SAVEPOINT_OK, 7)
    assert answer.message.startswith("savepoint /sp-7 is complete and valid"), "it is to be restored"
    assert (answer.data["path"], answer.data["mode"]) == ("/sp-7", "drain")


def test_a_run_that_only_commits_a_stop_is_told_which_savepoint_that_is() -> None:
    """S7.7: an earlier run took it."""
    stopped = running("keep_running", restart_delay="1 s")
    stopped.feed(RunTornDown(BOOM, stop=StopPoint(7, "/sp-7", "drain")))
    stopped.feed(Tick(), after_ms=1_000)
    stopped.feed(SlotsAvailable())
    assert stopped.feed(Tick(), after_ms=9_000) == [DeliverToRun(TimeOutStop("stop", "10 s", "/sp-7", "drain"))]


def test_giving_up_a_stop_that_is_not_there_changes_nothing() -> None:
    run = stopping()
    assert run.send(TimeOutStop("another", "1 s")) == []
    run.ack_all(1)
    assert run.coordinator.stop_completed


def test_a_stops_savepoint_has_the_time_of_the_stop() -> None:
    """S1.4, S7.7: though `checkpoint_timeout` is shorter."""
    run = stopping(timeout_ms=1_000)
    assert of(run.tick(9_999), ev.SendAbort) == []
    (abort,) = of(run.tick(1), ev.SendAbort)
    assert abort.code == "expired"


def test_a_stop_planned_while_a_subtask_was_finishing_is_planned_afresh() -> None:
    """S1.5, S7.3: its output is exact, and the others' data has ended: another savepoint lets them finish."""
    run = stopping()
    actions = run.send(SubtaskFinished((SOURCE, 0)))
    (abort,), (trigger,) = of(actions, ev.SendAbort), of(actions, Trigger)
    assert (abort.checkpoint_id, abort.code) == (1, "subtask_finished")
    assert (trigger.checkpoint_id, trigger.kind, trigger.stop) == (2, "stop-savepoint", "drain")
    assert of(actions, ev.FailRun) == [] and of(actions, ev.CommandAnswer) == []
    for subtask in ALL[1:]:
        run.ack(subtask, 2)
    assert run.coordinator.stop_completed


def test_a_stop_that_is_planned_afresh_does_not_fall_out_of_a_full_queue() -> None:
    """S1.2, S7.7: its first trigger has ended the data; without it the job would end for good, its input unread."""
    run = stopping(max_queued=1)
    assert run.ask("savepoint", "sp") == [], "it waits for the stop's end"
    actions = run.send(SubtaskFinished((SOURCE, 0)))
    (trigger,), (refused,) = of(actions, Trigger), of(actions, ev.CommandAnswer)
    assert (trigger.checkpoint_id, trigger.kind, trigger.stop) == (2, "stop-savepoint", "drain")
    assert (refused.request_id, refused.code) == ("sp", "too_many_requests")


def test_a_stop_that_cannot_be_planned_afresh_fails_over() -> None:
    """S7.7: its first trigger has ended the data; a final snapshot in its stead would end the job for good."""
    run = stopping()
    run.claims_fail = True
    actions = run.send(SubtaskFinished((SOURCE, 0)))
    (fail,), (answer,) = of(actions, ev.FailRun), of(actions, ev.CommandAnswer)
    assert "the store is away" in fail.reason and not fail.stop_given_up
    assert (answer.ok, answer.code) == (False, SAVEPOINT_FAILED)


# ---------------------------------------------------------------- around the runs


class Stopped(Driven):
    """A supervisor with a stop of 10 s on its way."""

    def ask(self, on_timeout: str, mode: str = "drain") -> list[Any]:
        return self.feed(
            CommandArrived(command("stop", "stop", mode=mode, path="/sp", timeout="10 s", on_timeout=on_timeout))
        )

    def time_up(self) -> list[Any]:
        assert self.feed(Tick(), after_ms=9_999) == []
        return self.feed(Tick(), after_ms=1)

    def told(self, code: str = SAVEPOINT_FAILED, *, run_over: bool = True) -> list[Any]:
        data = {"outcome": code, "mode": "drain", "reason": "held up by out", "held_up_by": [{"operators": ["out"]}]}
        return self.feed(RunAnswered(CommandAnswer("stop", False, code, "held up by out; so what", data), run_over))


def running(on_timeout: str, mode: str = "drain", **options: Any) -> Stopped:
    stopped = Stopped(**options)
    stopped.to_running()
    stopped.ask(on_timeout, mode)
    return stopped


GIVEN_UP = RunTornDown(StopTimedOut("held up by out"), latest=(6, "job/chk-6"))


@pytest.mark.parametrize("on_timeout", ["keep_running", "suspend", "cancel"])
def test_the_run_is_told_when_the_time_of_a_stop_is_up(on_timeout: str) -> None:
    """S7.7: counted from when the driver took the command, and once."""
    stopped = running(on_timeout)
    assert stopped.supervisor.next_wake_ms() == 10_000
    assert stopped.time_up() == [DeliverToRun(GIVE_UP)]
    assert stopped.feed(Tick(), after_ms=10_000) == []


def test_without_a_timeout_of_its_own_a_stop_has_the_jobs() -> None:
    driven = Driven(stop_timeout="3 s").to_running()
    driven.feed(CommandArrived(command("stop", "stop")))
    assert driven.feed(Tick(), after_ms=3_000) == [DeliverToRun(TimeOutStop("stop", "3 s"))]


@pytest.mark.parametrize("strategy", ["fixed_delay", "none"])
def test_keep_running_goes_back_at_once_and_is_told_when_the_job_runs_again(strategy: str) -> None:
    """S7.7: nobody's failure, so it uses up no restart, and needs none."""
    stopped = running("keep_running", restart_strategy=strategy)
    stopped.time_up()
    assert stopped.told() == []
    actions = stopped.feed(GIVEN_UP)
    assert statuses(actions) == ["RESTARTING"] and chosen(actions, RecordFailure) == []
    assert actions[0].data["reason"] == "held up by out"
    stopped.feed(SlotsAvailable())
    (told,) = chosen(stopped.feed(RunStarted("r2", "job/chk-6")), AnswerCommand)
    assert (told.answer.request_id, told.answer.ok, told.answer.code) == ("stop", False, SAVEPOINT_FAILED)


def test_a_stop_that_had_not_begun_is_told_at_once_that_the_job_goes_on() -> None:
    stopped = running("keep_running")
    stopped.time_up()
    (told,) = stopped.told(run_over=False)
    assert told.answer.code == SAVEPOINT_FAILED


def test_suspend_tries_once_more_without_a_drain() -> None:
    """S7.2, S7.7: from the recovery point, where the windows that the drain fired are open again."""
    stopped = running("suspend")
    stopped.time_up()
    assert not stopped.supervisor.tries_again("stop")
    assert stopped.told() == []
    assert stopped.supervisor.tries_again("stop"), "the command, which was begun, does not expire any more"
    stopped.feed(GIVEN_UP)
    again = SnapshotRequest("stop-savepoint", False, "stop", "suspend", "/sp", timeout_ms=10_000, by="anna")
    assert chosen(stopped.feed(SlotsAvailable(), after_ms=60_000), StartRun) == [StartRun((again,))]
    stopped.feed(RunStarted("r2", "job/chk-6"))
    actions = stopped.feed(RunTornDown(RunEnded("suspend", 8, "job/sp-8", "stop")), after_ms=9_000)
    assert statuses(actions) == ["STOPPED"]
    told = farewell(actions, "stop", "stop")
    assert (told.ok, told.code, told.data["mode"], told.data["asked_mode"]) == (True, "committed", "suspend", "drain")
    assert told.data["held_up_by"] == [{"operators": ["out"]}] and "held up by out" in told.message
    assert actions[0].data["stop"] == told.data, "the log says it as well"


def test_the_second_try_has_as_much_time_from_when_its_run_is_up_and_there_is_no_third() -> None:
    """S7.7."""
    stopped = running("suspend")
    stopped.time_up()
    stopped.told()
    stopped.feed(GIVEN_UP)
    stopped.feed(SlotsAvailable(), after_ms=60_000)
    stopped.feed(RunStarted("r2"))
    assert chosen(stopped.feed(Tick(), after_ms=9_999), DeliverToRun) == []
    assert chosen(stopped.feed(Tick(), after_ms=1), DeliverToRun) == [DeliverToRun(GIVE_UP)]
    stopped.told()
    stopped.feed(GIVEN_UP, SlotsAvailable())
    (told,) = chosen(stopped.feed(RunStarted("r3")), AnswerCommand)
    assert told.answer.code == SAVEPOINT_FAILED and "the first attempt failed: held up by out" in told.answer.message


def test_a_run_that_lives_gets_the_second_try_at_once() -> None:
    stopped = running("suspend")
    stopped.time_up()
    (again,) = stopped.told(run_over=False)
    assert again == DeliverToRun(
        SnapshotRequest("stop-savepoint", False, "stop", "suspend", "/sp", timeout_ms=10_000, by="anna")
    )
    assert stopped.feed(Tick(), after_ms=10_000) == [DeliverToRun(GIVE_UP)], "its time begins now"


def test_cancel_names_the_checkpoint_to_go_on_from_and_keeps_it() -> None:
    """S2.3, S7.7: whatever `retention` says of a cancellation, since the stop was to keep the state."""
    stopped = running("cancel", retention="delete")
    stopped.time_up()
    assert [type(a) for a in stopped.told()] == [FailCurrentRun]
    actions = stopped.feed(GIVEN_UP)
    assert statuses(actions) == ["CANCELED"] and chosen(actions, DeleteCheckpoints) == []
    told = farewell(actions, "stop", "stop")
    assert (told.ok, told.code) == (False, CANCELED_IN_STOP)
    assert (told.data["checkpoint_id"], told.data["path"]) == (6, "job/chk-6")
    assert "held up by out" in told.message and "job/chk-6" in told.message
    assert actions[0].data["stop"] == told.data and "held up by out" in actions[0].data["reason"]


@pytest.mark.parametrize("on_timeout", ["keep_running", "suspend"])
def test_a_complete_savepoint_is_committed_however_long_that_takes(on_timeout: str) -> None:
    """S7.5, S7.7: the caller is told at its time, and the job ends as stopped."""
    stopped = running(on_timeout)
    stopped.time_up()
    (told,) = stopped.told(SAVEPOINT_OK, run_over=False)
    assert isinstance(told, AnswerCommand) and told.answer.code == SAVEPOINT_OK
    actions = stopped.feed(RunTornDown(RunEnded("drain", 7, "sp", "stop")), after_ms=60_000)
    assert statuses(actions) == ["STOPPED"]


def test_cancel_leaves_a_complete_savepoint_to_be_restored() -> None:
    """S7.7."""
    stopped = running("cancel")
    stopped.time_up()
    assert [type(a) for a in stopped.told(SAVEPOINT_OK, run_over=False)] == [FailCurrentRun]
    actions = stopped.feed(RunTornDown(RunFailed("cancelled"), stop=StopPoint(7, "/sp-7", "drain")))
    told = farewell(actions, "stop", "stop")
    assert (told.ok, told.code, told.data["path"]) == (False, SAVEPOINT_OK, "/sp-7")
    assert statuses(actions) == ["CANCELED"] and actions[0].data["stop"]["outcome"] == SAVEPOINT_OK


@pytest.mark.parametrize("phase", ["waiting", "pausing"])
@pytest.mark.parametrize("on_timeout", ["keep_running", "suspend", "cancel"])
def test_without_a_run_the_command_is_judged_again_before_anything_follows(phase: str, on_timeout: str) -> None:
    """S9.4: it may have been withdrawn."""
    stopped = Stopped(restart_delay="1 h")
    PHASES[phase](stopped)
    stopped.ask(on_timeout)
    assert chosen(stopped.feed(Tick(), after_ms=10_000), JudgeStop) == [JudgeStop("stop")]
    assert chosen(stopped.feed(Tick(), after_ms=1_000), JudgeStop) == [JudgeStop("stop")], "the store did not tell"
    actions = stopped.feed(StopJudged("stop", True, None, (6, "job/chk-6")))
    match on_timeout:
        case "keep_running":
            (told,) = actions
            assert told.answer.code == SAVEPOINT_FAILED and "no run of the job was active" in told.answer.message
        case "suspend":
            assert actions == []
        case "cancel":
            assert statuses(actions) == ["CANCELED"]
            assert farewell(actions, "stop", "stop").code == CANCELED_IN_STOP


@pytest.mark.parametrize("on_timeout", ["keep_running", "suspend"])
def test_a_complete_savepoint_that_no_run_commits_in_time_is_told_as_complete(on_timeout: str) -> None:
    """S7.7: an earlier run or driver took it, and the next run commits it."""
    stopped = Stopped()
    stopped.to_waiting()
    stopped.ask(on_timeout)
    stopped.feed(Tick(), after_ms=10_000)
    (told,) = stopped.feed(StopJudged("stop", True, StopPoint(7, "/sp-7", "drain"), (7, "/sp-7")))
    assert isinstance(told, AnswerCommand)
    assert (told.answer.ok, told.answer.code, told.answer.data["path"]) == (False, SAVEPOINT_OK, "/sp-7")


def test_a_withdrawn_stop_cancels_nothing_when_its_time_is_up() -> None:
    """S9.4."""
    stopped = Stopped()
    stopped.to_waiting()
    stopped.ask("cancel")
    stopped.feed(Tick(), after_ms=10_000)
    assert stopped.feed(StopJudged("stop", False)) == []
    assert chosen(stopped.feed(SlotsAvailable()), StartRun) == [StartRun(())]


def test_a_stop_that_fails_before_its_time_is_up_is_not_timed_out() -> None:
    """S7.7: another cause: the job restarts, whatever `on_timeout` says."""
    stopped = running("cancel")
    assert stopped.told() == []
    assert statuses(stopped.feed(RunTornDown(BOOM))) == ["RESTARTING"]


def failed_and_down(on_timeout: str, restart_delay: str = "1 h") -> Stopped:
    """A stop that failed with its run a second after it was asked for; the job waits for its next run."""
    stopped = Stopped(restart_attempts="none", restart_delay=restart_delay)
    stopped.to_running()
    stopped.ask(on_timeout)
    stopped.feed(Tick(), after_ms=1_000)
    assert stopped.told() == []
    stopped.feed(RunTornDown(BOOM))
    return stopped


@pytest.mark.parametrize("on_timeout", ["keep_running", "suspend", "cancel"])
def test_a_stop_that_failed_with_its_run_has_its_time_all_the_same(on_timeout: str) -> None:
    """S7.7: each run may fail in its turn, and the job never be up again to tell so."""
    stopped = failed_and_down(on_timeout)
    assert stopped.feed(Tick(), after_ms=8_999) == []
    assert chosen(stopped.feed(Tick(), after_ms=1), JudgeStop) == [JudgeStop("stop")]
    actions = stopped.feed(StopJudged("stop", True, None, (6, "job/chk-6")))
    match on_timeout:
        case "keep_running":
            (told,) = actions
            assert told.answer.code == SAVEPOINT_FAILED
            assert told.answer.message == "held up by out; so what; the job is not running again yet"
        case "suspend":
            assert actions == []
            stopped.feed(Tick(), after_ms=3_600_000)
            (start,) = chosen(stopped.feed(SlotsAvailable()), StartRun)
            assert [(request.request_id, request.stop) for request in start.requests] == [("stop", "suspend")]
        case "cancel":
            assert statuses(actions) == ["CANCELED"]
            assert farewell(actions, "stop", "stop").code == CANCELED_IN_STOP


def test_a_withdrawn_stop_that_failed_with_its_run_is_not_answered_when_the_job_ends() -> None:
    """S9.4: its answer was held back until the job is up again."""
    stopped = failed_and_down("keep_running")
    stopped.feed(Tick(), after_ms=9_000)
    stopped.feed(StopJudged("stop", False))
    assert chosen(stopped.feed(Terminated()), AnswerCommand) == []


def test_a_stop_that_failed_is_told_once_when_the_job_is_up_in_time() -> None:
    stopped = failed_and_down("cancel", "2 s")
    stopped.feed(Tick(), after_ms=2_000)
    stopped.feed(SlotsAvailable())
    (told,) = chosen(stopped.feed(RunStarted("r2", "job/chk-6")), AnswerCommand)
    assert told.answer.message == "held up by out; so what"
    assert stopped.feed(Tick(), after_ms=9_000) == []


def test_a_run_that_comes_up_as_the_time_of_a_failed_stop_is_up_is_waited_for() -> None:
    """It does not have the stop; when it fails, too, the stop is told."""
    stopped = failed_and_down("keep_running", "2 s")
    stopped.feed(Tick(), after_ms=2_000)
    stopped.feed(SlotsAvailable())
    assert chosen(stopped.feed(Tick(), after_ms=7_000), DeliverToRun) == []
    stopped.feed(RunTornDown(BOOM))
    assert chosen(stopped.feed(Tick()), JudgeStop) == [JudgeStop("stop")]
    (told,) = stopped.feed(StopJudged("stop", True))
    assert isinstance(told, AnswerCommand) and told.answer.code == SAVEPOINT_FAILED


def test_a_stop_that_was_given_up_waits_as_long_again_for_the_job() -> None:
    """S7.7."""
    stopped = running("keep_running", restart_attempts="none", restart_delay="1 h")
    stopped.time_up()
    stopped.told()
    stopped.feed(GIVEN_UP)
    stopped.feed(SlotsAvailable())
    stopped.feed(RunTornDown(BOOM))
    assert stopped.feed(Tick(), after_ms=9_999) == []
    assert chosen(stopped.feed(Tick(), after_ms=1), JudgeStop) == [JudgeStop("stop")]


def test_a_stop_that_expires_with_its_time_is_timed_out() -> None:
    """S1.4, S7.7: the run noticed first."""
    stopped = running("cancel")
    stopped.now_ms = 10_000
    assert [type(a) for a in stopped.told()] == [FailCurrentRun]


def test_a_stop_that_came_too_late_for_its_run_is_judged_as_one_without() -> None:
    """The run was over when it was to give the stop up: the stop is carried on, its time is up all the same."""
    stopped = running("keep_running")
    stopped.time_up()
    again = SnapshotRequest("stop-savepoint", False, "stop", "drain", "/sp", timeout_ms=10_000, by="anna")
    stopped.feed(RunTornDown(BOOM, again=(again, GIVE_UP)))
    assert stopped.feed(Tick()) == [JudgeStop("stop")]
    assert [type(a) for a in stopped.feed(StopJudged("stop", True))] == [AnswerCommand]
    assert chosen(stopped.resume(), StartRun) == [StartRun(())]


def test_a_stop_that_was_withdrawn_before_its_second_try_says_nothing_of_another_stop() -> None:
    """S7.7, S9.4: the job was stopped by that one, at its first try."""
    stopped = running("suspend")
    stopped.time_up()
    stopped.told()
    stopped.feed(GIVEN_UP)
    stopped.feed(SlotsAvailable())  # who starts the run finds it withdrawn
    stopped.feed(RunStarted("r2", "job/chk-6"), CommandArrived(command("other", "stop", mode="drain")))
    told = farewell(stopped.feed(RunTornDown(RunEnded("drain", 8, "job/sp-8", "other"))), "other", "stop")
    assert (told.code, told.data["mode"]) == ("committed", "drain") and "asked_mode" not in told.data


# ---------------------------------------------------------------- SIGTERM


def test_sigterm_whose_stop_is_refused_ends_at_once_with_the_reason() -> None:
    """S7.7: nothing would come of waiting for sigterm_timeout."""
    driven = Driven().to_running()
    driven.feed(Terminated())
    refused = CommandAnswer(SIGTERM_STOP, False, "claim_failed", "no savepoint can be written to '/full'")
    (fail,) = driven.feed(RunAnswered(refused, run_over=False))
    assert isinstance(fail, FailCurrentRun)
    actions = driven.feed(RunTornDown(fail.failure))
    assert statuses(actions) == ["FAILED"] and "/full" in actions[-3].data["reason"]


def test_sigterm_waits_for_a_stop_that_is_on_its_way() -> None:
    driven = Driven().to_running()
    driven.feed(CommandArrived(command("stop", "stop")), Terminated())
    refused = CommandAnswer(SIGTERM_STOP, False, "stop_in_progress", "a stop is on its way")
    assert driven.feed(RunAnswered(refused, run_over=False)) == []
    assert chosen(driven.feed(Tick(), after_ms=5_000), FailCurrentRun)


def test_sigterm_gives_up_whichever_stop_is_on_its_way() -> None:
    """S7.7: and its failure says who held it up."""
    run = stopping()
    (fail,) = of(run.send(TimeOutStop(None, "sigterm_timeout 20 s")), ev.FailRun)
    assert "within sigterm_timeout 20 s: held up by operator src" in fail.reason
