"""S4.4, S7.2 in whole jobs: final aggregates come when their input is over, and are in time for what is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from fed_splits import Fed, FedReader, passed

from tidegate import count, tumbling
from tidegate import max as latest
from tidegate.connectors.contract import Boundedness, Polled, SourceContext, SourceReader, Split
from tidegate.coordinator import events as ev
from tidegate.pipeline.pipeline import Pipeline
from tidegate.testing.collect import CollectSink, collected, forget_collected
from tidegate.testing.in_process import InProcessJob

SINK = "final-aggregates-in-time"


class Ending(Fed):
    """Ends when a test says so."""

    boundedness: Boundedness = "bounded"
    is_over = False

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        return EndingReader(self)


class EndingReader(FedReader):
    _source: Ending

    def poll(self, now_ms: int) -> Polled:
        polled = super().poll(now_ms)
        return Polled(state="end") if polled.batch is None and self._source.is_over else polled

    def snapshot(self) -> Sequence[Split]:
        return [replace(split, finished=self._source.is_over) for split in super().snapshot()]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget_collected(SINK)


def test_final_aggregates_are_in_time_for_windows_that_wait_for_them() -> None:
    """Another stream is far ahead when their input ends."""
    ending, live = Ending("a"), Fed("b")

    def build() -> Pipeline:
        p = Pipeline()
        last = p.read(ending, uid="ending").group_by("k").agg(ts=latest("ts"), output="final", uid="last")
        both = last.with_watermark("ts", "0 s").union(p.read(live, uid="live").with_watermark("ts", "0 s"))
        windows = both.group_by("k").window(tumbling("10 ms"))
        windows.agg(n=count(), uid="windows").write(CollectSink(SINK), uid="out")
        return p

    run = InProcessJob(build, {"parallelism": 1}).submit()
    ending.feed("a", 5)
    live.feed("b", 6, 100)
    passed(run, 100)
    ending.is_over = True
    passed(run, 100)
    run.ask(ev.Request("stop-savepoint", request_id="s", stop="drain"))
    assert sorted(row["n"] for row in collected(SINK).table().to_pylist()) == [1, 2]
