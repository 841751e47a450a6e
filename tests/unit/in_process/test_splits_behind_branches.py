"""S4.4: splits are told apart also where a stream that is read twice, or an operator with side outputs, lies between
their source and `with_watermark`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidegate import SideOutput, count, tumbling
from tidegate.api.pipeline import Pipeline
from tidegate.api.stream import Stream
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS, SPLITS = 600, 6
SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])
_sinks = itertools.count()


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"branched-{next(_sinks)}"
    yield name
    for end in ("", "-raw"):
        clear_collected(name + end)


def far_apart(numbers: Any) -> dict[str, Any]:
    """Each split is in order, and a long time away from the others."""
    return {"k": numbers % 5, "ts": pa.array(numbers * 1_000).cast(pa.timestamp("ms"))}


def branched(stream: Stream, sink: str) -> Stream:
    stream.write(CollectSink(f"{sink}-raw"), uid="raw")
    return stream


def with_rejects(stream: Stream, sink: str) -> Stream:
    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | SideOutput]:
        for batch in batches:
            yield batch
            yield SideOutput("bad", batch)

    parsed = stream.map_in_arrow(parse, SCHEMA, side_outputs={"bad": SCHEMA}, uid="parse")
    parsed.side_output("bad").write(CollectSink(f"{sink}-raw"), uid="raw")
    return parsed


def twice_branched(stream: Stream, sink: str) -> Stream:
    return with_rejects(branched_to_nothing(stream), sink)


def branched_to_nothing(stream: Stream) -> Stream:
    stream.write(CollectSink("branched-nothing"), uid="nothing")
    return stream


def pipeline(between: Callable[[Stream, str], Stream], sink: str) -> Pipeline:
    p = Pipeline()
    source = DataGen(far_apart, SCHEMA, rows=ROWS, splits=SPLITS, batch_rows=10, rate=2_000)
    timed = between(p.read(source, uid="source"), sink).with_watermark("ts", "0 s")
    timed.group_by("k").window(tumbling("5 s")).agg(n=count(), uid="windows").write(CollectSink(sink), uid="out")
    return p


BETWEEN = [branched, with_rejects, twice_branched]


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_no_record_of_a_split_is_late_for_those_of_another(
    sink: str, between: Callable[[Stream, str], Stream], parallelism: int
) -> None:
    run = InProcessJob(lambda: pipeline(between, sink), {"parallelism": parallelism}).submit()
    run.to_end()
    clear_collected("branched-nothing")
    assert run.counters().get("windows", {}) == {}
    assert sum(collected(sink).table()["n"].to_pylist()) == ROWS


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("now", [1, 2, 3])
@pytest.mark.parametrize("pumps", [0, 3, 40])
def test_nor_is_it_after_crashes_and_a_rescale(
    sink: str, between: Callable[[Stream, str], Stream], now: int, pumps: int
) -> None:
    """S5.5: also where a snapshot is taken before anything has come after a restore."""
    job = InProcessJob(lambda: pipeline(between, sink), {"parallelism": 2})
    run = job.submit()
    for _ in range(3):
        for _ in range(30):
            run.pump(2)
            run.tick(2)
        run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
        run.crash()
        run = job.rerun()
        run.pump(pumps)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    assert isinstance(run.outcome, RunEnded) and run.outcome.path is not None
    job.options = {"parallelism": now}
    run = job.submit(RestoreFrom("savepoint", path=run.outcome.path))
    run.to_end()
    clear_collected("branched-nothing")
    assert run.counters().get("windows", {}) == {}
    assert sum(collected(sink).table()["n"].to_pylist()) == ROWS


def test_behind_a_second_input_all_of_a_subtask_is_one(sink: str) -> None:
    """Two sources may have splits of one name."""

    def united(stream: Stream, sink: str) -> Stream:
        return stream.union(branched(stream, sink))

    run = InProcessJob(lambda: pipeline(united, sink), {"parallelism": 1}).submit()
    run.to_end()
    assert run.counters()["windows"]["late_dropped"] > 0
