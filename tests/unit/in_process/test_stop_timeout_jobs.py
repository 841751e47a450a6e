"""S1.5, S7.7: stops that are given up, and planned too late, on whole jobs: nothing is lost and nothing comes twice."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded, StopTimedOut
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.stop_outcomes import SAVEPOINT_FAILED, SAVEPOINT_OK
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 600
SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])
GIVE_UP = ev.TimeOutStop("stop", "10 s")
_sinks = itertools.count()


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % 7, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def windows(sink: str) -> Pipeline:
    p = Pipeline()
    (
        p.read(DataGen(rows, SCHEMA, rows=ROWS, splits=3, batch_rows=16), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("100 ms"))
        .agg(n=count(), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def stopping(sink: str, mode: Any) -> tuple[InProcessJob, InProcessRun]:
    """A job that has read something, with a stop whose savepoint is not being written."""
    job = InProcessJob(lambda: windows(sink), {"parallelism": 2})
    run = job.submit()
    run.pump(5)
    run.writers.held = True
    run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop=mode))
    run.pump(300)
    assert run.outcome is None
    return job, run


def given_up(job: InProcessJob, run: InProcessRun) -> ev.CommandAnswer:
    run.run.handle_command(GIVE_UP)
    assert isinstance(run.outcome, StopTimedOut)
    run.slot.close()
    run.run.shut_down(run.outcome.message)
    return job.answers["stop"]


@pytest.mark.parametrize("mode", ["suspend", "drain"])
def test_a_stop_that_is_given_up_takes_nothing_from_the_job_that_goes_on(mode: str) -> None:
    """S7.7: what the drain fired early was not committed, and fires again."""
    sink = f"stop-timeout-{next(_sinks)}"
    job, run = stopping(sink, mode)
    answer = given_up(job, run)
    assert (answer.ok, answer.code) == (False, SAVEPOINT_FAILED)
    assert "(has not acknowledged savepoint 1)" in answer.message and "operator numbers" in answer.message
    (abort,) = [d for d in job.log.read() if d.kind == "abort"]
    assert abort.data["code"] == "stop_timeout" and "held up by operator numbers" in abort.data["reason"]
    job.rerun().to_end()
    assert sum(row["n"] for row in collected(sink).table().to_pylist()) == ROWS


def test_a_drain_that_is_given_up_is_followed_by_a_suspend_that_leaves_its_windows_open() -> None:
    """S7.2, S7.7: the second try."""
    sink = f"stop-timeout-{next(_sinks)}"
    job, run = stopping(sink, "drain")
    given_up(job, run)
    again = job.rerun()
    again.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = again.to_end()
    assert isinstance(outcome, RunEnded) and outcome.stop == "suspend"
    job.submit(RestoreFrom("latest")).to_end()
    counts = collected(sink).table().to_pylist()
    assert sum(row["n"] for row in counts) == ROWS
    assert len(counts) == len({(row["k"], row["window_start"]) for row in counts}), "no window fired twice"


def test_a_stop_whose_savepoint_is_complete_ends_the_job_though_its_time_is_up() -> None:
    """S7.5, S7.7."""
    sink = f"stop-timeout-{next(_sinks)}"
    job, run = stopping(sink, "drain")
    run.writers.release()
    run.until(lambda: run.run.coordinator.stop_completed)
    run.run.handle_command(GIVE_UP)
    answer = job.answers["stop"]
    assert (answer.ok, answer.code, answer.data["checkpoint_id"]) == (False, SAVEPOINT_OK, 1)
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.stop == "drain"


def test_a_stop_that_meets_a_subtask_about_to_finish_stops_the_job_without_a_restart() -> None:
    """S1.5, S7.3: the checkpoint that lets the short source finish has just completed."""
    sink = f"stop-timeout-{next(_sinks)}"

    def build() -> Pipeline:
        p = Pipeline()
        short = p.read(DataGen(rows, SCHEMA, rows=32, splits=2, batch_rows=16), uid="short")
        long = p.read(DataGen(rows, SCHEMA, rows=4_000, splits=2, batch_rows=4), uid="long")
        short.union(long).write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(build, {"parallelism": 2})
    run = job.submit()
    run.until(lambda: any(d.kind == "end_of_data" for d in job.log.read()))
    run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id="c"))
    run.until(lambda: "c" in job.answers)
    for _ in range(5):
        run.slot.run_round()  # it finishes; the driver has not heard of that
    run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and (outcome.stop, outcome.checkpoint_id) == ("suspend", 4)
    aborts = [(d.data["checkpoint_id"], d.data["code"]) for d in job.log.read() if d.kind == "abort"]
    assert aborts == [(2, "subtask_finished"), (3, "subtask_finished")], "one for each that had finished"
    job.submit(RestoreFrom("latest")).to_end()
    assert collected(sink).table().num_rows == 4_032
