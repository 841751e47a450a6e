"""S7.5, S4.4 in whole jobs: what is late after a restore of what a drain took, which forgot how far time had come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from fed_splits import Fed, passed

from tidegate import Stream, count, tumbling
from tidegate.api.pipeline import Pipeline
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

_names = itertools.count()


class Counting:
    """Counts the rows of 10 ms, of splits that a test feeds."""

    asks_leave = True

    def __init__(self, sink: str, *splits: str, parallelism: int = 1, **options: Any) -> None:
        self.fed = Fed(*splits)
        self.sink = sink
        self.job = InProcessJob(self.build, {"parallelism": parallelism, **options})
        self.run: InProcessRun = self.job.submit()

    def build(self) -> Pipeline:
        p = Pipeline()
        timed = p.read(self.fed, uid="fed").with_watermark("ts", "0 s")
        self.draw(timed)
        return p

    def draw(self, timed: Stream) -> None:
        windows = timed.group_by("k").window(tumbling("10 ms"))
        windows.agg(n=count(), uid="windows").write(CollectSink(self.sink), uid="out")

    def feed(self, **times: int) -> None:
        for split, time_ms in times.items():
            self.fed.feed(split, time_ms)
        passed(self.run, 100)

    def again(self, stop: Any) -> None:
        self.run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"s{next(_names)}", stop=stop))
        assert isinstance(self.run.outcome, RunEnded)
        self.run = self.job.submit(RestoreFrom("latest", allow_drained=stop == "drain" and self.asks_leave))

    def dies(self, **options: Any) -> None:
        """Behind a checkpoint; with options it is a new submission that comes after it."""
        answer = self.run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{next(_names)}"))
        assert answer is not None and answer.ok
        self.run.crash()
        self.job.options = {**self.job.options, **options}
        self.run = self.job.submit(RestoreFrom("latest")) if options else self.job.relaunch()

    def results(self) -> list[int]:
        """Counts of the window from 0 to 10 ms, in the end."""
        self.run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"s{next(_names)}", stop="drain"))
        rows = collected(self.sink).table().to_pylist()
        return sorted(row["n"] for row in rows if row["window_start"].microsecond == 0)


class Deduplicating(Counting):
    """Passes one of equal rows; a drain makes nothing early."""

    asks_leave = False

    def draw(self, timed: Stream) -> None:
        timed.deduplicate(["k", "ts"], within="10 ms", uid="first").write(CollectSink(self.sink), uid="out")


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"late-after-drain-{next(_names)}"
    yield name
    clear_collected(name)


@pytest.mark.parametrize("stop", ["suspend", "drain"])
@pytest.mark.parametrize("splits", [("a",), ("a", "b")])
def test_what_was_late_before_is_late_again(sink: str, stop: Any, splits: tuple[str, ...]) -> None:
    """S7.5, S4.4: the source tells the watermark that it comes with ahead of its first row."""
    counting = Counting(sink, *splits)
    counting.feed(**dict.fromkeys(splits, 5))
    counting.feed(**dict.fromkeys(splits, 100))
    counting.feed(a=6)
    counting.again(stop)
    counting.feed(a=7)
    counting.feed(a=8)
    assert counting.results() == [len(splits)]


@pytest.mark.parametrize("stop", ["suspend", "drain"])
def test_what_was_in_time_is_in_time_however_far_the_drain_let_time_run(sink: str, stop: Any) -> None:
    """S7.5: one source subtask is far behind the other, and is drained first or last."""
    counting = Counting(sink, "a", "b", parallelism=2)
    counting.feed(a=5, b=100)
    counting.again(stop)
    counting.feed(a=6, b=101)
    assert sum(counting.results()) == 2


def test_until_every_source_subtask_has_brought_a_row_nothing_is_late_after_a_drain(sink: str) -> None:
    """S7.5: how far the silent one had come nobody downstream can tell from how far the drain let time run."""
    counting = Counting(sink, "a", "b", parallelism=2)
    counting.feed(a=5, b=5)
    counting.feed(a=100, b=100)
    counting.again("drain")
    counting.feed(a=7)
    counting.feed(b=101)
    counting.feed(a=8)
    assert counting.results() == [1, 2], "a further result of the row that came before b's first"


@pytest.mark.parametrize("stop", ["suspend", "drain"])
def test_a_key_that_was_forgotten_before_is_not_taken_for_a_new_one(sink: str, stop: Any) -> None:
    """S7.5, S4.4: the source tells its watermark also where nobody is asked for leave, since nothing was early."""
    job = Deduplicating(sink, "a")
    job.feed(a=5)
    job.feed(a=100)
    job.again(stop)
    job.feed(a=5)
    job.run.ask(ev.SnapshotRequest("stop-savepoint", request_id="end", stop="suspend"))
    assert sorted(row["ts"].microsecond for row in collected(sink).table().to_pylist()) == [5_000, 100_000]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("splits", [("a",), ("a", "b")])
def test_what_was_late_before_is_late_again_when_runs_die_before_their_first_row(
    sink: str, splits: tuple[str, ...], times: int
) -> None:
    """S7.5: that the watermark is still to be told is state."""
    counting = Counting(sink, *splits)
    counting.feed(**dict.fromkeys(splits, 5))
    counting.feed(**dict.fromkeys(splits, 100))
    counting.again("drain")
    for _ in range(times):
        counting.dies()
    counting.feed(a=7)
    counting.feed(a=8)
    assert counting.results() == [len(splits)]


def test_each_source_subtask_has_its_own_first_row(sink: str) -> None:
    """S7.5: one has had it when the run dies, the other tells its watermark in the next."""
    counting = Counting(sink, "a", "b", parallelism=2)
    counting.feed(a=5, b=5)
    counting.feed(a=100, b=100)
    counting.again("drain")
    counting.feed(a=101)
    counting.dies()
    counting.feed(a=102)
    counting.feed(b=7)
    assert counting.results() == [2]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_it_is_told_at_another_parallelism_too(sink: str, before: int, after: int) -> None:
    """S7.5, S5.5."""
    counting = Counting(sink, "a", "b", parallelism=before)
    counting.feed(a=5, b=5)
    counting.feed(a=100, b=100)
    counting.again("drain")
    counting.dies(parallelism=after)
    if after == 2:
        counting.feed(a=101)
    counting.feed(b=7)
    assert counting.results() == [2]
