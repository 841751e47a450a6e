"""Whole jobs whose windows get batches that were aggregated before the exchange: what they commit, over crashes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
import test_unaligned_checkpoints as jobs
from test_unaligned_checkpoints import (
    SLOWNESS,
    WINDOWS,
    backpressured,
    committed,
    crashed_and_rescaled,
    expected,
    job,
    rounds_of_a_checkpoint,
    slow_down,
)

from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.operators.windows import pre_aggregation
from tidegate.snapshot.partial_rows import is_partial
from tidegate.testing.in_process_job import InProcessRun


@pytest.fixture(autouse=True)
def pre_aggregated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the tests' sources are large enough."""
    monkeypatch.setattr(pre_aggregation, "MIN_ROWS", 100)
    monkeypatch.setattr(pre_aggregation, "MIN_ROWS_PER_PANE", 10)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources have rows left when a test has taken its checkpoints."""
    monkeypatch.setattr(jobs, "ROWS", 480_000)


def replayed(run: InProcessRun) -> list[bool]:
    """For each batch that a restore replays: True if it holds partial rows."""
    elements = [element for s in run.slot._subtasks for _, element in s._inputs.replay_left()]
    return [is_partial(element.schema) for element in elements if isinstance(element, pa.RecordBatch)]


def in_flight(run: InProcessRun) -> None:
    """Let batches queue before the windows, and take a checkpoint that contains them."""
    slow_down(run, WINDOWS)
    run.pump(SLOWNESS * 3)
    rounds_of_a_checkpoint(run)
    run.crash()


def test_the_windows_get_partial_rows_and_metrics_count_rows(sink: str) -> None:
    run = job(sink).submit()
    before = run.slot._subtasks
    operators = [s._chain.operators[0] for s in before if s.subtask[0] == WINDOWS]
    kinds: set[bool] = set()
    for operator in operators:

        def process(batch: pa.RecordBatch, index: int, inner: Any = operator.process) -> Any:
            kinds.add(is_partial(batch.schema))
            return inner(batch, index)

        operator.process = process  # type: ignore[method-assign]
    assert isinstance(run.to_end(), RunEnded)
    assert kinds == {True}
    assert sum(s.rows_in for s in before if s.subtask[0] == WINDOWS) == jobs.ROWS
    assert sum(s.rows_out for s in before if s.subtask[0] == 0) == jobs.ROWS
    assert committed(sink) == expected()


@pytest.mark.usefixtures("long")
def test_partial_rows_in_flight_are_processed_after_a_restore_at_any_parallelism(sink: str) -> None:
    """S3.7, S5.5, S9.1."""
    a_job = job(sink)
    in_flight(a_job.submit())
    for parallelism in (2, 3, 1, 2):
        a_job.options = {**a_job.options, "parallelism": parallelism}
        run = a_job.submit(RestoreFrom("latest"))
        assert True in replayed(run)
        if parallelism > 1:
            in_flight(run)
        else:
            # One subtask has no exchange: it passes on what it got, without new partial rows.
            rounds_of_a_checkpoint(run, "alone")
            slow_down(run, WINDOWS, slowness=400)
            run.crash()
    run = a_job.relaunch()
    assert isinstance(run.to_end(), RunEnded)
    assert committed(sink) == expected()


@pytest.mark.usefixtures("long")
def test_rows_in_flight_of_an_earlier_version_are_processed(sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3.7, S9.3: it aggregated nothing before the exchange. Then both kinds are in flight together."""
    a_job = job(sink)
    with monkeypatch.context() as earlier:
        earlier.setattr(pre_aggregation, "MIN_ROWS", jobs.ROWS)
        run = backpressured(a_job)
        rounds_of_a_checkpoint(run)
        run.crash()
    run = a_job.relaunch()
    assert set(replayed(run)) == {False}
    slow_down(run, WINDOWS, slowness=20)
    run.pump(60)
    rounds_of_a_checkpoint(run, "both")
    run.crash()
    run = a_job.relaunch()
    assert set(replayed(run)) == {False, True}
    assert isinstance(run.to_end(), RunEnded)
    assert committed(sink) == expected()


@pytest.mark.parametrize("seed", range(30))
def test_crashes_rescales_and_slow_subtasks_lose_and_repeat_nothing(sink: str, seed: int) -> None:
    """S3.2, S3.4, S3.7, S5.5, S9.1: with aligned and unaligned checkpoints."""
    crashed_and_rescaled(sink, random.Random(f"pre-aggregated {seed}"))
