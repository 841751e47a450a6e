"""S5.2: aggregates without windows on RocksDB give what they give in memory, over snapshots, crashes and rescales."""

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
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate, RunningAggSpec

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
AGGREGATES = (
    BoundAggregate("n", "count"),
    BoundAggregate("total", "sum", "v"),
    BoundAggregate("low", "min", "f"),
    BoundAggregate("spread", "stddev", "f"),
    BoundAggregate("texts", "collect", "s"),
    BoundAggregate("different", "count_distinct", "v"),
    BoundAggregate("first", "first", "s"),
)
RESULTS = {"n": pa.int64(), "total": pa.int64(), "low": pa.float64(), "spread": pa.float64()}
RESULTS |= {"texts": pa.list_(pa.string()), "different": pa.int64(), "first": pa.string()}
OUTPUT = pa.schema([("k", pa.string()), *RESULTS.items()])
Rows = list[tuple[Any, ...]]


def spec(output: Any = "final", **changed: Any) -> RunningAggSpec:
    return RunningAggSpec(("k",), AGGREGATES, INPUT, OUTPUT, output, **changed)


def batch(rows: Rows) -> pa.RecordBatch:
    return batch_of(INPUT, rows)


def _nullable(values: Any) -> Any:
    return st.one_of(st.none(), values)


ROW = st.tuples(
    _nullable(st.sampled_from("abcdefg")),
    _nullable(st.integers(-3, 3)),
    _nullable(st.sampled_from([0.5, -0.0, 0.0, float("nan"), 7.25])),
    _nullable(st.text("xy", max_size=3)),
)
STEPS = st.lists(
    st.one_of(
        st.lists(ROW, min_size=1, max_size=9),
        st.tuples(st.integers(1, 3), st.sampled_from(["heap", "rocksdb", "rocksdb files"])),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, output=st.sampled_from(["update", "final"]), after=st.lists(ROW, min_size=1, max_size=3))
def test_results_are_those_of_aggregates_in_memory(scratches: Any, steps: Any, output: Any, after: Any) -> None:
    memory, stored = Subtasks(spec(output), scratches()), Subtasks(spec(output), scratches(), "rocksdb")
    for step in steps:
        if isinstance(step, list):
            assert sorted(stored.feed(batch(step)), key=repr) == sorted(memory.feed(batch(step)), key=repr)
            continue
        parallelism, to = step
        memory.restart(parallelism, "heap")
        if to == "heap":  # a savepoint there, and one back
            stored.restart(parallelism, "heap")
        stored.restart(parallelism, "rocksdb", portable=to != "rocksdb files")
    for ask in (lambda s: s.watermark(MAX_WATERMARK), lambda s: s.feed(batch(after)), lambda s: s.finish()):
        assert sorted(ask(stored), key=repr) == sorted(ask(memory), key=repr)
    memory.close()
    stored.close()


def test_a_savepoint_is_the_same_rows_whatever_kept_the_groups(tmp_path: Path) -> None:
    tables = []
    for back_end in ("heap", "rocksdb"):
        subtasks = Subtasks(spec(), tmp_path, back_end)
        subtasks.feed(batch([("a", 1, 0.5, "x"), (None, None, None, None), ("a", 2, 1.5, "y")]))
        (operator,) = subtasks.operators
        operator.portable = True
        (part,) = operator.snapshot(1)()
        assert (part.name, part.kind, part.format) == ("groups", "keyed", "rows")
        tables.append(pa.concat_tables(part.tables()).sort_by("key:k"))
        subtasks.close()
    assert tables[0].equals(tables[1]) and tables[0].num_rows == 2


def test_files_of_rocksdb_are_refused_in_memory_with_the_remedy(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 0.5, "x")]))
    with pytest.raises(SnapshotError, match=r"rocksdb files.*'groups'.*state_backend='rocksdb'"):
        subtasks.restart(1, "heap", portable=False)


@pytest.mark.parametrize("portable", [True, False], ids=["savepoint", "files"])
def test_renamed_columns_are_found_again(tmp_path: Path, portable: bool) -> None:
    """S5.5."""
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 0.5, "x")]))
    fields = [pa.field("key", pa.string()), *OUTPUT.remove(0).set(1, pa.field("amount", pa.int64()))]
    now = INPUT.set(0, pa.field("key", pa.string()))
    aggregates = tuple(replace(agg, name="amount") if agg.name == "total" else agg for agg in AGGREGATES)
    renames = (("k", "key"), ("total", "amount"))
    renamed = RunningAggSpec(("key",), aggregates, now, pa.schema(fields), "final", renames)
    subtasks.restart(2, "rocksdb", spec=renamed, portable=portable)
    ((_, key, n, amount, *_),) = subtasks.finish()
    assert (key, n, amount) == ("a", 1, 1)
    subtasks.close()


@pytest.mark.parametrize("portable", [True, False], ids=["savepoint", "files"])
def test_a_new_aggregate_is_refused_it_would_lack_the_rows_of_before(tmp_path: Path, portable: bool) -> None:
    """S5.5."""
    subtasks = Subtasks(spec(), tmp_path, "rocksdb")
    subtasks.feed(batch([("a", 1, 0.5, "x")]))
    output = pa.schema([*OUTPUT, ("high", pa.int64())])
    more = RunningAggSpec(("k",), (*AGGREGATES, BoundAggregate("high", "max", "v")), INPUT, output, "final")
    with pytest.raises(SnapshotError, match="'groups'.*'op'.*max:high' is new"):
        subtasks.restart(1, "rocksdb", spec=more, portable=portable)


def test_many_more_groups_than_the_memory_holds_are_kept_and_told(tmp_path: Path) -> None:
    """Outside RocksDB lies no more than its cache may hold, with ten times as much state; in memory all of it."""
    held = {}
    for back_end in ("heap", "rocksdb"):
        subtasks = Subtasks(spec(), tmp_path, back_end)
        with HeldBytes() as bytes_:
            for first in range(0, KEYS, 5_000):
                subtasks.feed(batch([(str(key), 1, 0.5, TEXT) for key in range(first, first + 5_000)]))
            held[back_end] = bytes_()
            told = {key: n for _, key, n, *_ in subtasks.finish()}
            assert told == {str(n): 1 for n in range(KEYS)}
        subtasks.close()
    assert held["rocksdb"] < STATE_MEMORY_BYTES < 10 * STATE_MEMORY_BYTES < held["heap"]


KEYS, TEXT = 50_000, "0123456789" * 20
