"""One attempt of a batch job, without Spark: stages that fail, a cancellation, commands (S8.1)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from tidegate.coordinator import events as ev
from tidegate.coordinator.batch_commit import StagedReport
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.errors import FencedError, StoreError
from tidegate.spark.batch.worker_task import FAILURE
from tidegate.spark.driver_loop import batch_attempt
from tidegate.spark.driver_loop.batch_attempt import BatchAttempt, BatchRun

TOLD = (StagedReport("out", 0, None),)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_attempt, "TICK_S", 0.005)
    # A session that another test in this process had leaves its gateway; there is no JVM to copy properties from.
    monkeypatch.setattr(SparkContext, "_gateway", None)


class FakeCommit:
    """Notes what is asked of it, in order."""

    def __init__(self, publish: Callable[[], None] = lambda: None, complete: Exception | None = None) -> None:
        self.done: list[Any] = []
        self.checkpoint_id, self.path = 7, "chk-7"
        self._publish, self._complete = publish, complete

    def complete(self, told: Sequence[StagedReport], splits: Any, duration_ms: int) -> None:
        if self._complete is not None:
            raise self._complete
        self.done.append(("complete", tuple(told)))

    def publish(self) -> None:
        self._publish()
        self.done.append("publish")

    def committed(self) -> tuple[int, ...]:
        self.done.append("committed")
        return ()

    def abort(self, reason: str) -> None:
        self.done.append(("abort", reason))


class AttemptHarness:
    """An attempt around a calculation."""

    def __init__(
        self, calculation: Callable[[], Sequence[StagedReport]] | None, commit: FakeCommit | None = None
    ) -> None:
        self.answers: list[ev.CommandAnswer] = []
        self.cancelled = threading.Event()
        self.commit = commit or FakeCommit()
        context = SimpleNamespace(setJobGroup=lambda *_, **__: None, cancelJobGroup=lambda _: self.cancelled.set())
        self.run = BatchRun(self.answers.append)
        self.rounds: list[Callable[[], None]] = []
        application: Any = SimpleNamespace(context=context)
        untyped: Any = self.commit
        self.attempt = BatchAttempt(
            application,
            self.run,
            untyped,
            calculation,
            run_id="r",
            splits={},
            on_running=lambda: None,
            on_reports=lambda _: None,
            on_round=lambda: [do() for do in self.rounds] and None,
        )


def test_a_run_completes_before_it_publishes_and_says_so_last() -> None:
    harness = AttemptHarness(lambda: TOLD)
    assert harness.attempt.run() == RunEnded(None, 7, "chk-7", None, ())
    assert harness.commit.done == [("complete", TOLD), "publish", "committed"]


def test_a_run_that_only_commits_calculates_nothing() -> None:
    harness = AttemptHarness(None)
    assert isinstance(harness.attempt.run(), RunEnded)
    assert harness.commit.done == ["publish", "committed"]


def test_a_task_that_fails_is_named_and_nothing_is_complete() -> None:
    told = {"message": "ValueError: bad", "operator": "doubled", "subtask": 1, "traceback": "..."}

    def calculate() -> Sequence[StagedReport]:
        raise RuntimeError(f"Job aborted: TaskFailedError: {FAILURE}{json.dumps(told)}\n at java")

    harness = AttemptHarness(calculate)
    assert harness.attempt.run() == RunFailed("ValueError: bad", "doubled", 1, "...")
    assert harness.attempt.shut_down("ValueError: bad") == []
    assert harness.commit.done == [("abort", "ValueError: bad")]


def test_a_commit_that_fails_leaves_the_checkpoint_complete_for_the_next_run() -> None:
    """S7.4."""

    def unreachable() -> None:
        raise StoreError("the store is away")

    harness = AttemptHarness(lambda: TOLD, FakeCommit(publish=unreachable))
    outcome = harness.attempt.run()
    assert isinstance(outcome, RunFailed) and outcome.message == "the store is away"
    assert harness.attempt.shut_down("") == []
    assert harness.commit.done == [("complete", TOLD)]


def test_a_run_that_is_given_up_cancels_its_stages_and_completes_nothing() -> None:
    going_on = threading.Event()

    def calculate() -> Sequence[StagedReport]:
        going_on.set()
        assert harness.cancelled.wait(10)
        return TOLD

    harness = AttemptHarness(calculate)
    harness.rounds.append(lambda: harness.run.fail(RunFailed("cancelled by test")) if going_on.is_set() else None)
    assert harness.attempt.run() == RunFailed("cancelled by test")
    harness.attempt.shut_down("cancelled by test")
    assert harness.commit.done == [("abort", "cancelled by test")]


def test_a_run_that_is_given_up_between_two_jobs_of_spark_is_cancelled_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_attempt, "CANCEL_AGAIN_S", 0.005)
    monkeypatch.setattr(batch_attempt, "CANCEL_WAIT_S", 10.0)
    second = threading.Event()

    def calculate() -> Sequence[StagedReport]:
        assert harness.cancelled.wait(10)
        harness.cancelled.clear()  # this one met no job
        assert harness.cancelled.wait(10)
        second.set()
        raise RuntimeError("cancelled")

    harness = AttemptHarness(calculate)
    harness.rounds.append(lambda: harness.run.fail(RunFailed("cancelled by test")))
    assert harness.attempt.run() == RunFailed("cancelled by test")
    assert second.is_set()


def test_a_run_that_is_given_up_while_it_commits_ends_the_commit() -> None:
    """Readers would find half of it, and a job that is cancelled has no successor (S7.4)."""
    given_up = threading.Event()

    def publish() -> None:
        assert given_up.wait(10)

    harness = AttemptHarness(lambda: TOLD, FakeCommit(publish=publish))

    def give_up() -> None:
        if ("complete", TOLD) in harness.commit.done:
            harness.run.fail(RunFailed("cancelled by test"))
            given_up.set()

    harness.rounds.append(give_up)
    assert harness.attempt.run() == RunEnded(None, 7, "chk-7", None, ())
    assert harness.commit.done == [("complete", TOLD), "publish", "committed"]


def test_a_commit_that_does_not_end_in_time_is_given_up_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stages are cancelled once at least, also when no time is left for that."""
    monkeypatch.setattr(batch_attempt, "CANCEL_WAIT_S", 0.0)
    monkeypatch.setattr(batch_attempt, "CANCEL_AGAIN_S", 0.005)
    over = threading.Event()

    def publish() -> None:
        over.wait(10)

    harness = AttemptHarness(None, FakeCommit(publish=publish))
    harness.rounds.append(lambda: harness.run.fail(RunFailed("cancelled by test")))
    assert harness.attempt.run() == RunFailed("cancelled by test")
    over.set()
    assert harness.cancelled.is_set()
    assert "committed" not in harness.commit.done


@pytest.mark.parametrize("where", ["complete", "publish"])
def test_a_driver_that_is_fenced_ends_at_once(where: str) -> None:
    """S9.2."""

    def fenced() -> None:
        raise FencedError("over")

    commit = FakeCommit(complete=FencedError("over")) if where == "complete" else FakeCommit(publish=fenced)
    with pytest.raises(FencedError):
        AttemptHarness(lambda: TOLD, commit).attempt.run()


@pytest.mark.parametrize(
    "run_request",
    [
        ev.SnapshotRequest("savepoint", request_id="c"),
        ev.SnapshotRequest("stop-savepoint", request_id="c", stop="drain"),
        ev.Verdict("c", True, None, "test"),
    ],
)
def test_what_asks_for_a_snapshot_or_gives_a_verdict_is_refused_in_batch(run_request: ev.RunRequest) -> None:
    harness = AttemptHarness(lambda: TOLD)
    harness.run.handle_command(run_request)
    ((answer),) = harness.answers
    assert (answer.request_id, answer.ok, answer.code) == ("c", False, "batch_mode")
