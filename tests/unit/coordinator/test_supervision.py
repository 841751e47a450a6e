"""What happens around and between runs: restarts, commands, signals, and how the job ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.coordinator.events import CommandAnswer, SnapshotRequest, TimeOutStop
from tidegate.coordinator.job_run import RunEnded, RunFailed, StopTimedOut
from tidegate.coordinator.recovery.restore_point import end_status
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
from tidegate.coordinator.supervision.supervisor import SIGTERM_STOP, Supervisor
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command, Decision
from tidegate.jobs.stop_outcomes import CANCELED_IN_STOP, ON_TIMEOUT, SAVEPOINT_FAILED, SAVEPOINT_OK

BOOM = RunFailed("boom", operator="explode", subtask=1)
STOP_POINT = StopPoint(7, "job/savepoints/sp-7", "suspend")
STOPPED = RunEnded("suspend", 7, STOP_POINT.path, "stop")
SAVEPOINT = SnapshotRequest("savepoint", request_id="sp", by="anna")
STOP_REFUSED = CommandAnswer("stop", False, SAVEPOINT_FAILED, "the stop-savepoint failed, the job restarts")


def command(command_id: str, verb: Any, **arguments: Any) -> Command:
    return Command(command_id, verb, arguments, 1, "t", "t", "anna")


class Driven:
    """A supervisor and what it asked for; `step` takes it to a phase."""

    def __init__(self, **options: Any) -> None:
        given = {"restart_strategy": "fixed_delay", "restart_delay": "100 ms", "sigterm_timeout": "5 s", **options}
        self.supervisor = Supervisor(JobOptions(**given))
        self.now_ms = 0
        self.actions: list[SupervisionAction] = []

    def feed(self, *events: SupervisionEvent, after_ms: int = 0) -> list[Any]:
        self.now_ms += after_ms
        out: list[SupervisionAction] = []
        for event in events:
            out += self.supervisor.handle(event, self.now_ms)
        self.actions += out
        return out

    def to_waiting(self) -> Driven:
        self.feed(BeginSupervision())
        return self

    def to_running(self) -> Driven:
        self.to_waiting().feed(SlotsAvailable(), RunStarted("r1"))
        return self

    def to_pausing(self) -> Driven:
        self.to_running().feed(RunTornDown(BOOM))
        return self

    def resume(self) -> list[Any]:
        """To the next run, past pause and wait."""
        wake_ms = self.supervisor.next_wake_ms()
        assert wake_ms is not None
        self.now_ms = wake_ms
        return self.feed(Tick(), SlotsAvailable())


def of(actions: Sequence[Any], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def statuses(actions: Sequence[Any]) -> list[str]:
    return [action.status for action in of(actions, RecordStatus)]


def farewell(actions: Sequence[Any], command_id: str, verb: Any) -> CommandAnswer:
    """What an open command is answered when the job ends."""
    (last,) = of(actions, AnswerAllOpen)
    answer = last.to(command(command_id, verb))
    assert isinstance(answer, CommandAnswer) and answer.request_id == command_id
    return answer


PHASES = {"waiting": Driven.to_waiting, "running": Driven.to_running, "pausing": Driven.to_pausing}


# ---------------------------------------------------------------- a job without trouble


def test_a_job_waits_for_slots_runs_and_finishes() -> None:
    """S7.5."""
    driven = Driven()
    assert driven.feed(BeginSupervision()) == [RecordStatus("WAITING_FOR_SLOTS"), WaitForSlots()]
    assert driven.feed(SlotsAvailable()) == [CheckGeneration(), StartRun(())]
    restored = RunStarted("r1", restored_from="job/chk-1")
    assert driven.feed(restored) == [RecordStatus("RUNNING", {"run_id": "r1", "restored_from": "job/chk-1"})]
    actions = driven.feed(RunTornDown(RunEnded(None, None, None, None)))
    assert statuses(actions) == ["FINISHED"]
    assert farewell(actions, "sp", "savepoint").code == "job_ended"
    assert actions[-1] == EndDriver(0)
    assert driven.supervisor.next_wake_ms() is None


@pytest.mark.parametrize(
    ("status", "data", "verb", "code"),
    [
        ("FINISHED", {}, "savepoint", "job_ended"),
        ("CANCELED", {"reason": "by me"}, "cancel", "canceled"),
        ("STOPPED", {"stop": {"mode": "suspend", "checkpoint_id": 7, "path": "/sp"}}, "stop", "committed"),
    ],
)
def test_a_driver_launched_for_a_submission_that_has_ended_says_so_and_runs_nothing(
    status: str, data: dict[str, Any], verb: str, code: str
) -> None:
    """S9.2, S7.5: a late launch, or a driver that stalled while another one ended the job."""
    actions = Driven().feed(BeginSupervision((status, data)))
    assert actions[0] == RecordStatus(status, data)
    assert farewell(actions, "c", verb).code == code
    assert actions[-1] == EndDriver(0)
    assert not of(actions, WaitForSlots)


def test_only_a_submission_that_came_to_its_end_is_not_run_again() -> None:
    """S9.1: one that failed may be tried again; another submission's end is none of ours."""

    def log(*entries: tuple[str, dict[str, Any]]) -> list[Decision]:
        return [Decision(n, kind, 1, "", "", "", data) for n, (kind, data) in enumerate(entries, 1)]  # type: ignore[arg-type]

    fence = ("fence", {"spec": 1, "launch": 1})
    stopped = ("status", {"status": "STOPPED", "stop": {"mode": "drain"}})
    assert end_status(log(fence, stopped, fence), 1) == ("STOPPED", {"stop": {"mode": "drain"}})
    assert end_status(log(fence, stopped, ("fence", {"spec": 2, "launch": 1})), 2) is None
    assert end_status(log(fence, ("status", {"status": "FAILED"})), 1) is None
    assert end_status(log(fence, ("status", {"status": "RUNNING"})), 1) is None
    assert end_status(log(fence), 1) is None


def test_a_stop_is_answered_when_the_whole_job_has_ended() -> None:
    """S7.5: both the command that caused the savepoint and one that came behind it."""
    driven = Driven().to_running()
    asked = driven.feed(CommandArrived(command("stop", "stop", mode="drain", path="/sp")))
    assert asked == [
        DeliverToRun(SnapshotRequest("stop-savepoint", False, "stop", "drain", "/sp", timeout_ms=600_000, by="anna"))
    ]
    actions = driven.feed(RunTornDown(STOPPED))
    assert statuses(actions) == ["STOPPED"]
    for command_id in ("stop", "stop-2"):
        answer = farewell(actions, command_id, "stop")
        assert (answer.ok, answer.code) == (True, "committed")
        assert (
            answer.data
            == actions[0].data["stop"]
            == {
                "outcome": "committed",
                "mode": "suspend",
                "checkpoint_id": 7,
                "path": STOP_POINT.path,
            }
        )
    assert farewell(actions, "sp", "savepoint").code == "job_ended"
    kinds = [type(action) for action in actions]
    assert kinds == [RecordStatus, AnswerAllOpen, EndDriver], "who reads the answer finds the job stopped"


def test_commands_reach_the_run_as_requests() -> None:
    driven = Driven().to_running()
    asked = driven.feed(CommandArrived(command("c", "checkpoint")))
    assert asked == [DeliverToRun(SnapshotRequest("checkpoint", request_id="c", by="anna"))]
    assert driven.feed(CommandArrived(command("sp", "savepoint", path="/here"))) == [
        DeliverToRun(SnapshotRequest("savepoint", request_id="sp", path="/here", by="anna"))
    ]
    answer = CommandAnswer("sp", True, "completed", "done")
    assert driven.feed(RunAnswered(answer, run_over=False)) == [AnswerCommand(answer)]


# ---------------------------------------------------------------- restarts


def test_a_failed_run_is_followed_by_another_after_the_delay() -> None:
    """S9.1."""
    driven = Driven().to_running()
    assert driven.feed(RunTornDown(BOOM), after_ms=500) == [
        RecordFailure(BOOM),
        RecordStatus("RESTARTING", {"reason": "boom"}),
    ]
    assert (driven.supervisor.next_wake_ms(), driven.supervisor.restarts) == (600, 1)
    assert driven.feed(Tick(), after_ms=99) == []
    assert driven.feed(Tick(), after_ms=1) == [WaitForSlots()]
    assert driven.feed(SlotsAvailable()) == [CheckGeneration(), StartRun(())]


def test_a_job_out_of_restarts_fails_with_the_first_root_cause() -> None:
    """S9.1: what the later runs met may be its consequence."""
    driven = Driven(restart_attempts=2).to_running()
    driven.feed(RunTornDown(BOOM))
    for n in range(2):
        driven.resume()
        actions = driven.feed(RunTornDown(RunFailed(f"consequence {n}")))
    assert of(actions, RecordFailure) == [RecordFailure(RunFailed("consequence 1")), RecordFailure(BOOM)]
    assert [s.data["reason"] for s in of(actions, RecordStatus)] == ["after 2 restarts: boom"]
    assert statuses(actions) == ["FAILED"]
    answer = farewell(actions, "sp", "savepoint")
    assert (answer.ok, answer.code, answer.message) == (False, "job_failed", "boom")
    assert actions[-1] == EndDriver(6)


def test_a_cause_that_repeats_is_recorded_once_for_each_run() -> None:
    driven = Driven(restart_attempts=1).to_running()
    driven.feed(RunTornDown(BOOM))
    driven.resume()
    assert of(driven.feed(RunTornDown(BOOM)), RecordFailure) == [RecordFailure(BOOM)]


def test_a_completed_checkpoint_makes_the_next_failure_the_first() -> None:
    """S9.1."""
    driven = Driven(restart_attempts=1).to_running()
    driven.feed(RunTornDown(RunFailed("long ago")))
    driven.resume()
    driven.feed(RunStarted("r2"), RunProgressed(), RunTornDown(BOOM))
    driven.resume()
    actions = driven.feed(RunTornDown(RunFailed("consequence")))
    assert [s.data["reason"] for s in of(actions, RecordStatus)] == ["after 1 restart: boom"]


def test_without_restarts_the_first_failure_is_the_last() -> None:
    """S9.1."""
    actions = Driven(restart_strategy="none").to_running().feed(RunTornDown(BOOM))
    assert statuses(actions) == ["FAILED"] and actions[-1] == EndDriver(6)


def test_waiting_for_slots_uses_up_no_restart_and_no_time() -> None:
    """S9.1: an hour without slots does not make the failure rate low."""
    driven = Driven(restart_strategy="failure_rate", restart_attempts=1, restart_failure_interval="10 min").to_running()
    driven.feed(RunTornDown(BOOM))
    driven.feed(Tick(), after_ms=100)
    driven.feed(SlotsAvailable(), after_ms=3_600_000)
    assert driven.supervisor.restarts == 1
    assert statuses(driven.feed(RunTornDown(BOOM))) == ["FAILED"]


def test_exponential_delays_are_asked_for_with_the_shells_draw() -> None:
    """S9.1."""
    driven = Driven(restart_strategy="exponential_delay", restart_delay="1 s").to_running()
    driven.feed(RunTornDown(BOOM, draw=0.0))
    assert driven.supervisor.next_wake_ms() == 900
    driven.resume()
    driven.feed(RunTornDown(BOOM, draw=0.0))
    assert driven.supervisor.next_wake_ms() == 900 + 1800


def test_what_no_restart_mends_fails_the_job_at_once_with_its_own_exit_code() -> None:
    """S9.1, S9.3."""
    driven = Driven().to_waiting()
    few = RunFailed("2 of 3 slots", code="slots")
    actions = driven.feed(RunImpossible(few, 9))
    assert of(actions, RecordFailure) == [RecordFailure(few)]
    assert statuses(actions) == ["FAILED"] and actions[-1] == EndDriver(9)


# ---------------------------------------------------------------- requests over a restart


@pytest.mark.parametrize("phase", ["waiting", "pausing"])
def test_a_request_that_comes_when_there_is_no_run_goes_to_the_next(phase: str) -> None:
    driven = PHASES[phase](Driven())
    assert driven.feed(CommandArrived(command("sp", "savepoint"))) == []
    actions = driven.resume() if phase == "pausing" else driven.feed(SlotsAvailable())
    assert of(actions, StartRun) == [StartRun((SAVEPOINT,))]


def test_requests_that_a_failed_run_left_go_to_the_next_once() -> None:
    """S1.2."""
    driven = Driven().to_running()
    checkpoint = SnapshotRequest("checkpoint", request_id="c", by="anna")
    driven.feed(RunTornDown(BOOM, again=(SAVEPOINT, checkpoint)))
    assert of(driven.resume(), StartRun) == [StartRun((SAVEPOINT, checkpoint))]
    driven.feed(RunTornDown(BOOM))
    assert of(driven.resume(), StartRun) == [StartRun(())]


# ---------------------------------------------------------------- stops that go wrong


def test_a_failed_stop_is_answered_when_the_next_run_is_up() -> None:
    """S7.7: "the job continues" is said when it is known to."""
    driven = Driven().to_running()
    assert driven.feed(RunAnswered(STOP_REFUSED, run_over=True), RunTornDown(BOOM))[0] == RecordFailure(BOOM)
    assert of(driven.resume(), AnswerCommand) == []
    assert driven.feed(RunStarted("r2"))[-1] == AnswerCommand(STOP_REFUSED)
    assert of(driven.feed(RunStarted("r3")), AnswerCommand) == []


def test_a_stop_that_failed_without_the_run_is_answered_at_once() -> None:
    """S7.7: before any EndOfData flowed the job goes on as before."""
    driven = Driven().to_running()
    assert driven.feed(RunAnswered(STOP_REFUSED, run_over=False)) == [AnswerCommand(STOP_REFUSED)]


def test_a_failed_stop_of_a_job_that_fails_then_says_so() -> None:
    """S7.7."""
    driven = Driven(restart_attempts=1).to_running()
    driven.feed(RunAnswered(STOP_REFUSED, run_over=True), RunTornDown(BOOM))
    driven.resume()
    actions = driven.feed(RunTornDown(RunFailed("again")))
    (answer,) = of(actions, AnswerCommand)
    assert (answer.answer.request_id, answer.answer.code) == ("stop", "job_failed")
    assert STOP_REFUSED.message in answer.answer.message and "the job did not run again: boom" in answer.answer.message


def test_a_failed_stop_of_a_job_that_is_cancelled_then_says_so() -> None:
    """S7.7."""
    driven = Driven().to_running()
    driven.feed(RunAnswered(STOP_REFUSED, run_over=True), RunTornDown(BOOM))
    actions = driven.feed(CommandArrived(command("c", "cancel")))
    (answer,) = of(actions, AnswerCommand)
    assert answer.answer.code == "job_ended" and "cancelled by anna" in answer.answer.message


def test_a_stop_whose_savepoint_turns_out_complete_is_not_told_that_it_failed() -> None:
    """S7.7: the entry was written, though the store's answer was lost; the next run commits it."""
    driven = Driven().to_running()
    driven.feed(RunAnswered(STOP_REFUSED, run_over=True), RunTornDown(BOOM, stop=STOP_POINT))
    driven.resume()
    assert of(driven.feed(RunStarted("r2", STOP_POINT.path, commit_only=True)), AnswerCommand) == []
    actions = driven.feed(RunTornDown(STOPPED))
    assert of(actions, AnswerCommand) == []
    assert farewell(actions, "stop", "stop").code == "committed"


def test_a_stop_whose_commit_fails_for_good_is_told_that_its_savepoint_is_valid() -> None:
    """S7.7."""
    driven = Driven(restart_attempts=0).to_running()
    driven.feed(CommandArrived(command("stop", "stop")))
    actions = driven.feed(RunTornDown(RunFailed("the sink is away"), stop=STOP_POINT))
    assert statuses(actions) == ["FAILED"]
    answer = farewell(actions, "stop", "stop")
    assert (answer.ok, answer.code) == (False, SAVEPOINT_OK)
    assert answer.data["path"] == STOP_POINT.path and "complete and valid" in answer.message
    assert "the sink is away" in answer.message
    assert farewell(actions, "sp", "savepoint").code == "job_failed"


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize("phase", ["waiting", "pausing"])
def test_a_cancel_without_a_run_ends_the_job_at_once(phase: str) -> None:
    actions = PHASES[phase](Driven()).feed(CommandArrived(command("c", "cancel")))
    assert statuses(actions) == ["CANCELED"] and actions[-1] == EndDriver(0)
    assert farewell(actions, "c", "cancel").ok
    assert farewell(actions, "sp", "savepoint").code == "job_ended"


def test_a_cancel_fails_the_run_and_then_ends_the_job() -> None:
    driven = Driven().to_running()
    (action,) = driven.feed(CommandArrived(command("c", "cancel")))
    assert isinstance(action, FailCurrentRun) and "cancelled by anna" in action.failure.message
    actions = driven.feed(RunTornDown(action.failure))
    assert statuses(actions) == ["CANCELED"]
    assert of(actions, RecordFailure) == [], "a cancelled job has not failed"


def test_a_second_cancel_is_answered_like_the_first() -> None:
    """S9.4: before the run is down, and when it comes after the end."""
    driven = Driven().to_running()
    (failing,) = driven.feed(CommandArrived(command("c1", "cancel")))
    assert driven.feed(CommandArrived(command("c2", "cancel"))) == []
    actions = driven.feed(RunTornDown(failing.failure))
    answers = [farewell(actions, command_id, "cancel") for command_id in ("c1", "c2")]
    assert [(a.ok, a.code) for a in answers] == [(True, "canceled")] * 2
    late = driven.feed(CommandArrived(command("c3", "cancel")))
    assert [(a.answer.request_id, a.answer.code) for a in of(late, AnswerCommand)] == [("c3", "canceled")]


def test_a_cancel_that_meets_the_jobs_own_end_is_refused() -> None:
    driven = Driven().to_running()
    driven.feed(CommandArrived(command("c", "cancel")))
    actions = driven.feed(RunTornDown(RunEnded(None, None, None, None)))
    assert statuses(actions) == ["FINISHED"]
    assert farewell(actions, "c", "cancel").code == "job_ended"


@pytest.mark.parametrize(("retention", "deletes"), [("keep", False), ("delete", True)])
def test_checkpoints_go_on_cancellation_when_the_job_says_so(retention: str, deletes: bool) -> None:
    """S2.3: after the status is recorded, which proves that this driver still generation_logs."""
    actions = Driven(retention=retention).to_waiting().feed(CommandArrived(command("c", "cancel")))
    expected = [RecordStatus, DeleteCheckpoints] if deletes else [RecordStatus, AnswerAllOpen]
    assert [type(action) for action in actions][:2] == expected


def failing(code: str = "", **facts: Any) -> RunTornDown:
    given = {"message": "OperationalError: connection refused", "operator": "out", "subtask": 0, "traceback": "..."}
    return RunTornDown(RunFailed(**{**given, "code": code, **facts}))


def test_by_default_a_database_that_is_away_for_five_minutes_does_not_fail_the_job() -> None:
    """S9.1: the pauses grow, and no attempt is counted."""
    supervisor, now_ms = Supervisor(JobOptions()), 0
    supervisor.handle(BeginSupervision(), now_ms)
    while now_ms < 300_000:
        for event in (SlotsAvailable(), RunStarted("r")):
            supervisor.handle(event, now_ms)
        actions = supervisor.handle(failing(), now_ms + 100)
        assert statuses(actions) == ["RESTARTING"], f"after {now_ms} ms"
        wake_ms = supervisor.next_wake_ms()
        assert wake_ms is not None
        now_ms = wake_ms
        while of(supervisor.handle(Tick(), now_ms), WaitForSlots) == []:
            now_ms = supervisor.next_wake_ms() or 0


@pytest.mark.parametrize("code", ["snapshot", "missing_file", "environment", "sink_conflict"])
def test_what_no_restart_can_cure_fails_the_job_at_once(code: str) -> None:
    """S9.1: whatever the strategy."""
    actions = Driven(restart_attempts="none").to_running().feed(failing(code))
    assert statuses(actions) == ["FAILED"]
    assert "a restart cannot fix" in actions[-3].data["reason"] and "connection refused" in actions[-3].data["reason"]


@pytest.mark.parametrize("code", ["user_error", "runtime_error", "data", "sum_overflow", "slot_memory", "of a plug-in"])
def test_the_same_error_about_the_same_data_three_times_fails_the_job(code: str) -> None:
    """S9.1: the row is the same, when no checkpoint has completed between."""
    driven = Driven(restart_attempts="none").to_running()
    for _ in range(2):
        assert statuses(driven.feed(failing(code))) == ["RESTARTING"]
        driven.resume()
        driven.feed(RunStarted("r"))
    actions = driven.feed(failing(code))
    assert statuses(actions) == ["FAILED"] and "3 times in a row" in str(actions)


@pytest.mark.parametrize("between", [RunProgressed(), "another", "elsewhere"])
def test_errors_about_different_data_are_restarted_from(between: Any) -> None:
    """S9.1."""
    driven = Driven(restart_attempts="none").to_running()
    for _ in range(5):
        for failure in (failing("user_error"), failing("user_error")):
            assert statuses(driven.feed(failure)) == ["RESTARTING"]
            driven.resume()
            driven.feed(RunStarted("r"))
        if between == "another":
            driven.feed(failing("user_error", message="ValueError: x"))
        elif between == "elsewhere":
            driven.feed(failing("user_error", subtask=1))
        else:
            driven.feed(between)
            continue
        driven.resume()
        driven.feed(RunStarted("r"))


@pytest.mark.parametrize(("retention", "deletes"), [("keep", False), ("delete", True)])
def test_checkpoints_of_a_finished_job_go_when_the_job_says_so(retention: str, deletes: bool) -> None:
    """S2.3: after the status is recorded, which proves that this driver still generation_logs."""
    actions = Driven(retention=retention).to_running().feed(RunTornDown(RunEnded(None, None, None, None)))
    expected = [RecordStatus, DeleteCheckpoints] if deletes else [RecordStatus, AnswerAllOpen]
    assert statuses(actions) == ["FINISHED"] and [type(action) for action in actions][:2] == expected


@pytest.mark.parametrize(
    ("status", "data", "deletes"),
    [
        ("FINISHED", {}, True),
        ("CANCELED", {}, True),
        ("CANCELED", {"stop": {"outcome": CANCELED_IN_STOP}, "reason": "too late"}, False),
        ("FINISHED_COMMIT_PENDING", {"uncommitted": [1]}, False),
    ],
)
def test_a_driver_that_finds_the_job_ended_deletes_what_the_one_before_it_may_have_left(
    status: str, data: dict[str, Any], deletes: bool
) -> None:
    """S2.3: that one may have died between the status and the deletion."""
    actions = Supervisor(JobOptions(retention="delete")).handle(BeginSupervision((status, data)), 0)
    assert bool(of(actions, DeleteCheckpoints)) == deletes


PENDING = RunTornDown(RunEnded(None, None, None, None, (3,)))


@pytest.mark.parametrize("ending", [RunTornDown(BOOM), RunTornDown(STOPPED), PENDING])
def test_a_job_that_ends_otherwise_keeps_its_checkpoints(ending: RunTornDown) -> None:
    """S2.3."""
    driven = Driven(retention="delete", restart_strategy="none").to_running()
    assert of(driven.feed(ending), DeleteCheckpoints) == []


# ---------------------------------------------------------------- SIGTERM


def test_sigterm_suspends_the_job_with_a_savepoint() -> None:
    driven = Driven().to_running()
    assert driven.feed(Terminated()) == [
        DeliverToRun(SnapshotRequest("stop-savepoint", request_id=SIGTERM_STOP, stop="suspend"))
    ]
    assert driven.feed(Terminated()) == []
    actions = driven.feed(RunTornDown(STOPPED), after_ms=1_000)
    assert statuses(actions) == ["STOPPED"] and actions[-1] == EndDriver(0)


def test_a_savepoint_that_takes_longer_than_sigterm_timeout_is_not_waited_for() -> None:
    driven = Driven().to_running()
    driven.feed(Terminated())
    assert driven.supervisor.next_wake_ms() == 5_000
    assert driven.feed(Tick(), after_ms=4_999) == []
    asked, action = driven.feed(Tick(), after_ms=1)
    assert asked == DeliverToRun(TimeOutStop(None, "sigterm_timeout 5 s")), "which names who held it up"
    assert isinstance(action, FailCurrentRun) and "sigterm_timeout" in action.failure.message
    assert of(driven.feed(Tick(), after_ms=60_000), FailCurrentRun) == []
    actions = driven.feed(RunTornDown(action.failure))
    assert statuses(actions) == ["FAILED"] and actions[-1] == EndDriver(143)
    (failure,) = of(actions, RecordFailure)
    assert "Restore the latest checkpoint" in failure.failure.message


def test_sigterm_ends_a_job_that_takes_no_savepoints_at_once() -> None:
    """S1.2: checkpoint_mode off."""
    driven = Driven(checkpoint_mode="off").to_running()
    (action,) = driven.feed(Terminated())
    assert isinstance(action, FailCurrentRun) and "checkpoint_mode is off" in action.failure.message
    assert driven.feed(RunTornDown(action.failure))[-1] == EndDriver(143)


def test_a_run_that_fails_after_sigterm_is_not_tried_again() -> None:
    driven = Driven().to_running()
    driven.feed(Terminated())
    actions = driven.feed(RunTornDown(BOOM))
    assert statuses(actions) == ["FAILED"] and actions[-1] == EndDriver(143)
    assert "boom" in of(actions, RecordFailure)[0].failure.message


def test_sigterm_between_savepoint_and_commit_names_the_savepoint() -> None:
    """S7.7."""
    driven = Driven().to_running()
    driven.feed(Terminated())
    actions = driven.feed(RunTornDown(BOOM, stop=STOP_POINT))
    assert STOP_POINT.path in of(actions, RecordStatus)[0].data["reason"]
    assert farewell(actions, "stop", "stop").code == SAVEPOINT_OK


@pytest.mark.parametrize(("phase", "reason"), [("waiting", "no run of the job had started"), ("pausing", "boom")])
def test_sigterm_without_a_run_ends_the_job_with_a_status(phase: str, reason: str) -> None:
    actions = PHASES[phase](Driven()).feed(Terminated())
    assert statuses(actions) == ["FAILED"] and actions[-1] == EndDriver(143)
    assert reason in of(actions, RecordStatus)[0].data["reason"]


def test_a_cancel_counts_more_than_sigterm() -> None:
    driven = Driven().to_running()
    driven.feed(Terminated(), CommandArrived(command("c", "cancel")))
    assert statuses(driven.feed(RunTornDown(BOOM))) == ["CANCELED"]


# ---------------------------------------------------------------- a newer driver


@pytest.mark.parametrize("phase", PHASES)
def test_a_driver_that_appends_nothing_looks_once_per_heartbeat_timeout_whether_it_still_reigns(phase: str) -> None:
    """S9.2: without periodic checkpoints it may append nothing for ever, and a newer driver waits for its slots."""
    driven = PHASES[phase](Driven(heartbeat_timeout="30 s", restart_delay="10 min"))
    assert driven.supervisor.next_wake_ms() == 30_000
    assert driven.feed(Tick(), after_ms=29_999) == []
    assert driven.feed(Tick(), after_ms=1) == [CheckGeneration()]
    assert driven.supervisor.next_wake_ms() == 60_000
    assert driven.feed(Tick(), after_ms=30_000) == [CheckGeneration()]


def test_a_driver_looks_whether_it_still_reigns_before_every_run() -> None:
    """S9.2: also when the last look was just now."""
    driven = Driven().to_pausing()
    assert driven.resume() == [WaitForSlots(), CheckGeneration(), StartRun(())]
    assert driven.supervisor.next_wake_ms() == driven.now_ms + 30_000


# ---------------------------------------------------------------- always


class Shell:
    """Drives a supervisor as its docstring says, at random."""

    def __init__(self, draw: Any, options: dict[str, Any]) -> None:
        self.draw = draw
        self.supervisor = Supervisor(JobOptions(**options))
        self.now_ms = 0
        self.waiting = self.running = False
        self.exit_code: int | None = None
        self.owed: dict[str, Command] = {}
        self.told: set[str] = set()
        self.later: list[SupervisionEvent] = []
        self.statuses: list[str] = []
        self.sent = 0

    def feed(self, event: SupervisionEvent) -> None:
        for action in self.supervisor.handle(event, self.now_ms):
            assert self.exit_code is None, "nothing is asked after EndDriver"
            self.carry_out(action)

    def carry_out(self, action: SupervisionAction) -> None:
        match action:
            case WaitForSlots():
                assert not self.waiting and not self.running
                self.waiting = True
            case StartRun():
                assert self.waiting and not self.running
                self.waiting, self.running = False, True
            case DeliverToRun() | FailCurrentRun():
                assert self.running, "a run is spoken to only while it is there"
                if isinstance(action, DeliverToRun) and isinstance(action.request, TimeOutStop):
                    self.give_up(action.request)
            case JudgeStop(command_id):
                assert not self.running, "a run would tell"
                self.later.append(StopJudged(command_id, self.draw(st.booleans()), None, (3, "chk-3")))
                if not self.later[-1].wanted:  # withdrawn: nothing is owed
                    self.owed.pop(command_id, None)
            case RecordStatus(status, _):
                assert not {"FINISHED", "STOPPED", "FAILED", "CANCELED"} & set(self.statuses[-1:])
                self.statuses.append(status)
            case AnswerCommand(answer):
                del self.owed[answer.request_id]
            case AnswerAllOpen():
                assert all(action.to(command).request_id == command_id for command_id, command in self.owed.items())
                self.owed.clear()
            case EndDriver(exit_code):
                self.exit_code, self.waiting = exit_code, False

    def give_up(self, asked: TimeOutStop) -> None:
        """What a run may say: nothing had begun, it fails over, the savepoint is complete, or it knows of no stop."""
        said = self.draw(st.sampled_from(["untouched", "over", "complete", "unknown"]))
        if asked.request_id is None or said == "unknown":
            return
        code = SAVEPOINT_OK if said == "complete" else SAVEPOINT_FAILED
        answer = CommandAnswer(asked.request_id, False, code, "late", {"outcome": code, "mode": "drain"})
        self.later.append(RunAnswered(answer, run_over=said == "over"))
        if said == "over":
            self.told.add(asked.request_id)  # no later run hears of it
            self.later.append(RunTornDown(StopTimedOut("late"), latest=(3, "chk-3")))

    def step(self) -> None:
        if self.later:
            event = self.later.pop(0)
            if isinstance(event, RunTornDown) and not self.running:
                return
            self.running = self.running and not isinstance(event, RunTornDown)
            self.feed(event)
            return
        choices = ["command", "tick", "sigterm"]
        choices += ["slots", "too few"] if self.waiting else []
        choices += ["up", "progress", "failed", "failed", "stop failed", "ended", "stopped"] if self.running else []
        what = self.draw(st.sampled_from(choices))
        if what == "command":
            self.sent += 1
            on_timeout = self.draw(st.sampled_from(ON_TIMEOUT))
            verb = self.draw(st.sampled_from(["stop", "stop", "savepoint", "cancel"]))
            arrived = command(f"c{self.sent}", verb, mode="drain", timeout="1 s", on_timeout=on_timeout)
            self.owed[arrived.command_id] = arrived
            self.feed(CommandArrived(arrived))
        elif what == "tick":
            self.now_ms = max(self.now_ms, self.supervisor.next_wake_ms() or 0)
            self.feed(Tick())
        elif what == "sigterm":
            self.feed(Terminated())
        elif what == "slots":
            self.feed(SlotsAvailable())
        elif what == "too few":
            self.waiting = False
            self.feed(RunImpossible(RunFailed("few"), 9))
        elif what == "up":
            self.feed(RunStarted("r"))
        elif what == "progress":
            self.feed(RunProgressed())
        else:
            self.end_run(what)

    def end_run(self, how: str) -> None:
        if how == "stop failed":
            stop = next((c for c in self.owed.values() if c.verb == "stop" and c.command_id not in self.told), None)
            if stop is not None:
                self.told.add(stop.command_id)
                self.feed(RunAnswered(CommandAnswer(stop.command_id, False, SAVEPOINT_FAILED, "no"), run_over=True))
        self.running = False
        outcome = {"ended": RunEnded(None, None, None, None), "stopped": STOPPED}.get(how, BOOM)
        self.feed(RunTornDown(outcome, draw=self.draw(st.floats(0, 0.99))))


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(["fixed_delay", "exponential_delay", "failure_rate", "none"]),
    st.sampled_from([0, 2]),
)
def test_whatever_happens_the_job_ends_once_and_owes_no_answer(data: Any, strategy: str, attempts: int) -> None:
    """S7.5, S9.1, S9.4."""
    shell = Shell(data.draw, {"restart_strategy": strategy, "restart_attempts": attempts})
    shell.feed(BeginSupervision())
    for _ in range(25):
        if shell.exit_code is not None:
            break
        shell.step()
    while shell.later:
        shell.step()
    if shell.exit_code is None:
        shell.feed(CommandArrived(command("last", "cancel")))
        if shell.running:
            shell.end_run("failed")
    assert shell.exit_code is not None
    assert shell.owed == {}
    assert shell.supervisor.next_wake_ms() is None


@pytest.mark.parametrize("end", [Terminated(), CommandArrived(command("c", "cancel"))])
def test_a_job_ended_between_a_completed_stop_savepoint_and_its_commit_names_the_savepoint(end: Any) -> None:
    """S7.7: it stays valid, and the caller of the stop is told which it was."""
    driven = Driven().to_running()
    driven.feed(RunTornDown(RunFailed("the commit failed"), stop=StopPoint(7, "/sp", "suspend")))
    told = farewell(driven.feed(end), "stop", "stop")
    assert (told.ok, told.code, told.data["path"]) == (False, SAVEPOINT_OK, "/sp")
