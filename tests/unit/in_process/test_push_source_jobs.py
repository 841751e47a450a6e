"""S4.1, S4.2: jobs whose input comes on threads of its own, crashed and restored."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidegate.api.aggregates import count
from tidegate.api.aggregates import sum as total_of
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.interface import Boundedness, SourceContext, Split
from tidegate.connectors.push import PushContext, Pusher, PushSource
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 400
KEYS = 5
WINDOW_MS = 50
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
_sinks = itertools.count()


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    """The loop of a job in one process never sleeps: without this the pushers' threads would hardly run."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


def rows(numbers: Sequence[int]) -> pa.RecordBatch:
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp("ms"))
    return pa.record_batch([[n % KEYS for n in numbers], list(numbers), times], schema=SCHEMA)


class Feed(PushSource):
    """Records 0 to ROWS, number n in split n mod 3; a position is the number of the split's next record."""

    buffer_bytes = 4_096

    def __init__(self, fails_at: int | None = None) -> None:
        self._fails_at = fails_at

    @property
    def boundedness(self) -> Boundedness:
        return "bounded"

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"feed-{i}", {"first": i}) for i in range(3)]

    def create_pusher(self, ctx: SourceContext) -> Pusher:
        return Feeding(self._fails_at)


class Feeding(Pusher):
    def __init__(self, fails_at: int | None) -> None:
        self._fails_at = fails_at

    def run(self, push: PushContext) -> None:
        at = {s.split_id: s.data["first"] if s.position is None else s.position for s in push.splits}
        while at:
            for split_id in list(at):
                numbers = range(at[split_id], min(at[split_id] + 12, ROWS), 3)
                if self._fails_at in numbers:
                    raise ConnectionError("the feed broke off")
                at[split_id] += 12
                push.emit(rows(numbers), split_id=split_id, position=at[split_id])
                if at[split_id] >= ROWS:
                    del at[split_id]
                    push.finish_split(split_id)


def job(sink: str, source: PushSource, **options: Any) -> InProcessJob:
    def build() -> Pipeline:
        p = Pipeline()
        (
            p.read(source, uid="feed")
            .with_watermark("ts", "0 s")
            .group_by("k")
            .window(tumbling("50 ms"))
            .agg(n=count(), total=total_of("v"), uid="windows")
            .write(CollectSink(sink), uid="out")
        )
        return p

    return InProcessJob(build, {"parallelism": 2, **options})


def output(sink: str) -> Counter[tuple[int, int, int]]:
    table = collected(sink).table()
    if table.num_rows == 0:
        return Counter()
    return Counter(zip(*(table[name].to_pylist() for name in ("k", "n", "total")), strict=True))


def expected() -> Counter[tuple[int, int, int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(ROWS):
        found.setdefault((number % KEYS, number // WINDOW_MS), []).append(number)
    return Counter((k, len(numbers), sum(numbers)) for (k, _), numbers in found.items())


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_moment_loses_and_repeats_none_of_what_was_pushed(seed: int) -> None:
    """S4.1, S4.2, S9.1: each record affects state once, whatever waited in the pushers' buffers."""
    rng = random.Random(seed)
    sink = f"push-{next(_sinks)}"
    a_job = job(sink, Feed(), checkpoint_interval="1 s")
    run = a_job.submit()
    for _ in range(3):
        for _ in range(rng.randint(0, 60)):
            run.pump()
            if rng.random() < 0.3:
                run.tick(rng.randint(1, 700))
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        run.crash()
        run = a_job.relaunch() if rng.random() < 0.5 else a_job.rerun()
    assert isinstance(run.to_end(), RunEnded)
    assert output(sink) == expected()


def test_a_suspended_push_source_goes_on_where_the_savepoint_says() -> None:
    """S4.2, S7.2."""
    sink = f"push-{next(_sinks)}"
    a_job = job(sink, Feed())
    run = a_job.submit()
    run.until(lambda: sum(s.rows_in for s in run.slot._subtasks if s.source_input is not None) >= 40)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.outcome
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    assert sum(n * times for (_, n, _), times in output(sink).items()) < ROWS
    a_job.submit(RestoreFrom("savepoint", path=outcome.path)).to_end()
    assert output(sink) == expected()


def test_what_a_pusher_raises_fails_the_run_with_source_subtask_and_its_own_traceback() -> None:
    sink = f"push-{next(_sinks)}"
    run = job(sink, Feed(fails_at=130)).submit()
    with pytest.raises(OperatorFailure, match=r"'feed' subtask \d: ConnectionError: the feed broke off") as caught:
        run.to_end()
    assert "in run" in caught.value.traceback and "test_push_source_jobs" in caught.value.traceback
    run.crash()
    assert isinstance(run.outcome, RunFailed)
