"""S7.3, S7.7, S9.3: a stop waits for its savepoint, and a run that only commits it leaves it the newest recovery point,
whatever is asked of it."""

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
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 600
SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])
_sinks = itertools.count()


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % 7, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def pipeline(sink: str, *, two_phase: bool = True) -> Pipeline:
    p = Pipeline()
    (
        p.read(DataGen(rows, SCHEMA, rows=ROWS, splits=3, batch_rows=16), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("100 ms"))
        .agg(n=count(), uid="windows")
        .write(CollectSink(sink, two_phase=two_phase), uid="out")
    )
    return p


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("interval", [None, "1 s"])
def test_nothing_is_lost_when_a_crash_follows_the_stop_savepoint(interval: str | None, asked: bool) -> None:
    sink = f"stop-recovery-{next(_sinks)}"
    a_job = InProcessJob(lambda: pipeline(sink), {"parallelism": 2, "checkpoint_interval": interval})
    run = a_job.submit()
    run.pump(5)
    stop = ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend")
    run.run.on_event(ev.SnapshotRequested(stop))
    run.until(lambda: run.run.coordinator.stop_completed)
    run.crash()
    again = a_job.relaunch()
    if asked:  # the new driver finds the command unanswered
        again.run.on_event(ev.SnapshotRequested(stop))
    again.to_end()
    assert [d.data["kind"] for d in a_job.log.read() if d.kind == "complete"][-1] == "stop-savepoint"
    assert [d for d in a_job.log.read() if d.kind == "end_of_data"] == []
    a_job.submit(RestoreFrom("latest")).to_end()
    assert sum(row["n"] for row in collected(sink).table().to_pylist()) == ROWS


@pytest.mark.parametrize("stop", ["suspend", "drain"])
def test_a_stop_does_not_race_with_the_end_of_its_subtasks(stop: Any) -> None:
    """S7.3, S7.7: with no interval and nothing to commit, they wait for its savepoint like any others."""
    sink = f"stop-recovery-{next(_sinks)}"
    a_job = InProcessJob(lambda: pipeline(sink, two_phase=False), {"parallelism": 2})
    run = a_job.submit()
    run.pump(5)
    run.writers.held = True
    run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop=stop)))
    run.pump(500)
    assert run.outcome is None
    run.writers.release()
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.stop == stop
    assert [d.data["kind"] for d in a_job.log.read() if d.kind == "complete"] == ["stop-savepoint"]


@pytest.mark.parametrize("kind", ["stop-savepoint", "savepoint"])
def test_a_savepoint_that_is_asked_for_while_the_final_snapshot_is_pending_is_taken(kind: Any) -> None:
    """S7.3, S7.7: the data has ended, the job has not; a stop's takes the place of the final one."""
    sink = f"stop-recovery-{next(_sinks)}"
    a_job = InProcessJob(lambda: pipeline(sink), {"parallelism": 2})
    run = a_job.submit()
    run.writers.held = True
    run.until(lambda: bool(run.run.coordinator.pending_ids))
    stop: dict[str, Any] = {"stop": "suspend"} if kind == "stop-savepoint" else {}
    run.run.handle_command(ev.SnapshotRequest(kind, request_id="asked", **stop))
    run.pump(500)
    run.writers.release()
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded)
    told = a_job.answers.get("asked")
    completed = {d.data["kind"]: d.data["path"] for d in a_job.log.read() if d.kind == "complete"}
    if kind == "savepoint":
        assert told is not None and told.code == "completed", told
        assert completed.keys() == {"savepoint", "final"} and outcome.stop is None
    else:
        assert told is None and outcome.path == completed.get("stop-savepoint"), told
        assert outcome.stop == "suspend" and "final" not in completed
    assert sum(row["n"] for row in collected(sink).table().to_pylist()) == ROWS
    a_job.submit(RestoreFrom("savepoint", path=completed[kind])).to_end()
    assert sum(row["n"] for row in collected(sink).table().to_pylist()) == ROWS


def test_a_bounded_job_with_no_interval_and_nothing_to_commit_ends_without_a_snapshot() -> None:
    """S7.3: nobody needs the final one, so that it can neither cost anything nor fail the job."""
    sink = f"stop-recovery-{next(_sinks)}"
    a_job = InProcessJob(lambda: pipeline(sink, two_phase=False), {"parallelism": 2})
    run = a_job.submit()
    assert run.to_end() == RunEnded(None, None, None, None)
    assert [d for d in a_job.log.read() if d.kind in ("claim", "complete", "abort")] == []
    assert sum(row["n"] for row in collected(sink).table().to_pylist()) == ROWS
