"""Tumbling windows against a model and against DuckDB."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.errors import SnapshotError, TidegateError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import KEY_GROUP_COLUMN
from tidegate.state.aggregates.numbers import SumOverflowError
from tidegate.state.keys.key_hash import hash_keys, key_groups

INPUT = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us")), ("v", pa.int64()), ("f", pa.float64())]
)
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
AGGREGATES = (
    BoundAggregate("rows", "count"),
    BoundAggregate("values", "count", "v"),
    BoundAggregate("total", "sum", "v"),
    BoundAggregate("low", "min", "f"),
    BoundAggregate("high", "max", "v"),
    BoundAggregate("average", "mean", "v"),
)
TYPES = {"rows": pa.int64(), "values": pa.int64(), "total": pa.int64(), "low": pa.float64(), "high": pa.int64()}


def spec(
    keys: tuple[str, ...] = ("k",),
    size_us: int = 10,
    offset_us: int = 0,
    aggregates: tuple[BoundAggregate, ...] = AGGREGATES,
    schema: pa.Schema = INPUT,
    unit: Any = "us",
) -> WindowAggSpec:
    out = [schema.field(k) for k in keys]
    results = [(a.name, TYPES.get(a.name, pa.float64())) for a in aggregates]
    return WindowAggSpec(keys, "t", unit, size_us, offset_us, aggregates, schema, pa.schema([*out, *BOUNDS, *results]))


COUNT = (BoundAggregate("rows", "count"),)


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    """Rows of (k, time in us) or (k, s, t, v, f)."""
    full = [row if len(row) == 5 else (row[0], "", row[1], 1, 1.0) for row in rows]
    columns = [pa.array([row[i] for row in full], pa.int64() if f.name == "t" else f.type) for i, f in enumerate(INPUT)]
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, INPUT)], schema=INPUT)


def feed(operator: Any, *rows: tuple[Any, ...]) -> None:
    assert list(operator.process(batch(*rows), 0)) == []


def counts(out: Any) -> list[tuple[Any, int, int]]:
    """(key, window start in us, rows) of each result."""
    return [
        (row["k"], int(start), row["rows"])
        for b in out
        for row, start in zip(b.to_pylist(), b.column("window_start").cast(pa.int64()).to_pylist())
    ]


def test_a_window_fires_once_the_watermark_reaches_its_end(open_operator: Any) -> None:
    """S4.4."""
    operator = open_operator(spec(aggregates=COUNT))
    feed(operator, (1, 0), (1, 9), (2, 9), (1, 10))
    assert counts(operator.on_watermark(9)) == []
    assert counts(operator.on_watermark(10)) == [(1, 0, 2), (2, 0, 1)]
    assert counts(operator.on_watermark(19)) == []
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, 10, 1)]
    assert counts(operator.on_watermark(MAX_WATERMARK)) == []


def test_rows_of_a_fired_window_are_dropped_and_counted_and_late_rows_of_an_open_one_are_kept(
    open_operator: Any,
) -> None:
    """S4.4."""
    operator = open_operator(spec(aggregates=COUNT))
    list(operator.on_watermark(15))
    feed(operator, (1, 9), (1, 12), (2, 3))
    assert operator.ctx.counters == {"late_dropped": 2}
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, 10, 1)]


def test_windows_start_at_the_offset_also_before_the_epoch(open_operator: Any) -> None:
    operator = open_operator(spec(aggregates=COUNT, offset_us=3))
    feed(operator, (1, -8), (1, -7), (1, 2), (1, 3))
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, -17, 1), (1, -7, 2), (1, 3, 1)]


def test_rows_without_a_time_are_dropped_and_counted_and_null_is_a_key(open_operator: Any) -> None:
    operator = open_operator(spec(aggregates=COUNT))
    feed(operator, (None, 1), (1, None), (None, 2), (1, 3))
    feed(operator, (1, None))
    assert operator.ctx.counters == {"null_event_time_dropped": 2}
    assert counts(operator.on_watermark(10)) == [(None, 0, 2), (1, 0, 1)]


def test_a_result_has_keys_bounds_and_aggregates_in_the_declared_types(open_operator: Any) -> None:
    operator = open_operator(spec(keys=("k", "s")))
    feed(operator, (1, "a", 5, 3, 0.5), (1, "a", 6, None, None), (1, "a", 7, 4, -0.5), (1, None, 7, None, None))
    (out,) = operator.on_watermark(10)
    assert out.schema.equals(spec(keys=("k", "s")).schema)
    epoch = dt.datetime(1970, 1, 1)
    end = epoch + dt.timedelta(microseconds=10)
    bounds = {"window_start": epoch, "window_end": end}
    assert out.to_pylist() == [
        {"k": 1, "s": "a", **bounds, "rows": 3, "values": 2, "total": 7, "low": -0.5, "high": 4, "average": 3.5},
        {
            "k": 1,
            "s": None,
            **bounds,
            "rows": 1,
            "values": 0,
            "total": None,
            "low": None,
            "high": None,
            "average": None,
        },
    ]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 1000), ("ns", 10**9)])
@pytest.mark.parametrize("size_us", [2_000_000, 1_500_000])
def test_windows_cut_times_of_every_unit_alike(open_operator: Any, unit: Any, per_second: int, size_us: int) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp(unit))])
    operator = open_operator(spec(aggregates=COUNT, schema=schema, unit=unit, size_us=size_us))
    seconds = [0, 1, 2, 3, -1]
    times = pa.array([s * per_second for s in seconds]).cast(pa.timestamp(unit))
    list(operator.process(pa.RecordBatch.from_arrays([pa.array([0] * 5), times], schema=schema), 0))
    expected = Counter(s * 1_000_000 // size_us * size_us for s in seconds)
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(0, start, expected[start]) for start in sorted(expected)]


def test_large_windows_come_in_bounded_batches_and_lazily(open_operator: Any) -> None:
    operator = open_operator(spec(aggregates=COUNT))
    list(operator.process(batch(*((i, 1) for i in range(70_000))), 0))
    list(operator.process(batch(*((i, 11) for i in range(70_000))), 0))
    emission = operator.on_watermark(MAX_WATERMARK)
    assert [b.num_rows for b in emission] == [65536, 4464, 65536, 4464]


def test_small_windows_are_put_together_into_one_batch(open_operator: Any) -> None:
    operator = open_operator(spec(aggregates=COUNT))
    feed(operator, *((1, i * 10) for i in range(1000)))
    (out,) = operator.on_watermark(MAX_WATERMARK)
    assert counts([out]) == [(1, i * 10, 1) for i in range(1000)]


def test_a_batch_may_span_more_windows_than_can_be_counted(open_operator: Any) -> None:
    operator = open_operator(spec(aggregates=COUNT))
    times = [i * 7_919 * 10 for i in range(50)]
    feed(operator, *((1, t) for t in reversed(times)), *((1, t) for t in times))
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, t, 2) for t in times]


def test_an_overflowing_sum_fails(open_operator: Any) -> None:
    operator = open_operator(spec())
    feed(operator, (1, "", 1, 2**63 - 1, 0.0))
    with pytest.raises(SumOverflowError, match="total"):
        feed(operator, (1, "", 1, 1, 0.0))


def test_an_absurd_event_time_names_column_and_remedy(open_operator: Any) -> None:
    operator = open_operator(spec())
    with pytest.raises(TidegateError, match="'t' has an event time.*'op'.*unit"):
        feed(operator, (1, "", 2**63 - 1, 1, 0.0))


def test_the_frozen_state_does_not_change_while_it_is_written(open_operator: Any) -> None:
    """S5.2, S5.3."""
    operator = open_operator(spec())
    feed(operator, (1, "", 5, 3, 0.5), (2, "", 15, 1, 1.0))
    write = operator.snapshot(1)
    feed(operator, (1, "", 6, 4, 0.1), (3, "", 7, 1, 1.0))
    list(operator.on_watermark(20))
    restored = open_operator(spec(), write())
    (out,) = restored.on_watermark(MAX_WATERMARK)
    assert {row["k"]: row["total"] for row in out.to_pylist()} == {1: 3, 2: 1}


def test_keyed_state_carries_key_groups_and_the_watermark_is_never_max(open_operator: Any) -> None:
    """S4.4, S5.1."""
    operator = open_operator(spec(keys=("s", "k")))
    feed(operator, (1, "a", 5, 3, 0.5), (2, None, 5, 3, 0.5))
    list(operator.on_watermark(3))
    windows, progress = operator.snapshot(1)()
    assert (windows.kind, progress.kind) == ("keyed", "keyed")
    keys = pa.record_batch({"s": ["a", None], "k": [1, 2]})
    assert windows.table.column(KEY_GROUP_COLUMN).to_pylist() == key_groups(hash_keys(keys, ["s", "k"]), 128).tolist()
    list(operator.on_watermark(MAX_WATERMARK))
    windows, progress = operator.snapshot(2)()
    assert windows.table.num_rows == 0
    assert progress.table.column("watermark_us").to_pylist() == [MIN_WATERMARK] * 128


def test_a_drained_operator_takes_rows_of_inputs_that_were_drained_before_others_as_on_time(open_operator: Any) -> None:
    """S4.4, S7.5: an input at its 5 is drained before one at its 25; from then on the watermark is that one's alone.
    What the first brings after a restore is not late by it."""
    operator = open_operator(spec())
    list(operator.on_watermark(5))
    list(operator.on_watermark(25))
    list(operator.on_watermark(MAX_WATERMARK))
    restored = open_operator(spec(), operator.snapshot(1)())
    feed(restored, (1, 6))
    assert restored.ctx.counters == {}
    assert list(restored.on_watermark(10)), "the window of the row"


def test_after_a_drain_a_window_that_had_long_been_closed_opens_again_until_a_watermark_comes(
    open_operator: Any,
) -> None:
    """S7.5: the price of calling no row late: the operator cannot tell by which of its watermarks inputs were whole."""
    operator = open_operator(spec())
    list(operator.on_watermark(100))
    feed(operator, (1, 5))
    assert operator.ctx.counters == {"late_dropped": 1}
    list(operator.on_watermark(MAX_WATERMARK))
    restored = open_operator(spec(), operator.snapshot(1)())
    feed(restored, (1, 5))
    assert restored.ctx.counters == {} and list(restored.on_watermark(100)), "a result of this row alone"
    feed(restored, (1, 5))
    assert restored.ctx.counters == {"late_dropped": 1}


def test_a_restored_operator_knows_what_is_late(open_operator: Any) -> None:
    operator = open_operator(spec())
    list(operator.on_watermark(20))
    restored = open_operator(spec(), operator.snapshot(1)())
    feed(restored, (1, 19), (1, 20))
    assert restored.ctx.counters == {"late_dropped": 1}


def test_state_of_another_pipeline_is_refused_with_what_changed(open_operator: Any) -> None:
    """S5.5."""
    operator = open_operator(spec())
    feed(operator, (1, 1))
    parts = operator.snapshot(1)()
    with pytest.raises(SnapshotError, match=r"'op'.*size, offset in us were 10, 0; in the pipeline, 20, 0"):
        open_operator(spec(size_us=20), parts)
    with pytest.raises(SnapshotError, match=r"'key:k' is no longer declared; key column 'key:s' is new"):
        open_operator(spec(keys=("s",)), parts)
    changed = INPUT.set(0, pa.field("k", pa.int32()))
    with pytest.raises(SnapshotError, match=r"'windows'.*'key:k' was int64, now int32"):
        open_operator(spec(schema=changed), parts)


ROW = st.tuples(
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.sampled_from(["", "a", "bb"])),
    st.one_of(st.none(), st.integers(-40, 60)),
    st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.floats(-10, 10, width=16).map(lambda x: x + 0.0)),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(ROW, min_size=1, max_size=15), min_size=1, max_size=6),
    keys=st.sampled_from([("k",), ("s",), ("k", "s"), ("f",)]),
    size_us=st.sampled_from([1, 7, 10, 1000]),
    offset_us=st.integers(0, 6),
    snapshot_at=st.integers(0, 6),
    slow_us=st.integers(0, 60),
)
def test_windows_with_a_restore_in_the_middle_equal_duckdb(
    open_operator: Any,
    batches: list[list[Any]],
    keys: tuple[str, ...],
    size_us: int,
    offset_us: int,
    snapshot_at: int,
    slow_us: int,
) -> None:
    window = spec(keys, size_us, offset_us)
    operator, out, kept = open_operator(window), [], []
    watermark, late = -(2**62), 0
    for number, rows in enumerate(batches):
        if number == snapshot_at:
            counted = operator.ctx.counters
            operator = open_operator(window, operator.snapshot(1)())
            operator.ctx.counters = counted
        in_time = [r for r in rows if r[2] is not None and _end(r[2], size_us, offset_us) > watermark]
        late += sum(r[2] is not None for r in rows) - len(in_time)
        kept += in_time
        feed(operator, *rows)
        watermark = max([watermark, *(r[2] - slow_us for r in rows if r[2] is not None)])
        out += operator.on_watermark(watermark)
    out += operator.on_watermark(MAX_WATERMARK)
    assert operator.ctx.counters.get("late_dropped", 0) == late
    assert Counter(_plain(out, keys)) == Counter(_by_duckdb(kept, keys, size_us, offset_us))


def _end(time: int, size: int, offset: int) -> int:
    return ((time - offset) // size + 1) * size + offset


def _plain(out: list[pa.RecordBatch], keys: tuple[str, ...]) -> list[tuple[Any, ...]]:
    names = [*keys, "window_start", *(a.name for a in AGGREGATES)]
    rows = [
        tuple(row[n] for n in names)
        for b in out
        for row in b.set_column(len(keys), "window_start", b.column("window_start").cast(pa.int64())).to_pylist()
    ]
    starts = [row[len(keys)] for row in rows]
    assert starts == sorted(starts)
    return rows


def _by_duckdb(rows: list[Any], keys: tuple[str, ...], size: int, offset: int) -> list[tuple[Any, ...]]:
    table = pa.table([[r[i] for r in rows] for i in range(5)], schema=INPUT.set(2, pa.field("t", pa.int64())))
    grouped = ", ".join(keys)
    start = f"cast(floor((t - {offset}) / {size}.0) as bigint) * {size} + {offset}"
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return connection.sql(
            f"select {grouped}, {start} as start, count(*), count(v), cast(sum(v) as bigint), min(f), max(v), avg(v) "
            f"from rows group by {grouped}, start"
        ).fetchall()
