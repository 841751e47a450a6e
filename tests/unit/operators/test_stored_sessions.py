"""S5.2: sessions on RocksDB give what they give in memory, over snapshots, crashes and rescales."""

from __future__ import annotations

from dataclasses import replace
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
from tidegate.operators.windows.session_specs import SessionAggSpec

INPUT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("v", pa.int64()), ("s", pa.string())])
AGGREGATES = (
    BoundAggregate("n", "count"),
    BoundAggregate("total", "sum", "v"),
    BoundAggregate("texts", "collect", "s"),
    BoundAggregate("last", "last", "s", ("t",), orders=1),
)
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
RESULTS = [("n", pa.int64()), ("total", pa.int64()), ("texts", pa.list_(pa.string())), ("last", pa.string())]
OUTPUT = pa.schema([("k", pa.string()), *BOUNDS, *RESULTS])
Rows = list[tuple[Any, ...]]


def spec(lateness: int = 0, gap: int = 10) -> SessionAggSpec:
    return SessionAggSpec(("k",), "t", "us", gap, AGGREGATES, INPUT, OUTPUT, (), lateness)


def batch(rows: Rows) -> pa.RecordBatch:
    return batch_of(INPUT, rows)


ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("abcd")),
    st.one_of(st.integers(-30, 60), st.none()),
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.text("xy", max_size=2)),
)
STEPS = st.lists(
    st.one_of(
        st.lists(ROW, min_size=1, max_size=9),
        st.tuples(st.just("watermark"), st.integers(-20, 90), st.integers(0, 1)),
        st.tuples(
            st.just("restart"),
            st.integers(1, 3),
            st.sampled_from(["heap", "rocksdb", "rocksdb files"]),
            st.sampled_from([0, 7, 30, None]),
        ),
    ),
    max_size=16,
)


def same(stored: Rows, memory: Rows) -> None:
    assert sorted(stored, key=repr) == sorted(memory, key=repr)


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, lateness=st.sampled_from([0, 10]), after=st.lists(ROW, max_size=4))
def test_results_are_those_of_sessions_in_memory(scratches: Any, steps: Any, lateness: int, after: Rows) -> None:
    sessions = spec(lateness)
    memory, stored = Subtasks(sessions, scratches()), Subtasks(sessions, scratches(), "rocksdb")
    for step in steps:
        if isinstance(step, list):
            same(stored.feed(batch(step)), memory.feed(batch(step)))
        elif step[0] == "watermark":
            same(stored.watermark(*step[1:]), memory.watermark(*step[1:]))
        else:
            _, parallelism, to, lateness_now = step
            if lateness_now is not None:
                sessions = spec(lateness_now)
            memory.restart(parallelism, "heap", spec=sessions)
            if to == "heap":  # a savepoint there, and one back
                stored.restart(parallelism, "heap", spec=sessions)
            stored.restart(parallelism, "rocksdb", portable=to != "rocksdb files", spec=sessions)
    same(stored.watermark(MAX_WATERMARK), memory.watermark(MAX_WATERMARK))
    if after:
        same(stored.feed(batch(after)), memory.feed(batch(after)))
    same(stored.finish(), memory.finish())
    memory.close()
    stored.close()
    assert stored.counters == memory.counters


def test_sessions_fire_in_the_order_of_their_ends_and_leave_nothing_behind(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([(key, t, 1, "x") for t in range(60, -60, -15) for key in "abc"]))
    subtasks.feed(batch([("a", 7, 1, "y"), ("a", 52, 1, "y")]))
    ends = [row[3] for row in subtasks.watermark(40)] + [row[3] for row in subtasks.watermark(MAX_WATERMARK)]
    assert ends == sorted(ends) and len(ends) == 22, "a has two less: rows between them joined two to one, twice"
    (operator,) = subtasks.operators
    operator.portable = True
    sessions = operator.snapshot(1)()[0]
    assert (sessions.name, sum(table.num_rows for table in sessions.tables())) == ("sessions", 0)
    assert operator._sessions.next_end_us == MAX_WATERMARK, "no timer is left"
    subtasks.close()


def test_a_savepoint_is_the_same_rows_whatever_kept_the_sessions(tmp_path: Path) -> None:
    tables = []
    for back_end in ("heap", "rocksdb"):
        subtasks = Subtasks(spec(lateness=20), tmp_path / back_end, back_end)
        subtasks.feed(batch([("a", 1, 5, "x"), (None, 30, None, None), ("a", 2, 6, "y"), ("a", -70, 1, "")]))
        subtasks.watermark(-55)
        (operator,) = subtasks.operators
        operator.portable = True
        sessions, progress = operator.snapshot(1)()
        assert (sessions.name, sessions.format, progress.name) == ("sessions", "rows", "progress")
        order = [("key:k", "ascending"), ("window_start_us", "ascending")]
        tables.append(pa.concat_tables(sessions.tables()).sort_by(order))
        subtasks.close()
    assert tables[0].equals(tables[1]) and tables[0]["fired"].to_pylist() == [True, False, False]


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
        2, "rocksdb", portable=portable, spec=SessionAggSpec(("key",), "t", "us", 10, aggregates, now, output, renames)
    )
    told = subtasks.watermark(39) + subtasks.watermark(MAX_WATERMARK)
    assert [(row[1], row[4], row[5]) for row in told] == [("a", 2, 7), ("b", 1, 6)]
    subtasks.close()


@pytest.mark.parametrize("portable", [True, False], ids=["savepoint", "files"])
@pytest.mark.parametrize("restored_at", [12, 20])
def test_a_session_fires_in_time_beside_one_that_was_kept_for_more_lateness(
    tmp_path: Path, portable: bool, restored_at: int
) -> None:
    """S4.4: the timer of the one that has fired is where the former lateness put it."""
    subtasks = Subtasks(spec(lateness=100), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 0, 1, "x")]))
    assert len(subtasks.watermark(restored_at)) == 1
    subtasks.restart(1, "rocksdb", portable=portable, spec=spec(lateness=5))
    subtasks.feed(batch([("a", 30, 1, "x")]))
    assert [row[1:4] for row in subtasks.watermark(45)] == [("a", 30, 40)]
    subtasks.close()


def test_files_of_rocksdb_are_refused_in_memory_with_the_remedy(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 5, "x")]))
    with pytest.raises(SnapshotError, match=r"rocksdb files.*'sessions'.*state_backend='rocksdb'"):
        subtasks.restart(1, "heap", portable=False)


def test_many_more_keys_than_the_memory_holds_are_kept_and_told(tmp_path: Path) -> None:
    """Outside RocksDB lies no more than its cache may hold, with ten times as much state; in memory all of it."""
    held: dict[str, list[int]] = {"heap": [], "rocksdb": []}
    told: dict[str, int] = {}
    for back_end, measured in held.items():
        subtasks = Subtasks(spec(), tmp_path, back_end)
        with HeldBytes() as bytes_:
            for first in range(0, KEYS, 5_000):
                subtasks.feed(batch([(str(key), 5, 1, TEXT) for key in range(first, first + 5_000)]))
            measured.append(bytes_())
            (operator,) = subtasks.operators
            told[back_end] = sum(out.num_rows for out in operator.on_watermark(MAX_WATERMARK))
            measured.append(bytes_())
        subtasks.close()
    assert told == dict.fromkeys(held, KEYS)
    assert max(held["rocksdb"]) < STATE_MEMORY_BYTES < 10 * STATE_MEMORY_BYTES < held["heap"][0]


KEYS, TEXT = 50_000, "0123456789" * 20
