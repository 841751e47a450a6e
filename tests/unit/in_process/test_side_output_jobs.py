"""Side outputs in whole jobs: what goes to them arrives, once, through crashes, restores and full outputs; what nobody
reads is counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders.batches import KEYED_ROWS

from tidegate import KeyedProcess, KeyedRows, ProcessContext, SideOutput, count, tumbling
from tidegate.api.pipeline import Pipeline
from tidegate.api.stream import Stream
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 600
BAD = pa.schema([("why", pa.string()), ("v", pa.int64())])
Build = Callable[[str], Pipeline]


def rows(numbers: Any) -> dict[str, Any]:
    """Event time goes forth and back: each tenth row is some hundred milliseconds late."""
    times = numbers - 137 * (numbers % 10 == 9)
    return {"k": numbers % 7, "v": numbers, "ts": pa.array(times).cast(pa.timestamp("ms"))}


def read(p: Pipeline, splits: int = 3) -> Stream:
    return p.read(DataGen(rows, KEYED_ROWS, rows=ROWS, splits=splits, batch_rows=16), uid="numbers")


def sorted_out(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch | SideOutput]:
    for batch in batches:
        odd = pc.equal(pc.bit_wise_and(batch["v"], 1), 1)
        yield batch.filter(pc.invert(odd))
        why = batch.filter(odd)
        yield SideOutput("bad", pa.record_batch([pa.array(["odd"] * why.num_rows), why["v"]], schema=BAD))


class Evens(KeyedProcess):
    """Keyed, with the same two outputs."""

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Iterable[pa.RecordBatch | SideOutput]:
        return sorted_out(iter((rows.batch,)))


def function(name: str) -> Pipeline:
    """The side output of a function in the midst of a chain; main output by key, side output to another subtask."""
    p = Pipeline()
    even = read(p).map_in_arrow(sorted_out, KEYED_ROWS, side_outputs={"bad": BAD}, uid="parse")
    even.filter(pc.field("v") >= 0).write(CollectSink(f"{name}-main"), uid="out")
    even.side_output("bad").filter(pc.field("why") == "odd").write(CollectSink(f"{name}-side"), uid="rejects")
    return p


def process(name: str) -> Pipeline:
    p = Pipeline()
    even = read(p).group_by("k").process(Evens(), schema=KEYED_ROWS, side_outputs={"bad": BAD}, uid="parse")
    even.write(CollectSink(f"{name}-main"), uid="out")
    even.side_output("bad").write(CollectSink(f"{name}-side"), uid="rejects")
    return p


def windows(name: str, splits: int = 3) -> Pipeline:
    p = Pipeline()
    counted = read(p, splits).with_watermark("ts", "0 s").group_by("k").window(tumbling("50 ms"))
    results = counted.agg(n=count(), uid="windows")
    results.write(CollectSink(f"{name}-main"), uid="out")
    results.side_output("late").write(CollectSink(f"{name}-side"), uid="late")
    return p


def column(sink: str, name: str) -> list[Any]:
    table = collected(sink).table()
    return sorted(table[name].to_pylist()) if table.num_rows else []


def crashed_at_random(job: InProcessJob, seed: int) -> InProcessRun:
    """Run to the end, through crashes and a rescale from a savepoint."""
    rng = random.Random(seed)
    run = job.submit()
    for crash in range(4):
        for _ in range(rng.randint(5, 60)):
            run.pump()
            if rng.random() < 0.3:
                run.tick(rng.randint(1, 700))
        if run.outcome is not None:
            break
        if crash == 2:
            run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
            outcome = run.to_end()
            if isinstance(outcome, RunEnded) and outcome.stop is not None:
                job.options = {**job.options, "parallelism": rng.randint(1, 4)}
                run = job.submit(RestoreFrom("savepoint", path=outcome.path))
        else:
            run.crash()
            run = job.rerun()
    run.to_end()
    return run


@pytest.mark.parametrize("build", [function, process])
@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_rows_of_both_outputs_arrive_once_through_crashes_and_a_rescale(
    sink: str, build: Build, unaligned: bool, seed: int
) -> None:
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": "1 s"}
    if unaligned:
        options |= {"unaligned_checkpoints": True}
    run = crashed_at_random(InProcessJob(lambda: build(sink), options), seed)
    assert isinstance(run.outcome, RunEnded)
    assert column(f"{sink}-main", "v") == list(range(0, ROWS, 2))
    assert column(f"{sink}-side", "v") == list(range(1, ROWS, 2))


def test_late_rows_go_to_the_side_output_of_a_window_as_they_came(sink: str) -> None:
    """S4.4: with one split the watermark is the latest time of the batches before."""
    InProcessJob(lambda: windows(sink, splits=1), {"parallelism": 1}).submit().to_end()
    late, watermark = [], -(10**9)
    for start in range(0, ROWS, 16):
        batch = [(n, n - 137 * (n % 10 == 9)) for n in range(start, min(start + 16, ROWS))]
        late += [n for n, time in batch if (time // 50 + 1) * 50 <= watermark]
        watermark = max([watermark, *(time for _, time in batch)])
    assert column(f"{sink}-side", "v") == late and len(late) > 30
    assert sum(column(f"{sink}-main", "n")) == ROWS - len(late)
    assert collected(f"{sink}-side").table().schema.names == ["k", "v", "ts"]


@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_in_a_window_or_late_through_crashes_and_a_rescale(sink: str, seed: int) -> None:
    job = InProcessJob(lambda: windows(sink), {"parallelism": 2, "checkpoint_interval": "1 s"})
    assert isinstance(crashed_at_random(job, seed).outcome, RunEnded)
    late = column(f"{sink}-side", "v")
    assert len(set(late)) == len(late)
    assert sum(column(f"{sink}-main", "n")) + len(late) == ROWS


def test_rows_for_a_side_output_that_nobody_reads_are_dropped_and_counted(sink: str) -> None:
    def unread(p: Pipeline) -> Pipeline:
        even = read(p).map_in_arrow(sorted_out, KEYED_ROWS, side_outputs={"bad": BAD}, uid="parse")
        even.write(CollectSink(f"{sink}-main"), uid="out")
        return p

    run = InProcessJob(lambda: unread(Pipeline()), {"parallelism": 1}).submit()
    dropped = 0
    while run.outcome is None:
        if not run.pump():
            run.tick(10)
        told = {uid: counts for s in run.slot.metrics().subtasks for uid, counts in s.counters.items()}
        dropped = max(dropped, told.get("parse", {}).get("side_output_dropped", 0))
    assert dropped == ROWS // 2
    assert column(f"{sink}-main", "v") == list(range(0, ROWS, 2))


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (
            SideOutput("other", pa.record_batch({"v": [1]})),
            "rows were returned for the undeclared side output 'other'; declared are ['bad']",
        ),
        (SideOutput("bad", pa.record_batch({"v": [1]})), "side output 'bad': the columns are ['v']"),
    ],
)
def test_rows_that_are_not_as_declared_fail_the_run_and_name_the_output(
    sink: str, given: SideOutput, cause: str
) -> None:
    p = Pipeline()
    even = read(p).map_in_arrow(lambda batches: [given], KEYED_ROWS, side_outputs={"bad": BAD}, uid="parse")
    even.write(CollectSink(f"{sink}-main"), uid="out")
    even.side_output("bad").write(CollectSink(f"{sink}-side"), uid="rejects")
    run = InProcessJob(lambda: p, {"parallelism": 1}).submit()
    with pytest.raises(OperatorFailure) as failure:
        run.to_end()
    assert failure.value.uid == "parse" and cause in failure.value.message


def test_the_watermark_goes_to_a_side_output_too(sink: str) -> None:
    """A window over late rows: those of times before 1970, 12, are late there again; the other windows are open."""
    p = Pipeline()
    results = read(p, 1).with_watermark("ts", "0 s").group_by("k").window(tumbling("50 ms")).agg(n=count(), uid="first")
    results.write(CollectSink(f"{sink}-main"), uid="out")
    again = results.side_output("late").group_by("k").window(tumbling("10 s")).agg(n=count(), uid="second")
    again.write(CollectSink(f"{sink}-side"), uid="late")
    InProcessJob(lambda: p, {"parallelism": 2}).submit().to_end()
    assert sum(column(f"{sink}-main", "n")) + sum(column(f"{sink}-side", "n")) == ROWS - 12
    assert sum(column(f"{sink}-side", "n")) > 30
