"""map_async in whole jobs: answers that come when they like, crashes, rescales and stops; every row's answer comes out
once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate import count, tumbling
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.operators.async_requests import start_requests
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun
from tidegate.testing.inline_requests import HeldRequests

ROWS = 400
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
_sinks = itertools.count()


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % 7, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", pc.multiply(batch["v"], 2))


async def twice_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    return twice(batch)


def asking(name: str, function: Any = twice, ordered: bool = True, **what: Any) -> Pipeline:
    """The answers, and windows over them, which must have no late ones: each split is in order."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=ROWS, splits=3, batch_rows=16)
    timed = p.read(source, uid="numbers").with_watermark("ts", "0 s")
    given = {"capacity": 5, "batch_rows": 4, "ordered": ordered, "uid": "ask", **what}
    answered = timed.map_async(function, SCHEMA, **given)
    answered.write(CollectSink(f"{name}-rows"), uid="out")
    windows = answered.group_by("k").window(tumbling("50 ms")).agg(n=count(), uid="windows")
    windows.write(CollectSink(f"{name}-windows"), uid="counts")
    return p


class AtRandom:
    """Makes HeldRequests, and answers some of them now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.open: list[HeldRequests] = []

    def __call__(self, *what: Any) -> HeldRequests:
        self.open.append(HeldRequests(*what))
        return self.open[-1]

    def pump(self, run: InProcessRun) -> None:
        """A round of the slot, and perhaps an answer to one request of each subtask."""
        run.pump()
        for requests in self.open:
            if requests.held and self.random.random() < 0.7:
                requests.answer(self.random.randrange(len(requests.held)))
        if self.random.random() < 0.2:
            run.tick(self.random.randint(1, 300))

    def to_end(self, run: InProcessRun) -> None:
        """Until the run is over."""
        for _ in range(100_000):
            if run.outcome is not None:
                return
            self.pump(run)
        raise AssertionError("stuck")


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"asked-{next(_sinks)}"
    yield name
    for end in ("rows", "windows"):
        clear_collected(f"{name}-{end}")


def assert_complete(sink: str) -> None:
    assert sorted(collected(f"{sink}-rows").table()["v"].to_pylist()) == [2 * v for v in range(ROWS)]
    assert sum(collected(f"{sink}-windows").table()["n"].to_pylist()) == ROWS, "a late answer was dropped"


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_every_answer_comes_out_once_through_crashes_and_a_rescale(sink: str, ordered: bool, seed: int) -> None:
    """S4.4, S5.5, S9.1."""
    service = AtRandom(seed)
    options = {"parallelism": 2, "checkpoint_interval": "500 ms", "unaligned_checkpoints": seed % 2 == 1}
    job = InProcessJob(lambda: asking(sink, ordered=ordered, timeout=None), options, requests=service)
    run = job.submit()
    for crash in range(4):
        for _ in range(service.random.randint(5, 80)):
            service.pump(run)
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        if crash == 2:
            run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
            service.to_end(run)
            if not isinstance(run.outcome, RunEnded) or run.outcome.stop is None:
                break
            job.options = {**options, "parallelism": service.random.randint(1, 4)}
            run = job.submit(RestoreFrom("savepoint", path=run.outcome.path))
        else:
            run.crash()
            run = job.rerun()
    service.to_end(run)
    assert isinstance(run.outcome, RunEnded)
    assert_complete(sink)


@pytest.mark.parametrize("function", [twice, twice_later])
def test_in_one_thread_functions_are_asked_at_once_and_runs_are_alike(sink: str, function: Any) -> None:
    found = []
    for end in ("a", "b"):
        InProcessJob(lambda e=end: asking(f"{sink}{e}", function), {"parallelism": 2}).submit().to_end()
        found.append(collected(f"{sink}{end}-rows").rows())
        assert_complete(f"{sink}{end}")
    assert found[0] == found[1]


@pytest.mark.parametrize("function", [twice, twice_later])
@pytest.mark.parametrize("ordered", [True, False])
def test_on_threads_and_on_an_event_loop_every_answer_comes_out_too(sink: str, function: Any, ordered: bool) -> None:
    """The clock stands still when nothing can be done but wait: it is the loop that is roused."""
    job = InProcessJob(lambda: asking(sink, function, ordered), {"parallelism": 2}, requests=start_requests)
    run = job.submit()
    while run.outcome is None:
        if not run.pump():
            run.slot._wake.wait(30.0)
    assert_complete(sink)


def test_rows_that_are_not_answered_in_time_go_to_the_side_output(sink: str) -> None:
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=ROWS, splits=1, batch_rows=16)
    answered = p.read(source, uid="numbers").map_async(
        twice, SCHEMA, timeout="1 s", on_timeout="side_output", capacity=2, uid="ask"
    )
    answered.write(CollectSink(f"{sink}-rows"), uid="out")
    answered.side_output("timed_out").write(CollectSink(f"{sink}-windows"), uid="unanswered")
    InProcessJob(lambda: p, {"parallelism": 1}, requests=HeldRequests).submit().to_end()
    assert sorted(collected(f"{sink}-windows").table()["v"].to_pylist()) == list(range(ROWS))
    assert collected(f"{sink}-rows").table().num_rows == 0
