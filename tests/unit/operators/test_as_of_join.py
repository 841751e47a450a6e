"""Joins as of a time against DuckDB: random order, batches, watermarks, restores at other parallelisms (S5, S4.4)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from driven_join import (
    BACK_ENDS,
    GROUPS,
    LEFT_ROWS,
    PROPERTY,
    RIGHT_ROWS,
    SECOND,
    Subtasks,
    in_some_order,
    play,
    spec_of,
    streams,
)
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.joins.join_specs import StreamJoinSpec


def as_of_spec(**arguments: Any) -> StreamJoinSpec:
    left, right = streams()
    return spec_of(left.join_as_of(right, on="k", uid="join", **arguments))


def _table(rows: list[Any], columns: dict[str, pa.DataType]) -> pa.Table:
    arrays = [list(column) for column in zip(*rows)] or [[] for _ in columns]
    return pa.table([pa.array(a, t) for a, t in zip(arrays, columns.values())], names=list(columns))


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(["inner", "left"]),
    tolerance=st.sampled_from([None, 0, 2, 10]),
    seed=st.integers(0, 2**32),
)
def test_a_join_as_of_a_time_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, tolerance: Any, seed: int
) -> None:
    right = list({(row[0], None if row[1] is None else row[1] // 1000): row for row in right}.values())
    spec = as_of_spec(how=how, tolerance=None if tolerance is None else f"{tolerance} s")
    times = all(row[1] is not None for row in left)
    subtasks = Subtasks(spec, back_end, scratches(), time_column="t" if times else None)
    chance = random.Random(seed)
    out = play(subtasks, (in_some_order(left, chance), in_some_order(right, chance)), seed)
    l = _table(left, {"k": pa.int64(), "t": pa.int64(), "x": pa.int64()})  # noqa: E741, F841
    versions = [(k, None if t is None else t // 1000, y) for k, t, y in right]
    r = _table(versions, {"k": pa.int64(), "ms": pa.int64(), "y": pa.string()})  # noqa: F841
    rows = duckdb.sql(
        "select l.k, l.t, l.x, v.ms, v.y from (select *, row_number() over () as n from l) l left join ("
        "select n, r.ms, r.y from (select *, row_number() over () as n from l) l "
        "asof join (select *, ms * 1000 as us from r) r on l.k = r.k and l.t >= r.us"
        ") v on l.n = v.n"
    ).fetchall()
    if tolerance is not None:
        old = [row[3] is not None and row[1] - row[3] * 1000 > tolerance * SECOND for row in rows]
        rows = [(*row[:3], None, None) if too_old else row for row, too_old in zip(rows, old)]
    if how == "inner":
        rows = [row for row in rows if row[3] is not None]
    assert Counter(out) == Counter(rows)
    timeless = sum(row[1] is None for row in right)
    assert subtasks.counters == ({"null_event_time_dropped": timeless} if timeless else {})


def test_a_row_waits_until_no_version_of_its_time_can_come_any_more(scratches: Any) -> None:
    subtasks = Subtasks(as_of_spec(), "heap", scratches(), time_column="t")
    subtasks.feed(0, [(1, 20 * SECOND, 1), (1, 20 * SECOND + 1, 2)])
    subtasks.feed(1, [(1, 10 * SECOND, "a"), (1, 21 * SECOND, "c")])
    subtasks.watermark(20 * SECOND)
    assert subtasks.out == []
    subtasks.feed(1, [(1, 20 * SECOND, "b")])
    subtasks.watermark(20 * SECOND + 1)
    assert subtasks.out == [(1, 20 * SECOND, 1, 20_000, "b")]
    assert subtasks.finish()[1:] == [(1, 20 * SECOND + 1, 2, 20_000, "b")]


def test_of_versions_of_one_time_the_last_to_come_counts(scratches: Any) -> None:
    subtasks = Subtasks(as_of_spec(), "heap", scratches())
    subtasks.feed(1, [(1, SECOND, "a"), (1, SECOND, "b")])
    subtasks.feed(1, [(1, SECOND, "c"), (1, 0, "d")])
    subtasks.feed(0, [(1, SECOND, 1)])
    assert subtasks.finish() == [(1, SECOND, 1, 1000, "c")]


def test_of_each_key_the_version_in_force_is_kept_and_no_older_one(scratches: Any) -> None:
    subtasks = Subtasks(as_of_spec(how="left"), "heap", scratches())
    for n in range(20):
        subtasks.feed(1, [(key, n * SECOND + key, "a") for key in range(5)])
        subtasks.feed(0, [(key, n * SECOND, n) for key in range(5)])
        subtasks.watermark(n * SECOND)
    (operator,) = subtasks.operators
    subtasks.watermark(100 * SECOND)
    kept = {part.name: part.table.num_rows for part in operator.snapshot(1)()}
    assert {name: n for name, n in kept.items() if n} == {"right": 5, "watermark:passed": GROUPS, "join:form": GROUPS}
    subtasks.feed(0, [(3, 200 * SECOND, 7)])
    assert subtasks.finish()[-1] == (3, 200 * SECOND, 7, 19_000, "a")


def test_late_rows_and_versions_are_counted_and_dropped_also_after_a_restore(scratches: Any) -> None:
    subtasks = Subtasks(as_of_spec(how="left"), "heap", scratches())
    subtasks.watermark(10 * SECOND)
    subtasks.restart(2)
    subtasks.feed(1, [(1, 9 * SECOND, "a"), (2, 9 * SECOND, "b")])
    subtasks.feed(0, [(1, 10 * SECOND, 1), (2, 9 * SECOND, 2)])
    assert subtasks.finish() == [(1, 10 * SECOND, 1, None, None)]
    assert subtasks.counters == {"late_dropped": 3}


def test_versions_that_a_drain_ran_past_are_in_force_behind_it(scratches: Any) -> None:
    """S7.5: only the last one was left, and rows of before it had none."""
    subtasks = Subtasks(as_of_spec(how="left"), "heap", scratches())
    subtasks.feed(1, [(1, 1 * SECOND, "a"), (1, 9 * SECOND, "b")])
    subtasks.watermark(5 * SECOND)
    subtasks.watermark(MAX_WATERMARK)
    for operator in subtasks.operators:
        subtasks.take(0, operator.finish())
    subtasks.restart(1)
    subtasks.watermark(5 * SECOND)
    subtasks.feed(0, [(1, 6 * SECOND, 1), (1, 9 * SECOND, 2)])
    subtasks.watermark(20 * SECOND)
    assert [row[-1] for row in subtasks.out] == ["a", "b"]
    parts = subtasks.operators[0].snapshot(2)()
    assert [part.table.num_rows for part in parts if part.name == "right"] == [1], "the one that is in force"
    subtasks.close()
