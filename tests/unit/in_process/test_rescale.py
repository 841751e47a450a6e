"""S5.5: whole jobs that go on at another parallelism, with exact output."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.api.aggregates import count
from tidegate.api.aggregates import sum as total_of
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.channel.control.protocol import SubtaskEndedData, SubtaskFinished
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.replay import Replay
from tidegate.connectors.transactions import parse_transaction_id
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import OptionError, SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import Collection, CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

ROWS = 2400
KEYS = 11
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])
WINDOW = 100
_sinks = itertools.count()


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"rescale-{next(_sinks)}"
    yield name
    clear_collected(name)


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def names(numbers: Any) -> dict[str, Any]:
    return {"k": numbers, "name": pa.array([f"key-{n}" for n in numbers.tolist()])}


def pipeline(sink: str, *, splits: int = 4, known_rows: int = KEYS - 1, total: int | None = ROWS) -> Pipeline:
    """Two sources, a join, windows and a sink: every kind of state there is."""
    p = Pipeline()
    known = p.read(DataGen(names, NAMES, rows=known_rows, splits=2, batch_rows=1), uid="names")
    (
        p.read(DataGen(rows, SCHEMA, rows=total, splits=splits, batch_rows=16), uid="numbers")
        .with_watermark("ts", "0 s")
        .join(known.broadcast(), on="k", uid="join")
        .group_by("name")
        .window(tumbling(f"{WINDOW} ms"))
        .agg(n=count(), total=total_of("v"), uid="windows")
        .write(CollectSink(sink), uid="out")
    )
    return p


def expected(known_rows: int = KEYS - 1) -> list[tuple[Any, ...]]:
    """(name, window start in ms, n, total)."""
    out = []
    for start in range(0, ROWS, WINDOW):
        for k in range(known_rows):
            mine = [v for v in range(start, min(start + WINDOW, ROWS)) if v % KEYS == k]
            if mine:
                out.append((f"key-{k}", start, len(mine), sum(mine)))
    return sorted(out)


def committed(sink: str) -> list[tuple[Any, ...]]:
    table = collected(sink).table()
    if not table.num_columns:
        return []
    starts = table["window_start"].cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()
    columns = (table[name].to_pylist() for name in ("n", "total"))
    return sorted(zip(table["name"].to_pylist(), starts, *columns, strict=True))


def suspended(run: InProcessRun) -> str:
    """Stop without draining; the savepoint's path."""
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    return outcome.path


@pytest.mark.parametrize("parallelisms", [(1, 3, 2), (3, 1, 4), (2, 5, 5)])
@pytest.mark.parametrize("pumps", [3, 14, 40])
def test_a_job_suspended_and_rescaled_twice_has_exact_output(
    sink: str, parallelisms: Sequence[int], pumps: int
) -> None:
    """S5.5, S4.3, S7.4: windows, join and sink move; early on the join still waits for its build side."""
    job = InProcessJob(lambda: pipeline(sink), {"parallelism": parallelisms[0]})
    run = job.submit()
    for parallelism in parallelisms[1:]:
        run.pump(pumps)
        path = suspended(run)
        job.options = {"parallelism": parallelism}
        run = job.submit(RestoreFrom("savepoint", path=path))
    assert isinstance(run.to_end(), RunEnded)
    assert committed(sink) == expected()


ALIGNED: dict[str, Any] = {"checkpoint_interval": "1 s"}
UNALIGNED: dict[str, Any] = {**ALIGNED, "unaligned_checkpoints": True, "channel_capacity": "64 KiB"}


@pytest.mark.parametrize("options", [ALIGNED, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("seed", range(8))
def test_a_job_that_crashes_and_comes_back_at_random_parallelism_has_exact_output(
    sink: str, seed: int, options: dict[str, Any]
) -> None:
    """S5.5, S3.7, S7.4: what crashed runs staged is removed, what they completed is committed, whoever wrote it."""
    choose = random.Random(seed)
    job = InProcessJob(lambda: pipeline(sink, splits=1 + seed % 5), {**options, "parallelism": choose.randint(1, 4)})
    run = job.submit()
    for _ in range(4):
        run.pump(choose.randint(1, 25))
        if run.outcome is None and choose.random() < 0.8:
            run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{choose.random()}"))
            run.pump(choose.randint(0, 6))
        if run.outcome is None and choose.random() < 0.5:
            run.writers.held = True  # a checkpoint that will not complete leaves its transactions staged
            run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("checkpoint")))
            run.pump(choose.randint(0, 12))
            run.writers.release()
        if run.outcome is not None:
            break
        run.crash()
        job.options = {**options, "parallelism": choose.randint(1, 4)}
        run = job.submit(RestoreFrom("latest") if any(d.kind == "complete" for d in job.log.read()) else None)
    assert isinstance(run.to_end(), RunEnded)
    assert committed(sink) == expected()
    assert collected(sink).staged == {}, "a transaction of an old subtask was left behind"


def test_lower_parallelism_commits_and_removes_what_vanished_subtasks_staged(sink: str) -> None:
    """S7.4: subtasks 2 and 3 of 4 pre-committed; the two that follow publish what completed and abort the rest."""
    job = InProcessJob(lambda: pipeline(sink), {"parallelism": 4})
    run = job.submit()
    seen = collected(sink)
    run.until(lambda: seen.rows_written >= 40)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert answer is not None and answer.ok
    held = _subtasks(seen)
    run.until(lambda: seen.rows_written >= 80)
    run.writers.held = True
    run.run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("checkpoint")))
    run.pump(40)
    run.writers.release()
    left = set(seen.staged) - set(held)
    assert max(held.values()) > 1 and max(_subtasks(seen).values()) > 1, "the rescale has nothing to clean up"
    run.crash()
    job.options = {"parallelism": 2}
    second = job.submit(RestoreFrom("savepoint", path=answer.data["path"]))
    assert seen.staged == {} and set(held) == set(seen.committed) and not left & set(seen.committed)
    second.to_end()
    assert committed(sink) == expected()


def _subtasks(collection: Collection) -> dict[str, int]:
    """Staged transactions and who wrote them."""
    return {transaction: parse_transaction_id(transaction).subtask for transaction in collection.staged}


def test_each_split_goes_on_where_it_stood_and_none_is_read_twice(sink: str) -> None:
    """S4.2, S4.3: five splits of a job of two subtasks, read by three; those read to their end stay read."""
    read: list[int] = []

    def recorded(numbers: Any) -> dict[str, Any]:
        read.extend(numbers.tolist())
        return {"v": numbers}

    def build() -> Pipeline:
        p = Pipeline()
        source = DataGen(recorded, pa.schema([("v", pa.int64())]), rows=103, splits=5, batch_rows=7)
        p.read(source, uid="numbers").write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(build, {"parallelism": 2})
    run = job.submit()
    run.pump(3)
    path = suspended(run)
    assert 0 < len(read) < 103
    job.options = {"parallelism": 3}
    job.submit(RestoreFrom("savepoint", path=path)).to_end()
    assert sorted(read) == list(range(103))
    assert sorted(collected(sink).table()["v"].to_pylist()) == list(range(103))


def test_a_job_with_more_subtasks_than_splits_does_not_wait_for_the_idle_ones(sink: str) -> None:
    """S4.4: a reader without splits is left out of the watermark, also in an unbounded job."""
    job = InProcessJob(lambda: pipeline(sink, splits=2, total=None), {"parallelism": 2})
    run = job.submit()
    run.pump(20)
    path = suspended(run)
    before = collected(sink).rows_written
    job.options = {"parallelism": 4}
    run = job.submit(RestoreFrom("savepoint", path=path))
    run.pump(100)
    assert collected(sink).rows_written > before


def test_splits_of_a_replay_without_records_hold_nothing_back_at_another_parallelism(sink: str, tmp_path: Path) -> None:
    """S4.4: three records in four splits, which come to one reader."""
    minutes = pa.array([0, 60_000_000, 120_000_000], pa.int64()).cast(pa.timestamp("us"))
    pq.write_table(pa.table({"k": [1, 2, 3], "ts": minutes}), tmp_path / "a.parquet")

    def build() -> Pipeline:
        p = Pipeline()
        (
            p.read(Replay(tmp_path, time_column="ts", at_end="loop", splits=4), uid="numbers")
            .with_watermark("ts", "0 s")
            .group_by("k")
            .window(tumbling("1 min"))
            .agg(n=count(), uid="windows")
            .write(CollectSink(sink), uid="out")
        )
        return p

    job = InProcessJob(build, {"parallelism": 4})
    run = job.submit()
    run.pump(20)
    path = suspended(run)
    before = collected(sink).rows_written
    assert before > 0
    job.options = {"parallelism": 1}
    job.submit(RestoreFrom("savepoint", path=path)).pump(100)
    assert collected(sink).rows_written > before


def test_a_finished_source_stays_finished_at_another_parallelism(sink: str) -> None:
    """S6.2: all its new subtasks are finished; the join takes its build side from the snapshot."""
    job = InProcessJob(lambda: pipeline(sink), {"parallelism": 2, "checkpoint_interval": "1 s"})
    run = job.submit()
    run.until(lambda: any(d.kind == "end_of_data" and d.data["source"] == "names" for d in job.log.read()))
    run.pump(30)
    path = suspended(run)
    job.options = {"parallelism": 3}
    job.submit(RestoreFrom("savepoint", path=path)).to_end()
    assert committed(sink) == expected()


def test_a_partially_finished_source_reads_only_what_is_left_at_another_parallelism(sink: str) -> None:
    """S6.2: one of two readers had ended and closed; its splits are not read again."""

    def build() -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda n: {"v": n}, pa.schema([("v", pa.int64())]), rows=2000, splits=3, batch_rows=5)
        p.read(source, uid="numbers").write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(build, {"parallelism": 2, "checkpoint_interval": "1 s"})
    run = job.submit()

    told: list[type] = []
    take = run.run.on_slot_message
    run.run.on_slot_message = lambda message: (told.append(type(message)), take(message))[1]  # type: ignore
    run.until(lambda: SubtaskEndedData in told)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    assert answer is not None and answer.ok
    run.until(lambda: SubtaskFinished in told)
    assert told.count(SubtaskFinished) == 1
    path = suspended(run)
    job.options = {"parallelism": 3}
    job.submit(RestoreFrom("savepoint", path=path)).to_end()
    assert sorted(collected(sink).table()["v"].to_pylist()) == list(range(2000))


def test_a_fork_at_another_parallelism_leaves_its_originals_transactions_alone(sink: str) -> None:
    """S7.4."""
    job = InProcessJob(lambda: pipeline(sink), {"parallelism": 3})
    run = job.submit()
    run.pump(60)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert answer is not None and answer.ok
    staged = dict(collected(sink).staged)
    assert staged, "the savepoint holds no transaction"
    run.crash()
    fork = InProcessJob(lambda: pipeline(sink), {"parallelism": 2}, job_id="fork", lineage="fork", root=job.root)
    fork.submit(RestoreFrom("savepoint", path=answer.data["path"])).to_end()
    assert set(staged) <= set(collected(sink).staged)


def test_more_subtasks_than_key_groups_are_refused(sink: str) -> None:
    """S5.5: parallelism may change up to max_parallelism."""
    job = InProcessJob(lambda: pipeline(sink), {"parallelism": 2, "max_parallelism": 4})
    run = job.submit()
    run.pump(10)
    path = suspended(run)
    job.options = {"parallelism": 5, "max_parallelism": 4}
    with pytest.raises(OptionError, match="max_parallelism"):
        job.submit(RestoreFrom("savepoint", path=path))
    job.options = {"parallelism": 4, "max_parallelism": 4}
    job.submit(RestoreFrom("savepoint", path=path)).to_end()
    assert committed(sink) == expected()


def test_a_damaged_state_file_is_named_with_its_snapshot_and_its_operator(sink: str) -> None:
    """S9.3: never half-loaded."""
    job = InProcessJob(lambda: pipeline(sink), {"parallelism": 2, "state_size_threshold": "0 B"})
    run = job.submit()
    run.pump(20)
    path = suspended(run)
    (victim,) = (name for name in job.store.list(path) if name.startswith("windows-1"))
    job.store.delete(f"{path}/{victim}")
    for parallelism in (2, 3):
        job.options = {"parallelism": parallelism}
        with pytest.raises(SnapshotError, match=rf"{victim}.*missing"):
            job.submit(RestoreFrom("savepoint", path=path))
