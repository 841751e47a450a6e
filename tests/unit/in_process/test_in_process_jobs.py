"""Whole jobs in one thread: the runtime's own coordinator, subtasks and snapshots, crashed and restored at every
moment."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidegate.api.aggregates import count, mean
from tidegate.api.aggregates import sum as total_of
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import FencedError, SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 600
KEYS = 7
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])
_sinks = itertools.count()


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def names(numbers: Any) -> dict[str, Any]:
    return {"k": numbers, "name": pa.array([f"key-{n}" for n in numbers.tolist()])}


def windows(sink: str, total: int | None = ROWS) -> Pipeline:
    p = Pipeline()
    (
        p.read(DataGen(rows, SCHEMA, rows=total, splits=3, batch_rows=16), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("100 ms"))
        .agg(n=count(), total=total_of("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def joined(sink: str, total: int | None = ROWS) -> Pipeline:
    p = Pipeline()
    known = p.read(DataGen(names, NAMES, rows=KEYS - 1, splits=1, batch_rows=2), uid="names")
    (
        p.read(DataGen(rows, SCHEMA, rows=total, splits=2, batch_rows=16), uid="numbers")
        .with_watermark("ts", "0 s")
        .join(known.broadcast(), on="k", uid="join")
        .group_by("name")
        .window(tumbling("100 ms"))
        .agg(n=count(), average=mean("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def expected_windows() -> list[tuple[Any, ...]]:
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(ROWS):
        entry = found.setdefault((number % KEYS, number // 100), [0, 0])
        entry[0] += 1
        entry[1] += number
    return [(k, w * 100, (w + 1) * 100, n, total) for (k, w), (n, total) in found.items()]


def expected_joined() -> list[tuple[Any, ...]]:
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(ROWS):
        if number % KEYS < KEYS - 1:
            found.setdefault((number % KEYS, number // 100), []).append(number)
    return [(f"key-{k}", w * 100, (w + 1) * 100, len(v), sum(v) / len(v)) for (k, w), v in found.items()]


def committed(sink: str) -> list[tuple[Any, ...]]:
    """Committed rows, times in milliseconds."""
    table = collected(sink).table()
    for name in ("window_start", "window_end"):
        if name in table.column_names:
            position = table.column_names.index(name)
            millis = table[name].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
            table = table.set_column(position, name, millis)
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def sink() -> Iterator[str]:
    yield f"sink-{next(_sinks)}"


def job(sink: str, pipeline: Any = windows, **options: Any) -> InProcessJob:
    return InProcessJob(lambda: pipeline(sink), {"parallelism": 2, **options})


@pytest.mark.parametrize(("pipeline", "wanted"), [(windows, expected_windows), (joined, expected_joined)])
def test_a_bounded_job_ends_with_one_final_snapshot_and_complete_output(sink: str, pipeline: Any, wanted: Any) -> None:
    """S7.1, S7.2, S7.3."""
    a_job = job(sink, pipeline)
    outcome = a_job.submit().to_end()
    assert outcome == RunEnded(None, None, None, None)
    assert sorted(committed(sink)) == sorted(wanted())
    completes = [d for d in a_job.log.read() if d.kind == "complete"]
    assert [d.data["kind"] for d in completes] == ["final"]


@pytest.mark.parametrize(("pipeline", "wanted"), [(windows, expected_windows), (joined, expected_joined)])
@pytest.mark.parametrize("seed", range(25))
def test_crashes_at_random_moments_lose_and_repeat_nothing(sink: str, pipeline: Any, wanted: Any, seed: int) -> None:
    """S3.2, S4.2, S7.4, S9.1."""
    rng = random.Random(seed)
    a_job = job(sink, pipeline, checkpoint_interval="1 s", retained_checkpoints=2)
    run = a_job.submit()
    for _ in range(4):
        for _ in range(rng.randint(0, 40)):
            run.pump()
            if rng.random() < 0.3:
                run.tick(rng.randint(1, 700))
            if run.outcome is not None:
                break
        if run.outcome is not None:
            break
        run.crash()
        run = a_job.relaunch() if rng.random() < 0.5 else a_job.rerun()
    run.to_end()
    assert isinstance(run.outcome, RunEnded)
    assert sorted(committed(sink)) == sorted(wanted())
    assert set(collected(sink).publications.values()) <= {1}


@pytest.mark.parametrize("moment", [0, 3, 10, 25, 60])
@pytest.mark.parametrize("pipeline", [windows, joined])
def test_suspend_commits_and_a_restore_goes_on_where_it_stopped(sink: str, pipeline: Any, moment: int) -> None:
    """S4.2, S7.2, S7.5."""
    a_job = job(sink, pipeline)
    run = a_job.submit()
    run.pump(moment)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded)
    if outcome.stop is not None:
        assert outcome.path is not None
        a_job.submit(RestoreFrom("savepoint", path=outcome.path)).to_end()
    assert sorted(committed(sink)) == sorted((expected_windows if pipeline is windows else expected_joined)())


def test_drain_fires_open_windows_and_suspend_does_not(sink: str) -> None:
    """S7.2."""
    suspended = InProcessJob(lambda: windows(sink + "s", None), {"parallelism": 2})
    run = suspended.submit()
    run.pump(20)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    run.to_end()
    drained = InProcessJob(lambda: windows(sink + "d", None), {"parallelism": 2})
    run = drained.submit()
    run.pump(20)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    run.to_end()
    assert len(committed(sink + "d")) > len(committed(sink + "s"))


def test_restoring_a_drained_savepoint_is_refused_unless_allowed(sink: str) -> None:
    """S7.5."""
    a_job = InProcessJob(lambda: windows(sink, None), {"parallelism": 2})
    run = a_job.submit()
    run.pump(20)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    with pytest.raises(SnapshotError, match="allow_drained"):
        a_job.submit(RestoreFrom("savepoint", path=outcome.path))


def test_an_intermediate_savepoint_commits_nothing(sink: str) -> None:
    """S2.4."""
    a_job = job(sink)
    run = a_job.submit()
    run.pump(30)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert answer is not None and answer.ok
    assert committed(sink) == []
    run.to_end()
    assert sorted(committed(sink)) == sorted(expected_windows())


def test_checkpoints_go_on_after_a_bounded_source_has_finished(sink: str) -> None:
    """S6.1."""
    a_job = InProcessJob(lambda: joined(sink, None), {"parallelism": 2, "checkpoint_interval": "1 s"})
    run = a_job.submit()
    run.until(lambda: any(d.kind == "end_of_data" for d in a_job.log.read()))
    ended_at = len(a_job.log.read())

    def completed_since() -> int:
        run.tick(100)
        return sum(d.kind == "complete" for d in a_job.log.read()[ended_at:])

    run.until(lambda: completed_since() >= 4)
    assert [d.data["source"] for d in a_job.log.read() if d.kind == "end_of_data"] == ["names"]


def test_a_job_restored_after_a_source_finished_does_not_read_it_again(sink: str) -> None:
    """S6.2."""
    a_job = InProcessJob(lambda: joined(sink, None), {"parallelism": 2, "checkpoint_interval": "1 s"})
    run = a_job.submit()

    def completed() -> int:
        run.tick(100)
        return sum(d.kind == "complete" for d in a_job.log.read())

    run.until(lambda: completed() >= 4)
    run.crash()
    again = a_job.rerun()
    again.pump(50)
    sources = {
        s.source.uid: s.source.records
        for s in again.slot.metrics().subtasks
        if s.source is not None and s.subtask[1] == 0
    }
    assert sources["names"] == 0 and sources["numbers"] > 0


def test_a_failed_stop_leaves_the_output_exact(sink: str) -> None:
    """S7.7."""
    a_job = job(sink, checkpoint_interval="1 s")
    run = a_job.submit()
    run.pump(20)
    run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain")))
    run.pump(2)
    run.crash()
    assert a_job.answers["stop"].code == "savepoint_failed_job_continues"
    a_job.rerun().to_end()
    assert sorted(committed(sink)) == sorted(expected_windows())


def test_a_crash_between_a_stop_savepoint_and_its_commit_commits_it_and_ends(sink: str) -> None:
    """S7.5, S7.7."""
    a_job = job(sink)
    run = a_job.submit()
    run.pump(25)
    run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend")))
    run.until(lambda: run.run.coordinator.stop_completed)
    staged = collected(sink).staged_table().num_rows
    run.crash()
    again = a_job.rerun()
    assert again.to_end() == RunEnded(None, None, None, None)
    assert staged > 0 and len(committed(sink)) >= staged
    assert collected(sink).staged_table().num_rows == 0


def test_a_zombie_driver_can_complete_nothing(sink: str) -> None:
    """S9.2."""
    a_job = job(sink, checkpoint_interval="1 s")
    zombie = a_job.submit()
    zombie.pump(10)
    run = a_job.relaunch()
    with pytest.raises(FencedError):
        zombie.ask(ev.SnapshotRequest("checkpoint", request_id="late"))
    run.to_end()
    assert sorted(committed(sink)) == sorted(expected_windows())


def test_a_source_that_the_snapshot_does_not_know_is_read_from_its_start(sink: str) -> None:
    """S4.3."""
    a_job = job(sink)
    run = a_job.submit()
    run.pump(25)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None

    def with_another_source() -> Pipeline:
        p = windows(sink)
        p.read(DataGen(names, NAMES, rows=5, splits=2), uid="added").write(
            CollectSink(f"{sink}-added"), uid="added-out"
        )
        return p

    a_job.build = with_another_source
    a_job.submit(RestoreFrom("savepoint", path=outcome.path)).to_end()
    assert sorted(committed(sink)) == sorted(expected_windows())
    assert sorted(committed(f"{sink}-added")) == [(n, f"key-{n}") for n in range(5)]


def test_restoring_a_checkpoint_older_than_what_was_committed_is_refused(sink: str) -> None:
    """S9.3."""
    a_job = job(sink, retained_checkpoints=5)
    run = a_job.submit()
    for k in range(2):
        run.pump(10)
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{k}"))
        assert answer is not None and answer.ok
    run.crash()
    with pytest.raises(SnapshotError, match="accept_duplicates"):
        a_job.submit(RestoreFrom("checkpoint", checkpoint_id=1))


def test_another_number_of_key_groups_is_refused_with_the_number_to_use(sink: str) -> None:
    """S5.1."""
    a_job = job(sink)
    run: InProcessRun = a_job.submit()
    run.pump(5)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    a_job.options = {"parallelism": 3, "max_parallelism": 64}
    with pytest.raises(SnapshotError, match="max_parallelism=128"):
        a_job.submit(RestoreFrom("savepoint", path=outcome.path))


def test_a_build_side_that_a_drain_cut_short_goes_on_when_the_job_does(sink: str) -> None:
    """S7.5: the operator had been told that the side was complete; probe rows wait for the rest of it now."""

    def build() -> Pipeline:
        p = Pipeline()
        known = p.read(DataGen(names, NAMES, rows=KEYS, splits=1, batch_rows=1, rate=4), uid="names")
        (
            p.read(DataGen(rows, SCHEMA, splits=1, batch_rows=7, rate=70), uid="numbers")
            .join(known.broadcast(), on="k", uid="join")
            .write(CollectSink(sink), uid="out")
        )
        return p

    a_job = InProcessJob(build, {"parallelism": 2})
    run = a_job.submit()
    run.until(lambda: a_job.now_ms >= 1_700_000_000_600)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="drain"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    early = len(collected(sink).rows())
    run = a_job.submit(RestoreFrom("savepoint", path=outcome.path, allow_drained=True))
    run.until(lambda: a_job.now_ms >= 1_700_000_005_000)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop-2", stop="drain"))
    assert isinstance(run.to_end(), RunEnded)
    numbers = [row["v"] for row in collected(sink).table().to_pylist()]
    assert len(set(numbers)) == len(numbers), "no probe row twice"
    late = sorted(numbers[early:])
    assert early < late[0] and late == list(range(late[0], late[0] + len(late))), "the rest finds every name"


def test_a_store_that_deletes_slowly_bounds_the_checkpoints_that_pile_up() -> None:
    """S2.3: new ones wait, and start again when it has come to delete."""
    sink = f"slow-{next(_sinks)}"

    def build() -> Pipeline:
        p = Pipeline()
        p.read(DataGen(rows, SCHEMA, batch_rows=1), uid="numbers").write(CollectSink(sink), uid="out")
        return p

    a_job = InProcessJob(build, {"checkpoint_interval": "100 ms"})
    a_job.deletes = False
    run = a_job.submit()

    def completed() -> int:
        return sum(d.kind == "complete" for d in a_job.log.read())

    def pass_time() -> int:
        for _ in range(100):
            run.tick(100)
            run.until(lambda: not run.run.coordinator.pending_ids)
        return completed()

    assert 32 < (first := pass_time()) < 40
    assert pass_time() == first and run.run.coordinator.waits_for_deletions == 32
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert answer is not None and answer.ok, "nobody deletes those"
    a_job.deletes = True
    assert pass_time() > first + 90 and run.run.coordinator.waits_for_deletions == 0
