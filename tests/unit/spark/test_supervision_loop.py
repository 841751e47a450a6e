"""The driver's loop around the supervisor, without Spark: what threads, commands and signals make of a job."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from builders.jobs import submission

from tidegate.coordinator import events as ev
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.enumeration import Enumerations
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.coordinator.supervision.supervisor import EXIT_JOB_FAILED, SIGTERM_STOP
from tidegate.coordinator.topology import ChainShape, Topology
from tidegate.errors import FencedError, SlotsUnavailableError, SnapshotError, SparkLostError, StoreError
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command, CommandResult, Spec, Withdrawn, decode, encode
from tidegate.jobs.stores.store_registry import open_store
from tidegate.plan.job_graph import JobGraph
from tidegate.spark.application import ui_url
from tidegate.spark.driver_loop import streaming_loop
from tidegate.spark.driver_loop.attempt import DUE_TICK_S, TICK_S, round_wait_s
from tidegate.spark.driver_loop.command_desk import CommandDesk
from tidegate.spark.driver_loop.streaming_loop import StreamingLoop

NOW = "2026-01-01T00:00:00+00:00"
LATER = "2999-01-01T00:00:00+00:00"
LAYOUT = JobLayout("job")
PATIENCE_S = 60
"""For what another thread does at once; only a defect makes a test wait so long."""
_names = itertools.count(1)
Script = Callable[["FakeAttempt"], RunEnded | RunFailed]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_loop, "COMMAND_POLL_S", 0.005)
    monkeypatch.setattr(streaming_loop, "SLOT_POLL_S", 0.005)
    monkeypatch.setattr("tidegate.spark.driver_loop.command_poller.POLL_S", 0.005)


class FakeJob:
    """The parts of a Job that the loop touches: a real log, store and desk, nothing else."""

    def __init__(self, **options: Any) -> None:
        self.root, self.storage_options = f"memory://supervision-{next(_names)}", {}
        self.store, self.layout = open_store(self.root), LAYOUT
        given = {"restart_delay": "10 ms", "sigterm_timeout": "1 min", **options}
        self.options = JobOptions(**given)
        self.spec = submission()
        nonces = map(str, itertools.count())
        self.log = DecisionLog(self.store, LAYOUT, lambda: NOW, lambda: next(nonces))
        self.generation_log = self.log.begin_generation(spec=1, launch=1)
        self.desk = CommandDesk(self.store, LAYOUT, self.spec, 1, lambda: NOW, time.time)
        self.hint = SimpleNamespace(data={}, update=lambda **data: self.hint.data.update(data))
        self.retiring = SimpleNamespace(grace_s=0.0, add=lambda *_: None, overdue=0)
        self.plan = SimpleNamespace(digest="d", parallelism=1)
        self.graph = JobGraph(())
        self.restores: list[Any] = []
        self.found_splits: list[Any] = []
        self.source_checks: list[Exception] = []
        self.garbage_retired = 0

    def retire_garbage(self) -> None:
        self.garbage_retired += 1

    def status(self, status: str, **data: Any) -> None:
        self.generation_log.append("status", {"status": status, **data})

    def specs(self) -> list[Spec]:
        return [self.spec]

    def find_restore(self) -> Any:
        found = self.restores.pop(0) if self.restores else None
        if isinstance(found, Exception):
            raise found
        return found

    def check_sources(self, _point: Any, _restore: Any) -> None:
        if self.source_checks:
            raise self.source_checks.pop(0)

    def folders_in_use(self) -> frozenset[str]:
        return frozenset({f"{LAYOUT.checkpoints}/chk-2-g1"})

    delete_checkpoints, _checkpoint_folders = DriverJob.delete_checkpoints, DriverJob._checkpoint_folders
    shared_files = DriverJob.shared_files
    verdicts = DriverJob.verdicts

    def rewind_sinks(self, _restore: Any, _run_id: str) -> None:
        """Nothing was committed."""

    def splits(self, _restore: Any) -> dict[str, Any]:
        found = self.found_splits.pop(0) if self.found_splits else {}
        if isinstance(found, Exception):
            raise found
        return dict(found)

    sources: dict[str, Any] = {}

    def enumerations(self, _restore: Any) -> Any:
        """No source discovers splits while the job runs."""
        return Enumerations(), {}

    def facts(self) -> Any:
        topology = Topology(1, (ChainShape(0, ("src",), (), True, False),))
        return SimpleNamespace(topology=topology)

    def coordinator(self, *_: Any) -> Any:
        return SimpleNamespace()

    def next_checkpoint_id(self) -> int:
        return 1

    def send(self, command_id: str, verb: Any, **arguments: Any) -> None:
        self.store.create(
            LAYOUT.command(command_id), encode(Command(command_id, verb, arguments, 1, NOW, LATER, "test"))
        )
        self.store.replace(LAYOUT.bell, command_id.encode())

    def result(self, command_id: str) -> CommandResult | None:
        path = LAYOUT.result(command_id)
        return decode(self.store.read(path), CommandResult) if self.store.exists(path) else None

    def statuses(self) -> list[str]:
        return [d.data["status"] for d in self.log.read() if d.kind == "status"]


class FakeRun:
    """Stands for JobRun."""

    def __init__(self) -> None:
        self.outcome: RunEnded | RunFailed | None = None
        self.requests: list[ev.SnapshotRequest] = []
        self.overdue = 0

    def handle_command(self, request: Any) -> None:
        self.requests.append(request)

    def fail(self, failure: RunFailed) -> None:
        self.outcome = self.outcome or failure

    def note_overdue_deletions(self, folders: int) -> None:
        self.overdue = folders


class FakeAttempt:
    """Plays the next script; `until` comes round as the real loop does."""

    def __init__(self, scripts: list[Script], **given: Any) -> None:
        self.job_run: Any = FakeRun()
        self.given = given
        self.real_run = given["make_run"](self)
        self._script = scripts.pop(0)

    def wake(self) -> None:
        """The loop comes round all the time."""

    def run(self) -> RunEnded | RunFailed:
        outcome = self._script(self)
        self.job_run.fail(outcome)
        return outcome

    def shut_down(self, _reason: str) -> list[ev.SnapshotRequest]:
        return [r for r in self.job_run.requests if r.request_id is not None]

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "not in time"
            self.given["on_round"]()
            time.sleep(0.001)

    def up(self) -> None:
        self.given["on_running"]()
        self.given["on_round"]()


class Loop:
    def __init__(
        self,
        job: FakeJob,
        *scripts: Script,
        slots: Callable[[], bool] = lambda: True,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.terminated = threading.Event()
        self.job = job
        remaining = list(scripts)
        untyped: Any = job
        self.supervision = StreamingLoop(
            untyped,
            self.terminated,
            new_application=lambda *_, **__: SimpleNamespace(  # type: ignore[arg-type, return-value]
                stop=lambda: None, is_lost=is_lost, context=SimpleNamespace(uiWebUrl="http://driver:4040")
            ),
            new_slot_wait=lambda *_: SimpleNamespace(poll=slots, offered=1),  # type: ignore[arg-type, return-value]
            new_attempt=lambda *_, **given: FakeAttempt(remaining, **given),  # type: ignore[arg-type, return-value]
        )

    def run(self) -> int:
        try:
            return self.supervision.run()
        finally:
            self.job.desk.close()


ENDED = RunEnded(None, None, None, None)


def finish(attempt: FakeAttempt) -> RunEnded:
    attempt.up()
    return ENDED


def fail(attempt: FakeAttempt) -> RunFailed:
    attempt.up()
    return RunFailed("boom")


def test_a_job_that_fails_once_runs_again_and_finishes() -> None:
    """S9.1."""
    job = FakeJob()
    assert Loop(job, fail, finish).run() == 0
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RUNNING", "RESTARTING", "RUNNING", "FINISHED"]
    assert [d.data["message"] for d in job.log.read() if d.kind == "failure"] == ["boom"]
    assert job.hint.data["restarts"] == 1
    assert job.hint.data["spark_ui"] == "http://driver:4040"


@pytest.mark.parametrize("seen", ["failed run", "exception"])
def test_the_death_of_the_jvm_is_no_failure_of_the_job(seen: str) -> None:
    """S9.1: the next driver continues."""
    dead = threading.Event()

    def die(attempt: FakeAttempt) -> RunFailed:
        attempt.up()
        dead.set()
        if seen == "exception":
            raise ConnectionRefusedError("no JVM")
        return RunFailed("slot 0 was lost")

    job = FakeJob()
    with pytest.raises(SparkLostError, match="no JVM" if seen == "exception" else "slot 0 was lost"):
        Loop(job, die, is_lost=dead.is_set).run()
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RUNNING"]
    assert not [d for d in job.log.read() if d.kind == "failure"]


def test_a_command_is_processed_when_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.7: without a poll. The interval of polls would be longer than the test."""
    monkeypatch.setattr(streaming_loop, "COMMAND_POLL_S", 3_600.0)
    job = FakeJob()

    def cancelled(attempt: FakeAttempt) -> RunEnded | RunFailed:
        attempt.up()
        job.send("c1", "cancel")
        attempt.until(lambda: attempt.job_run.outcome)
        return RunFailed("cancelled")

    Loop(job, cancelled).run()
    assert job.statuses()[-1] == "CANCELED"


def test_a_round_reports_when_the_supervisor_must_be_called_again() -> None:
    """S7.5: the run's loop sleeps until then."""
    job = FakeJob(heartbeat_timeout="30 s")
    seen: list[float | None] = []

    def observed(attempt: FakeAttempt) -> RunEnded:
        attempt.up()
        seen.append(attempt.given["on_round"]())
        return ENDED

    Loop(job, observed).run()
    assert seen[0] is not None and 0 < seen[0] <= 30


def test_a_run_waits_until_something_is_due_but_never_spins() -> None:
    """S9.1: a slot counts as silent after ten checks, so they are within the timeout."""
    options = JobOptions()
    assert round_wait_s(options, None, None) == TICK_S
    assert round_wait_s(options, 7.0, None) == TICK_S
    assert round_wait_s(options, 7.0, 0.3) == 0.3
    assert round_wait_s(options, -5.0) == DUE_TICK_S
    short = JobOptions(heartbeat_interval=timedelta(seconds=1), heartbeat_timeout=timedelta(seconds=2))
    assert round_wait_s(short, None) == 0.2


def test_where_sparks_own_pages_are_is_told_only_when_there_are_any() -> None:
    for context in (SimpleNamespace(uiWebUrl=None), None):
        application: Any = SimpleNamespace(context=context)
        assert ui_url(application) is None


def test_a_command_reaches_the_run_and_its_answer_the_store() -> None:
    job = FakeJob()

    def script(attempt: FakeAttempt) -> RunEnded:
        attempt.up()
        job.send("sp", "savepoint", path="/here")
        attempt.until(lambda: attempt.job_run.requests)
        attempt.real_run.answer(ev.CommandAnswer("sp", True, "completed", "done"))
        attempt.until(lambda: job.result("sp"))
        return ENDED

    Loop(job, script).run()
    result = job.result("sp")
    assert result is not None and result.code == "completed"


def test_a_request_that_a_run_left_unanswered_goes_to_the_next() -> None:
    """S1.2: also one that came when the run had its outcome already."""
    job = FakeJob()
    taken: list[ev.SnapshotRequest] = []

    def dying(attempt: FakeAttempt) -> RunFailed:
        attempt.up()
        job.send("early", "savepoint")
        attempt.until(lambda: attempt.job_run.requests)
        attempt.job_run.fail(RunFailed("boom"))
        job.send("late", "savepoint")
        attempt.until(lambda: supervised.supervision._late)
        return RunFailed("boom")

    def next_run(attempt: FakeAttempt) -> RunEnded:
        taken.extend(attempt.job_run.requests)
        return finish(attempt)

    supervised = Loop(job, dying, next_run)
    assert supervised.run() == 0
    assert [request.request_id for request in taken] == ["early", "late"]
    assert [r.code for c in ("early", "late") if (r := job.result(c))] == ["job_ended"] * 2


def test_a_command_withdrawn_between_two_runs_is_not_given_to_the_next() -> None:
    """S9.4."""
    job = FakeJob()
    taken: list[Any] = []

    def dying(attempt: FakeAttempt) -> RunFailed:
        job.send("sp", "savepoint")
        attempt.until(lambda: attempt.job_run.requests)
        job.store.create(LAYOUT.withdrawn("sp"), encode(Withdrawn("sp", NOW, "test")))
        return RunFailed("boom")

    def next_run(attempt: FakeAttempt) -> RunEnded:
        taken.extend(attempt.job_run.requests)
        return finish(attempt)

    Loop(job, dying, next_run).run()
    assert taken == [] and job.result("sp") is None


def test_sigterm_asks_the_run_for_a_savepoint() -> None:
    job = FakeJob()

    def script(attempt: FakeAttempt) -> RunEnded:
        attempt.up()
        supervised.terminated.set()
        attempt.until(lambda: attempt.job_run.requests)
        assert attempt.job_run.requests == [
            ev.SnapshotRequest("stop-savepoint", request_id=SIGTERM_STOP, stop="suspend")
        ]
        return RunEnded("suspend", 1, "job/sp-1", None)

    supervised = Loop(job, script)
    assert supervised.run() == 0
    assert job.statuses()[-1] == "STOPPED"


def test_sigterm_while_waiting_for_slots_ends_the_driver_with_a_status() -> None:
    job = FakeJob()

    def look() -> bool:
        supervised.terminated.set()
        return False

    supervised = Loop(job, slots=look)
    assert supervised.run() == 143
    assert job.statuses() == ["WAITING_FOR_SLOTS", "FAILED"]


def test_a_stop_whose_time_is_up_as_the_slots_come_is_given_up_by_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.7: between the slots and the run there is nobody yet who could be told."""
    job, now_ms = FakeJob(), [time.time_ns() // 1_000_000]
    monkeypatch.setattr(streaming_loop, "steady_clock", lambda: lambda: now_ms[0])
    taken: list[Any] = []

    def look() -> bool:
        if not job.store.exists(LAYOUT.command("st")):
            job.send("st", "stop", timeout="100 ms")
        if not supervised.supervision._supervisor._watches:
            return False
        now_ms[0] += 150
        return True

    def script(attempt: FakeAttempt) -> RunEnded:
        attempt.until(lambda: len(attempt.job_run.requests) > 1)
        taken.extend(attempt.job_run.requests)
        return finish(attempt)

    supervised = Loop(job, script, slots=look)
    assert supervised.run() == 0
    assert [type(request) for request in taken] == [ev.SnapshotRequest, ev.TimeOutStop]


def test_a_cancel_ends_a_job_that_waits_for_slots_and_every_later_one_is_answered_so() -> None:
    """S2.3, S9.4; what a newer submission starts from stays."""
    job = FakeJob(retention="delete")
    for n in (1, 2):
        job.store.create(f"{LAYOUT.checkpoints}/chk-{n}-g1/x", b"x")

    def look() -> bool:
        if not job.store.exists(LAYOUT.command("c1")):
            job.send("c1", "cancel")
            job.send("c2", "cancel")
        return False

    assert Loop(job, slots=look).run() == 0
    assert job.statuses()[-1] == "CANCELED"
    assert [r.code for c in ("c1", "c2") if (r := job.result(c))] == ["canceled", "canceled"]
    assert job.store.list(LAYOUT.checkpoints) == ["chk-2-g1"]


def test_too_few_slots_fail_the_job_with_their_own_exit_code() -> None:
    def look() -> bool:
        raise SlotsUnavailableError("2 of 3 slots")

    job = FakeJob()
    assert Loop(job, slots=look).run() == SlotsUnavailableError.exit_code
    assert job.statuses()[-1] == "FAILED"


def test_a_restore_point_that_cannot_be_read_now_is_tried_again_and_one_that_is_refused_is_not() -> None:
    """S9.1, S9.3."""
    job = FakeJob()
    job.restores = [None, StoreError("away"), None]
    assert Loop(job, finish).run() == 0
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RESTARTING", "RUNNING", "FINISHED"]
    job = FakeJob()
    job.restores = [None, SnapshotError("does not fit")]
    assert Loop(job).run() == SnapshotError.exit_code
    assert job.statuses() == ["WAITING_FOR_SLOTS", "FAILED"]


def test_setting_the_clock_of_the_machine_moves_nothing_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.2, S1.4: neither the pause between checkpoints nor a timeout."""
    job = FakeJob()

    def script(attempt: FakeAttempt) -> RunEnded:
        before_ms, wall_ns = attempt.real_run.now_ms(), time.time_ns()
        assert abs(before_ms - wall_ns // 1_000_000) < 60_000, "milliseconds since the epoch"
        for step_s in (-3_600, 3_600):
            monkeypatch.setattr(time, "time_ns", lambda at_ns=wall_ns + step_s * 1_000_000_000: at_ns)
            assert 0 <= attempt.real_run.now_ms() - before_ms < 60_000
        return finish(attempt)

    assert Loop(job, script).run() == 0


def replaced(job: FakeJob) -> None:
    """A newer driver begins its generation_log."""
    nonces = map(str, itertools.count(100))
    DecisionLog(job.store, LAYOUT, lambda: NOW, lambda: next(nonces)).begin_generation(spec=1, launch=2)


def test_a_driver_that_appends_nothing_notices_that_a_newer_one_reigns() -> None:
    """S9.2: in the middle of a run without checkpoints."""
    job = FakeJob(heartbeat_interval="10 ms", heartbeat_timeout="20 ms")

    def script(attempt: FakeAttempt) -> RunEnded:
        attempt.up()
        replaced(job)
        attempt.until(lambda: False)
        return ENDED

    with pytest.raises(FencedError):
        Loop(job, script).run()
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RUNNING"]


def test_a_driver_that_was_replaced_while_it_waited_starts_no_run() -> None:
    """S9.2."""
    job = FakeJob()

    def look() -> bool:
        replaced(job)
        return True

    with pytest.raises(FencedError):
        Loop(job, slots=look).run()


def test_a_run_goes_on_when_the_store_does_not_tell_who_reigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.2: the next look may tell."""
    job = FakeJob(heartbeat_interval="10 ms", heartbeat_timeout="20 ms")
    looks: list[str] = []

    def unreadable(path: str) -> bytes:
        looks.append(path)
        raise StoreError("away")

    def script(attempt: FakeAttempt) -> RunEnded:
        attempt.up()
        with monkeypatch.context() as patched:
            patched.setattr(job.store, "read", unreadable)
            attempt.until(lambda: sum("/decisions/" in path for path in looks) >= 2)
        return ENDED

    assert Loop(job, script).run() == 0
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RUNNING", "FINISHED"]


SPLITS = {"src": [{"split_id": "only", "data": {}, "position": None, "finished": False, "weight": 1}]}


@pytest.mark.parametrize(
    ("restores", "splits"),
    [([StoreError("away")], [SPLITS]), ([], [StoreError("away"), SPLITS])],
    ids=["restore point", "splits"],
)
def test_a_store_that_stumbles_as_the_driver_begins_costs_the_job_nothing(restores: Any, splits: Any) -> None:
    """S9.1."""
    job = FakeJob()
    job.restores, job.found_splits = restores, splits
    attempts: list[FakeAttempt] = []

    def script(attempt: FakeAttempt) -> RunEnded:
        attempts.append(attempt)
        return finish(attempt)

    assert Loop(job, script).run() == 0
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RUNNING", "FINISHED"]
    assert attempts[0].real_run.splits == SPLITS


@pytest.mark.parametrize("what", ["restores", "found_splits"])
def test_a_store_that_goes_on_failing_ends_the_job_by_its_restart_strategy_with_the_cause(what: str) -> None:
    """S9.1."""
    job = FakeJob(restart_attempts=2)
    setattr(job, what, [StoreError("no such bucket", where="s3://gone")] * 4)
    assert Loop(job).run() == EXIT_JOB_FAILED
    assert job.statuses() == ["WAITING_FOR_SLOTS", "RESTARTING", "RESTARTING", "FAILED"]
    failure = [d.data for d in job.log.read() if d.kind == "failure"][-1]
    assert "no such bucket [s3://gone]" in failure["message"] and failure["code"] == "store"


def test_what_no_restart_mends_is_told_before_anybody_waits_for_slots() -> None:
    """S9.3."""
    job = FakeJob()
    job.restores = [SnapshotError("does not fit")]
    with pytest.raises(SnapshotError):
        Loop(job, slots=lambda: pytest.fail("it waited for slots")).run()


def test_sources_that_cannot_go_on_are_told_before_anybody_waits_for_slots() -> None:
    """S5.5: before a run of the submission is made."""
    job = FakeJob()
    job.restores = [("point", "restore")]
    job.source_checks = [SnapshotError("source 'in' cannot go on")]
    with pytest.raises(SnapshotError, match="cannot go on"):
        Loop(job, slots=lambda: pytest.fail("it waited for slots")).run()
    assert not job.garbage_retired


def test_a_submission_that_is_refused_deletes_nothing_that_it_would_have_left_behind() -> None:
    """S2.3, S7.8: another one may still restore it, and have it approved."""
    job = FakeJob()
    job.restores = [SnapshotError("going back is refused")]
    with pytest.raises(SnapshotError):
        Loop(job).run()
    assert not job.garbage_retired
    job = FakeJob()
    assert Loop(job, finish).run() == 0 and job.garbage_retired == 1


def test_a_fenced_driver_stops_in_the_middle_of_a_run() -> None:
    """S9.2."""
    job = FakeJob()

    def script(attempt: FakeAttempt) -> RunEnded:
        replaced(job)
        return finish(attempt)

    with pytest.raises(FencedError):
        Loop(job, script).run()
    assert job.statuses() == ["WAITING_FOR_SLOTS"]
