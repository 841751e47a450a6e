"""S3.7 in whole jobs: checkpoints under backpressure, crashed and restored; the same machinery as on Spark."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders.batches import KEY_NAMES, KEYED_ROWS, named_keys, numbered_rows

from tidegate.api.aggregates import count
from tidegate.api.aggregates import sum as total_of
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 24_000
KEYS = 7
BATCH_ROWS = 500
rows = numbered_rows(KEYS)
SLOWNESS = 40
"""Rounds of the loop for one step of a slow subtask."""
SOURCE, WINDOWS = 0, 1
"""Chains of `windows`."""


def windows(sink: str) -> Pipeline:
    p = Pipeline()
    (
        p.read(DataGen(rows, KEYED_ROWS, rows=ROWS, splits=3, batch_rows=BATCH_ROWS), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=total_of("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def joined(sink: str) -> Pipeline:
    """A chain with a forward and a broadcast input, which aligns, in front of one with a hash input, which need not."""
    p = Pipeline()
    known = p.read(DataGen(named_keys, KEY_NAMES, rows=KEYS, splits=1, batch_rows=2), uid="names")
    (
        p.read(DataGen(rows, KEYED_ROWS, rows=ROWS, splits=3, batch_rows=BATCH_ROWS), uid="numbers")
        .with_watermark("ts", "0 s")
        .join(known.broadcast(), on="k", uid="join")
        .group_by("name")
        .window(tumbling("1 s"))
        .agg(n=count(), total=total_of("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def diamond(sink: str) -> Pipeline:
    """Two ways from one source to one exchange."""
    p = Pipeline()
    numbers = p.read(DataGen(rows, KEYED_ROWS, rows=ROWS, splits=3, batch_rows=BATCH_ROWS), uid="numbers")
    timed = numbers.with_watermark("ts", "0 s")
    low, high = timed.filter(pc.field("k") < 3), timed.filter(pc.field("k") >= 3)
    (
        low.union(high)
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=total_of("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def wider(sink: str) -> Pipeline:
    """Like `windows`, with one more column in front of the exchange, which the windows read."""
    p = Pipeline()
    (
        p.read(DataGen(rows, KEYED_ROWS, rows=ROWS, splits=3, batch_rows=BATCH_ROWS), uid="numbers")
        .with_watermark("ts", "0 s")
        .with_columns(w=pc.field("v"))
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=total_of("w"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def expected(name: Any = lambda key: key) -> list[tuple[Any, ...]]:
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(ROWS):
        entry = found.setdefault((number % KEYS, number // 1000), [0, 0])
        entry[0] += 1
        entry[1] += number
    return sorted((name(k), w * 1000, n, total) for (k, w), (n, total) in found.items())


def committed(sink: str) -> list[tuple[Any, ...]]:
    """Committed rows: key, start of the window in milliseconds, count, sum."""
    table = collected(sink).table()
    starts = table["window_start"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    key = table.column_names[0]
    return sorted(zip(table[key].to_pylist(), starts.to_pylist(), table["n"].to_pylist(), table["total"].to_pylist()))


def job(sink: str, pipeline: Any = windows, **options: Any) -> InProcessJob:
    given = {"parallelism": 2, "channel_capacity": "64 KiB", "unaligned_checkpoints": True, **options}
    return InProcessJob(lambda: pipeline(sink), given)


def slow_down(run: InProcessRun, *chains: int, slowness: int = SLOWNESS) -> None:
    """Subtasks of `chains` do one step where the others do `slowness`."""
    for subtask in run.slot._subtasks:
        if subtask.subtask[0] in chains:
            rounds = itertools.count()
            subtask.step = (  # type: ignore[method-assign]
                lambda step=subtask.step, rounds=rounds: next(rounds) % slowness == 0 and step()
            )


def rounds_of_a_checkpoint(run: InProcessRun, request_id: str = "now") -> int:
    """How long a checkpoint takes, in rounds of the loop."""
    run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("checkpoint", request_id=request_id)))
    rounds = 0
    while request_id not in run.owner.answers:
        run.pump()
        rounds += 1
        assert rounds < 100_000, "the checkpoint does not end"
    assert run.owner.answers[request_id].ok, run.owner.answers[request_id]
    return rounds


def acks(run: InProcessRun) -> dict[tuple[int, int], dict[str, float]]:
    """Metrics of the last completed checkpoint, by subtask."""
    last = [d for d in run.owner.log.read() if d.kind == "complete"][-1]
    return {tuple(map(int, name.split("."))): metrics for name, metrics in last.data["subtasks"].items()}


def backpressured(a_job: InProcessJob) -> InProcessRun:
    run = a_job.submit()
    slow_down(run, WINDOWS)
    run.pump(SLOWNESS * 12)
    return run


def test_under_backpressure_an_unaligned_checkpoint_overtakes_what_an_aligned_one_waits_for(sink: str) -> None:
    """S3.7: it ends within a few steps of the slow subtasks; aligned, all that is queued has to pass first."""
    aligned = rounds_of_a_checkpoint(backpressured(job(sink + "a", unaligned_checkpoints=False)))
    run = backpressured(job(sink))
    unaligned = rounds_of_a_checkpoint(run)
    assert unaligned <= 3 * SLOWNESS
    assert aligned > 5 * unaligned
    metrics = acks(run)
    assert metrics[(SOURCE, 0)]["unaligned"] == 0
    for index in range(2):
        assert metrics[(WINDOWS, index)]["unaligned"] == 1
        assert metrics[(WINDOWS, index)]["in_flight_bytes"] > 64 * 1024


def test_what_was_in_flight_is_processed_after_a_restore(sink: str) -> None:
    """S3.7, S9.1."""
    a_job = job(sink)
    run = backpressured(a_job)
    rounds_of_a_checkpoint(run)
    run.pump(SLOWNESS)
    run.crash()
    again = a_job.relaunch()
    taken_again = again.slot._subtasks[0]._inputs.replay_left()
    assert sum(element.num_rows for _, element in taken_again if isinstance(element, pa.RecordBatch)) > 1_000
    assert isinstance(again.to_end(), RunEnded)
    assert committed(sink) == expected()


def test_in_flight_data_goes_to_the_subtasks_of_another_parallelism(sink: str) -> None:
    """S3.7, S5.5."""
    a_job = job(sink)
    run = backpressured(a_job)
    rounds_of_a_checkpoint(run)
    run.crash()
    for parallelism in (3, 1, 2):
        a_job.options = {**a_job.options, "parallelism": parallelism}
        run = a_job.submit(RestoreFrom("latest"))
        slow_down(run, WINDOWS)
        run.pump(SLOWNESS * 3)
        rounds_of_a_checkpoint(run, f"at {parallelism}")
        run.crash()
    run = a_job.relaunch()
    assert isinstance(run.to_end(), RunEnded)
    assert committed(sink) == expected()


def test_a_checkpoint_taken_before_the_replay_is_over_holds_the_rest_of_it(sink: str) -> None:
    """S3.7: several times in a row without any progress behind it."""
    a_job = job(sink)
    run = backpressured(a_job)
    for n in range(4):
        rounds_of_a_checkpoint(run, f"n{n}")
        in_flight = acks(run)[(WINDOWS, 0)]["in_flight_bytes"]
        assert in_flight > 64 * 1024
        run.crash()
        run = a_job.relaunch()
        slow_down(run, WINDOWS, slowness=400)
    slow_down(run, WINDOWS, slowness=1)
    run.to_end()
    assert committed(sink) == expected()


def test_an_aligned_checkpoint_waits_for_the_replay(sink: str) -> None:
    """S3.2, S3.7: with unaligned checkpoints switched off in between, the next one holds nothing in flight."""
    a_job = job(sink)
    run = backpressured(a_job)
    rounds_of_a_checkpoint(run)
    run.crash()
    a_job.options = {**a_job.options, "unaligned_checkpoints": False}
    run = a_job.submit(RestoreFrom("latest"))
    subtask = next(s for s in run.slot._subtasks if s.subtask == (WINDOWS, 0))
    # Watermarks without an effect take no step of their own.
    left = sum(isinstance(element, pa.RecordBatch) for _, element in subtask._inputs.replay_left())
    assert left > 5
    slow_down(run, WINDOWS)
    assert rounds_of_a_checkpoint(run, "aligned") > left * SLOWNESS
    assert acks(run)[(WINDOWS, 0)]["in_flight_bytes"] == 0
    run.crash()
    run = a_job.relaunch()
    run.to_end()
    assert committed(sink) == expected()


def test_a_savepoint_aligns_and_holds_nothing_in_flight(sink: str) -> None:
    """S3.7, S7.2."""
    a_job = job(sink)
    run = backpressured(a_job)
    run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert a_job.answers["sp"].ok
    assert all(metrics["unaligned"] == metrics["in_flight_bytes"] == 0 for metrics in acks(run).values())
    rounds_of_a_checkpoint(run)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    assert all(metrics["in_flight_bytes"] == 0 for metrics in acks(run).values())
    run = a_job.submit(RestoreFrom("savepoint", path=outcome.path))
    run.to_end()
    assert committed(sink) == expected()


def test_with_a_timeout_a_checkpoint_aligns_while_it_can(sink: str) -> None:
    """S3.7."""
    a_job = job(sink, aligned_checkpoint_timeout="1 s")
    run = a_job.submit()
    run.pump(5)
    rounds_of_a_checkpoint(run, "fast")
    assert all(metrics["unaligned"] == 0 for metrics in acks(run).values())
    slow_down(run, WINDOWS)
    run.pump(SLOWNESS * 12)
    run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("checkpoint", request_id="slow")))
    run.pump(3 * SLOWNESS)
    assert "slow" not in a_job.answers
    run.tick(1_000)
    run.pump(3 * SLOWNESS)
    assert a_job.answers["slow"].ok
    metrics = acks(run)[(WINDOWS, 1)]
    assert metrics["unaligned"] == 1
    assert metrics["alignment_ms"] >= 1_000
    run.crash()
    run = a_job.relaunch()
    run.to_end()
    assert committed(sink) == expected()


def test_a_subtask_with_a_broadcast_input_aligns_while_others_overtake(sink: str) -> None:
    """S3.7: every subtask decides for itself; the cut is consistent all the same."""
    a_job = job(sink, joined)
    run = a_job.submit()
    by_uid = {s._uids[0]: s.subtask[0] for s in run.slot._subtasks if s._uids}
    slow_down(run, by_uid["windows"])
    run.pump(SLOWNESS * 12)
    rounds_of_a_checkpoint(run)
    metrics = acks(run)
    assert [metrics[(by_uid["join"], i)]["unaligned"] for i in range(2)] == [0, 0]
    assert [metrics[(by_uid["windows"], i)]["unaligned"] for i in range(2)] == [1, 1]
    assert sum(metrics[(by_uid["windows"], i)]["in_flight_bytes"] for i in range(2)) > 0
    run.crash()
    run = a_job.relaunch()
    run.to_end()
    assert committed(sink) == expected(lambda key: f"key-{key}")


def test_a_changed_pipeline_is_refused_over_in_flight_data_and_taken_over_a_savepoint(sink: str) -> None:
    """S3.7, S9.3."""
    a_job = job(sink)
    run = backpressured(a_job)
    rounds_of_a_checkpoint(run)
    run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    run.crash()
    a_job.build = lambda: wider(sink)
    with pytest.raises(SnapshotError, match=r"without the columns \['w'\].*savepoint"):
        a_job.submit(RestoreFrom("latest"))
    run = a_job.submit(RestoreFrom("savepoint", path=a_job.answers["sp"].data["path"]))
    run.to_end()
    assert committed(sink) == expected()


@pytest.mark.parametrize("seed", range(50))
def test_crashes_rescales_and_slow_subtasks_lose_and_repeat_nothing(sink: str, seed: int) -> None:
    """S2.2, S3.4, S3.5, S3.7, S5.5, S9.1: periodic checkpoints, up to three at once, savepoints between them."""
    crashed_and_rescaled(sink, random.Random(seed))


def crashed_and_rescaled(sink: str, rng: random.Random) -> None:
    """Run a job through crashes, rescales and slow subtasks to its end, and check what it committed."""
    pipeline = rng.choice([windows, joined, diamond])
    a_job = job(
        sink,
        pipeline,
        checkpoint_interval="200 ms",
        checkpoint_timeout="20 s",
        tolerable_checkpoint_failures=1_000,
        retained_checkpoints=rng.randint(1, 3),
        max_concurrent_checkpoints=rng.randint(1, 3),
        aligned_checkpoint_timeout=rng.choice(["0 s", "0 s", "50 ms"]),
        parallelism=rng.randint(1, 3),
    )
    run = a_job.submit()
    for life in range(5):
        for subtask in {s.subtask[0] for s in run.slot._subtasks}:
            slow_down(run, subtask, slowness=rng.choice([1, 1, 3, 20]))
        for turn in range(rng.randint(0, 60)):
            run.pump(rng.randint(1, 8))
            run.tick(rng.randint(1, 120))
            if rng.random() < 0.03:
                run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("savepoint", request_id=f"{life}-{turn}")))
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        run.crash()
        if rng.random() < 0.3 and any(
            d.kind == "complete" and d.data["kind"] == "checkpoint" for d in a_job.log.read()
        ):
            a_job.options = {**a_job.options, "parallelism": rng.randint(1, 3)}
            run = a_job.submit(RestoreFrom("latest"))
        else:
            run = a_job.relaunch() if rng.random() < 0.5 else a_job.rerun()
    run.to_end()
    assert isinstance(run.outcome, RunEnded), run.outcome
    assert committed(sink) == expected((lambda key: f"key-{key}") if pipeline is joined else (lambda key: key))
    assert set(collected(sink).publications.values()) <= {1}
