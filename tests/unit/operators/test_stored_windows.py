"""S5.2: windows on RocksDB give what they give in memory, over snapshots, crashes and rescales."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import batch_of
from driven_aggregates import STATE_MEMORY_BYTES, HeldBytes, Subtasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.windows import backend_windows
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.state.rocksdb import database, sorted_runs
from tidegate.state.rocksdb.file_reader import RocksFiles
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

INPUT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("v", pa.int64()), ("s", pa.string())])
AGGREGATES = (
    BoundAggregate("n", "count"),
    BoundAggregate("total", "sum", "v"),
    BoundAggregate("texts", "collect", "s"),
    BoundAggregate("first", "first", "s"),
)
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
RESULTS = [("n", pa.int64()), ("total", pa.int64()), ("texts", pa.list_(pa.string())), ("first", pa.string())]
OUTPUT = pa.schema([("k", pa.string()), *BOUNDS, *RESULTS])
Rows = list[tuple[Any, ...]]


def spec(slide: int = 0, lateness: int = 0, size: int = 12, offset: int = 0) -> WindowAggSpec:
    return WindowAggSpec(("k",), "t", "us", size, offset, AGGREGATES, INPUT, OUTPUT, (), slide, lateness)


def batch(rows: Rows) -> pa.RecordBatch:
    return batch_of(INPUT, rows)


ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("abcdefg")),
    st.one_of(st.integers(-30, 60), st.none()),
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.text("xy", max_size=2)),
)
BACK_ENDS = st.sampled_from(["heap", "rocksdb", "rocksdb files"])
STEPS = st.lists(
    st.one_of(
        st.lists(ROW, min_size=1, max_size=30),
        st.tuples(st.just("watermark"), st.integers(-20, 90), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.integers(1, 3), BACK_ENDS, st.sampled_from([0, 7, 30, None])),
    ),
    max_size=16,
)


def same(stored: Rows, memory: Rows) -> None:
    """The same results of a step; on RocksDB windows follow one another in time, too."""
    assert sorted(stored, key=repr) == sorted(memory, key=repr)


def in_order_of_time(told: Rows) -> bool:
    starts = [row[2] for row in told]
    return starts == sorted(starts)


@contextmanager
def pieces_of_few_rows() -> Iterator[None]:
    """Every batch fills the memory; chunks, scans and segments have a row or two, and runs are combined at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_windows, "MEMORY_SHARE", STATE_MEMORY_BYTES // 400)
        patch.setattr(database, "FIRST_SCAN_ROWS", 2)
        patch.setattr(database, "SCAN_ROWS", 2)
        for name, value in {
            "CHUNK_BYTES": 64,
            "SEGMENT_BYTES": 100,
            "PIECE_ROWS": 2,
            "MIN_COMBINED_ROWS": 3,
            "MAX_RUNS": 4,
        }.items():
            patch.setattr(sorted_runs, name, value)
        yield


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    few=st.booleans(),
    steps=STEPS,
    slide=st.sampled_from([0, 12, 4, 5]),
    lateness=st.sampled_from([0, 10]),
    offset=st.integers(0, 3),
    after=st.lists(ROW, max_size=4),
)
def test_results_are_those_of_windows_in_memory(
    scratches: Any, few: bool, steps: Any, slide: int, lateness: int, offset: int, after: Rows
) -> None:
    with pieces_of_few_rows() if few else nullcontext():
        compare_with_memory(scratches, steps, slide, lateness, offset, after)


def compare_with_memory(scratches: Any, steps: Any, slide: int, lateness: int, offset: int, after: Rows) -> None:
    window = spec(slide, lateness, offset=offset)
    memory, stored = Subtasks(window, scratches()), Subtasks(window, scratches(), "rocksdb")
    for step in steps:
        if isinstance(step, list):
            same(stored.feed(batch(step)), memory.feed(batch(step)))
        elif step[0] == "watermark":
            same(stored.watermark(*step[1:]), memory.watermark(*step[1:]))
        else:
            _, parallelism, to, lateness_now = step
            if lateness_now is not None:
                window = spec(slide, lateness_now, offset=offset)
            memory.restart(parallelism, "heap", spec=window)
            if to == "heap":  # a savepoint there, and one back
                stored.restart(parallelism, "heap", spec=window)
            stored.restart(parallelism, "rocksdb", portable=to != "rocksdb files", spec=window)
    same(stored.watermark(MAX_WATERMARK), memory.watermark(MAX_WATERMARK))
    if after:
        same(stored.feed(batch(after)), memory.feed(batch(after)))
    same(stored.finish(), memory.finish())
    memory.close()
    stored.close()
    assert stored.counters == memory.counters


@pytest.mark.parametrize("slide", [0, 4])
def test_windows_fire_in_order_of_time_and_leave_nothing_behind(tmp_path: Path, slide: int) -> None:
    subtasks = Subtasks(spec(slide), tmp_path, "rocksdb")
    subtasks.feed(batch([(key, t, 1, "x") for t in range(60, 0, -1) for key in "abc"]))
    told = subtasks.watermark(48) + subtasks.watermark(MAX_WATERMARK)
    assert in_order_of_time(told)
    assert {len(list(rows)) for _, rows in groupby(told, key=lambda row: row[2])} == {3}
    (operator,) = subtasks.operators
    operator.portable = True
    windows = operator.snapshot(1)()[0]
    assert (windows.name, sum(table.num_rows for table in windows.tables())) == ("windows", 0)
    assert not operator._windows._runs.starts_us()
    subtasks.close()


@pytest.mark.parametrize("slide", [0, 4])
def test_a_savepoint_is_the_same_rows_whatever_kept_the_windows(tmp_path: Path, slide: int) -> None:
    tables = []
    for back_end in ("heap", "rocksdb"):
        subtasks = Subtasks(spec(slide), tmp_path / back_end, back_end)
        subtasks.feed(batch([("a", 1, 5, "x"), (None, 30, None, None), ("a", 2, 6, "y"), ("b", -7, 1, "")]))
        subtasks.watermark(3)
        (operator,) = subtasks.operators
        operator.portable = True
        windows, progress = operator.snapshot(1)()
        assert (windows.name, windows.format, progress.name) == ("windows", "rows", "progress")
        order = [("key:k", "ascending"), ("window_start_us", "ascending")]
        tables.append(pa.concat_tables(windows.tables()).sort_by(order))
        subtasks.close()
    assert tables[0].equals(tables[1]) and tables[0].num_rows >= 2


def test_the_files_of_a_checkpoint_can_be_looked_into(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 5, "x"), ("b", 13, 6, "y")]))
    files = next(part for part in subtasks.operators[0].snapshot(1)() if part.format == "rocksdb")
    table = pa.concat_tables(RocksFiles(RocksDBBackend).tables(files, "windows", 8)).sort_by("key:k")
    assert table.select(["key:k", "key:window_start_us", "value:sum:total"]).to_pydict() == {
        "key:k": ["a", "b"],
        "key:window_start_us": [0, 12],
        "value:sum:total": [5, 6],
    }
    subtasks.close()


@pytest.mark.parametrize("portable", [True, False], ids=["savepoint", "files"])
def test_renamed_columns_are_found_again(tmp_path: Path, portable: bool) -> None:
    """S5.5."""
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 5, "x"), ("b", 40, 6, "y"), ("a", 3, 2, "z")]))
    names = ["key", "window_start", "window_end", "n", "amount", *OUTPUT.names[5:]]
    output = pa.schema([field.with_name(name) for field, name in zip(OUTPUT, names, strict=True)])
    now = INPUT.set(0, pa.field("key", pa.string()))
    aggregates = tuple(replace(agg, name="amount") if agg.name == "total" else agg for agg in AGGREGATES)
    renames = (("k", "key"), ("total", "amount"))
    subtasks.restart(
        2,
        "rocksdb",
        portable=portable,
        spec=WindowAggSpec(("key",), "t", "us", 12, 0, aggregates, now, output, renames),
    )
    told = subtasks.watermark(39) + subtasks.watermark(MAX_WATERMARK)
    assert [(row[1], row[4], row[5]) for row in told] == [("a", 2, 7), ("b", 1, 6)]
    subtasks.close()


def test_files_of_rocksdb_are_refused_in_memory_with_the_remedy(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 5, "x")]))
    with pytest.raises(SnapshotError, match=r"rocksdb files.*'windows'.*state_backend='rocksdb'"):
        subtasks.restart(1, "heap", portable=False)


def test_other_windows_than_those_of_the_files_are_refused(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 5, "x")]))
    with pytest.raises(SnapshotError, match="window of operator 'op' has changed"):
        subtasks.restart(1, "rocksdb", portable=False, spec=spec(size=24))


@pytest.mark.parametrize("slide", [0, 6])
def test_many_more_keys_than_the_memory_holds_are_kept_and_told(tmp_path: Path, slide: int) -> None:
    """Outside RocksDB lies no more than its cache may hold and one batch, with ten times as much state; in memory all
    of it."""
    held: dict[str, list[int]] = {"heap": [], "rocksdb": []}
    told: dict[str, int] = {}
    for back_end, measured in held.items():
        subtasks = Subtasks(spec(slide), tmp_path, back_end)
        with HeldBytes() as bytes_:
            for first in range(0, KEYS, 5_000):
                subtasks.feed(batch([(str(key), 5, 1, TEXT) for key in range(first, first + 5_000)]))
            measured.append(bytes_())
            (operator,) = subtasks.operators
            told[back_end] = sum(out.num_rows for out in operator.on_watermark(MAX_WATERMARK))
            measured.append(bytes_())
        subtasks.close()
    assert told == dict.fromkeys(held, KEYS * (2 if slide else 1))
    assert max(held["rocksdb"]) < STATE_MEMORY_BYTES < 10 * STATE_MEMORY_BYTES < held["heap"][0]


KEYS, TEXT = 50_000, "0123456789" * 20
