"""S4.4, S7.2 in whole jobs: what comes when its input is over, final aggregates and what processes give in `finish`, is
in time for what waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from fed_splits import SCHEMA, Fed, FedReader, passed

from tidegate import KeyedProcess, KeyedRows, Process, ProcessContext, Stream, SubtaskContext, count, tumbling
from tidegate import max as latest
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.interface import Boundedness, PollResult, SourceContext, SourceReader, Split
from tidegate.coordinator import events as ev
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

SINK = "final-aggregates-in-time"


class Ending(Fed):
    """Ends when a test says so."""

    boundedness: Boundedness = "bounded"
    is_over = False

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        return EndingReader(self)


class EndingReader(FedReader):
    _source: Ending

    def poll(self, now_ms: int) -> PollResult:
        polled = super().poll(now_ms)
        return PollResult(state="end") if polled.batch is None and self._source.is_over else polled

    def snapshot(self) -> Sequence[Split]:
        return [replace(split, finished=self._source.is_over) for split in super().snapshot()]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    clear_collected(SINK)


LAST = pa.record_batch([pa.array([1]), pa.array([5]).cast(pa.timestamp("ms"))], schema=SCHEMA)


class KeyedLast(KeyedProcess):
    """Gives a row when all is over."""

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None: ...

    def finish(self, ctx: ProcessContext) -> list[pa.RecordBatch]:
        return [LAST]


class Last(Process):
    """The same."""

    def process(self, rows: object, ctx: SubtaskContext) -> None: ...

    def finish(self, ctx: SubtaskContext) -> list[pa.RecordBatch]:
        return [LAST]


LASTS: dict[str, Callable[[Stream], Stream]] = {
    "aggregate": lambda s: s.group_by("k").agg(ts=latest("ts"), output="final", uid="last"),
    "keyed process": lambda s: s.group_by("k").process(KeyedLast(), schema=SCHEMA, uid="last"),
    "process": lambda s: s.process(Last(), schema=SCHEMA, uid="last"),
}


@pytest.mark.parametrize("last", LASTS)
def test_what_comes_at_the_end_is_in_time_for_windows_that_wait_for_it(last: str) -> None:
    """Another stream is far ahead when their input ends."""
    ending, live = Ending("a"), Fed("b")

    def build() -> Pipeline:
        p = Pipeline()
        end = LASTS[last](p.read(ending, uid="ending"))
        both = end.with_watermark("ts", "0 s").union(p.read(live, uid="live").with_watermark("ts", "0 s"))
        windows = both.group_by("k").window(tumbling("10 ms"))
        windows.agg(n=count(), uid="windows").write(CollectSink(SINK), uid="out")
        return p

    run = InProcessJob(build, {"parallelism": 1}).submit()
    ending.feed("a", 5)
    live.feed("b", 6, 100)
    passed(run, 100)
    ending.is_over = True
    passed(run, 100)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="s", stop="drain"))
    assert sorted(row["n"] for row in collected(SINK).table().to_pylist()) == [1, 2]
