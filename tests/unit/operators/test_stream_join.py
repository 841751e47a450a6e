"""Joins of two streams against DuckDB: random order, batches, watermarks, restores at other parallelisms (S5, S4.4)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from driven_join import (
    BACK_ENDS,
    GROUPS,
    LEFT_ROWS,
    PROPERTY,
    RIGHT_ROWS,
    SECOND,
    Subtasks,
    batch_of,
    in_some_order,
    join_spec,
    play,
)
from hypothesis import given
from hypothesis import strategies as st

import tidegate as td
from tidegate.errors import SnapshotError
from tidegate.operators.joins.join_specs import StreamJoinSpec, WindowMatch

KINDS = ("inner", "left", "right", "full", "semi", "anti")


def expected(spec: StreamJoinSpec, left: Sequence[Any], right: Sequence[Any], condition: str) -> list[tuple[Any, ...]]:
    """What DuckDB gives; times are microseconds on the left and milliseconds on the right."""
    l = pa.table(pa.record_batch([pa.array(c, pa.int64()) for c in _columns(left)], names=["k", "t", "x"]))  # noqa: E741, F841
    columns = _columns(right)
    ms = [None if t is None else t // 1000 for t in columns[1]]
    r = pa.table(  # noqa: F841
        pa.record_batch(
            [pa.array(columns[0], pa.int64()), pa.array(ms, pa.int64()), pa.array(columns[2], pa.string())],
            names=["k", "ms", "y"],
        )
    )
    picked = "l.k, l.t, l.x" if spec.how in ("semi", "anti") else "coalesce(l.k, r.k), l.t, l.x, r.ms, r.y"
    return duckdb.sql(f"select {picked} from l {spec.how} join r on l.k = r.k and {condition}").fetchall()


def _columns(rows: Sequence[Any], width: int = 3) -> list[list[Any]]:
    return [list(column) for column in zip(*rows)] or [[] for _ in range(width)]


def time_of_output(how: str) -> str | None:
    return {"right": "ms", "full": None}.get(how, "t")


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(KINDS),
    bounds=st.sampled_from([(0, 0), (-5, 10), (0, 3), (-3, 0), (2, 4), (-4, -2), (-20, 0.5)]),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_an_interval_join_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, bounds: Any, condition: bool, seed: int
) -> None:
    between = tuple(f"{bound} s" for bound in bounds)
    where = pc.field("x") > pc.if_else(pc.equal(pc.field("y"), "a"), 4, 1) if condition else None
    spec = join_spec(how=how, between=between, where=where)
    subtasks = Subtasks(spec, back_end, scratches(), time_column=None if how == "full" else None)
    times = any(row[1] is None for row in (*left, *right))
    if not times and how != "full":
        subtasks.time_column = time_of_output(how)
    chance = random.Random(seed)
    out = play(subtasks, (in_some_order(left, chance), in_some_order(right, chance)), seed)
    lower, upper = (int(bound * SECOND) for bound in bounds)
    matches = f"r.ms * 1000 between l.t + {lower} and l.t + {upper}"
    if condition:
        matches += " and l.x > case when r.y = 'a' then 4 else 1 end"
    assert Counter(out) == Counter(expected(spec, left, right, matches))
    assert not subtasks.counters


def in_windows(rows: Sequence[Any], bounds: WindowMatch) -> list[Any]:
    """Rows with the starts of their windows; those without a time are in none."""
    found = []
    for row in rows:
        if row[1] is not None:
            start = (row[1] - bounds.offset_us) // bounds.slide_us * bounds.slide_us + bounds.offset_us
            while start + bounds.size_us > row[1]:
                found.append((*row, start))
                start -= bounds.slide_us
    return found


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(KINDS),
    bounds=st.sampled_from([(5, 5, 0), (5, 5, 2), (6, 2, 1), (5, 3, 0)]),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_window_join_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, bounds: Any, condition: bool, seed: int
) -> None:
    windows = WindowMatch(*(bound * SECOND for bound in bounds))
    where = pc.field("x") > 4 if condition else None
    spec = replace(join_spec(how=how, window=td.tumbling("5 s"), where=where), bounds=windows)
    subtasks = Subtasks(spec, back_end, scratches(), time_column=time_of_output(how))
    chance = random.Random(seed)
    out = play(subtasks, (in_some_order(left, chance), in_some_order(right, chance)), seed)
    l = pa.table(dict(zip("ktxw", _columns(in_windows(left, windows), 4)))).cast(  # noqa: E741, F841
        pa.schema([(name, pa.int64()) for name in "ktxw"])
    )
    r = pa.table(dict(zip("ktyw", _columns(in_windows(right, windows), 4)))).cast(  # noqa: F841
        pa.schema([("k", pa.int64()), ("t", pa.int64()), ("y", pa.string()), ("w", pa.int64())])
    )
    picked = "l.k, l.t, l.x, l.w" if how in ("semi", "anti") else "coalesce(l.k, r.k), l.t, l.x, r.t // 1000, r.y, "
    picked += "" if how in ("semi", "anti") else "coalesce(l.w, r.w)"
    matches = "l.k = r.k and l.w = r.w" + (" and l.x > 4" if condition else "")
    rows = duckdb.sql(f"select {picked} from l {how} join r on {matches}").fetchall()
    assert Counter(out) == Counter((*row, row[-1] + windows.size_us) for row in rows)
    timeless = sum(row[1] is None for row in (*left, *right))
    assert subtasks.counters == ({"null_event_time_dropped": timeless} if timeless else {})


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(KINDS),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_join_at_any_time_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, condition: bool, seed: int
) -> None:
    spec = join_spec(how=how, where=pc.field("x") > 4 if condition else None)
    subtasks = Subtasks(spec, back_end, scratches())
    chance = random.Random(seed)
    sides = left, right
    at, ended = [0, 0], [False, False]
    while not all(ended):
        side = chance.choice([s for s in (0, 1) if not ended[s]])
        if at[side] >= len(sides[side]):
            subtasks.end(side)
            ended[side] = True
        else:
            size = chance.randint(1, 6)
            subtasks.feed(side, sides[side][at[side] : at[side] + size])
            at[side] += size
        if chance.random() < 0.2:
            subtasks.restart(chance.choice([1, 2, 3]))
            for one in (0, 1):
                if ended[one] and chance.random() < 0.5:  # a restored input tells its end once more, sooner or later
                    subtasks.end(one)
    out = subtasks.finish()
    matches = "l.x > 4" if condition else "true"
    assert Counter(out) == Counter(expected(spec, left, right, matches))


@pytest.mark.parametrize("arguments", [{"between": ("-5 s", "10 s")}, {"window": td.tumbling("10 s")}, {"ttl": "7 s"}])
@pytest.mark.parametrize("how", KINDS)
def test_nothing_is_kept_that_the_watermark_has_made_useless(scratches: Any, how: Any, arguments: Any) -> None:
    spec = join_spec(how=how, **arguments)
    subtasks = Subtasks(spec, "heap", scratches())
    subtasks.feed(0, [(n % 3, n * SECOND, n) for n in range(50)])
    subtasks.feed(1, [(n % 3, n * SECOND, "a") for n in range(0, 50, 2)])
    (operator,) = subtasks.operators
    subtasks.watermark(49 * SECOND)
    kept = {part.name: part.table.num_rows for part in operator.snapshot(1)()}
    assert 0 < kept["right"] <= 25
    subtasks.watermark(80 * SECOND)
    kept = {part.name: part.table.num_rows for part in operator.snapshot(2)()}
    assert {name: n for name, n in kept.items() if n} == {"watermark:passed": GROUPS, "join:form": GROUPS}
    subtasks.close()


def test_a_row_stands_alone_as_soon_as_the_watermark_says_that_no_match_can_come(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(how="left", between=("-5 s", "10 s")), "heap", scratches(), time_column="t")
    subtasks.feed(0, [(1, 20 * SECOND, 1), (1, 21 * SECOND, 2), (1, 20 * SECOND + 5, 3)])
    subtasks.watermark(30 * SECOND)
    assert subtasks.out == [], "a match at 30 s may still come"
    subtasks.watermark(30 * SECOND + 1)
    assert subtasks.out == [(1, 20 * SECOND, 1, None, None)]
    subtasks.watermark(30 * SECOND + 6)
    assert subtasks.out[1:] == [(1, 20 * SECOND + 5, 3, None, None)]
    subtasks.feed(1, [(1, 31 * SECOND, "a")])
    assert subtasks.out[2:] == [(1, 21 * SECOND, 2, 31_000, "a")]
    subtasks.watermark(100 * SECOND)
    assert len(subtasks.out) == 3
    subtasks.close()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"between": ("-5 s", "10 s")}, 22),
        ({"between": ("-5 s", "-1 s")}, 32),
        ({"between": ("-5 s", "10 s"), "how": "right"}, 27),
        ({"between": ("-5 s", "10 s"), "how": "full"}, 22),
        ({"ttl": "3 s", "how": "semi"}, 29),
        ({"window": td.tumbling("10 s", "5 s")}, 25),
        ({}, 32),
    ],
)
def test_the_watermark_is_held_back_as_far_as_rows_may_come_out_behind_it(
    scratches: Any, arguments: Any, told: int
) -> None:
    subtasks = Subtasks(join_spec(**arguments), "heap", scratches())
    subtasks.watermark(32 * SECOND)
    assert subtasks.told == [told * SECOND]
    subtasks.close()


def test_late_rows_are_counted_and_dropped_also_after_a_restore(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(how="full", between=("-5 s", "5 s")), "heap", scratches())
    subtasks.watermark(10 * SECOND)
    subtasks.feed(0, [(1, 10 * SECOND - 1, 1), (1, 10 * SECOND, 2)])
    subtasks.restart(2)
    subtasks.feed(1, [(1, 9 * SECOND, "a"), (2, 9 * SECOND, "b"), (1, 11 * SECOND, "c")])
    assert subtasks.finish() == [(1, 10 * SECOND, 2, 11_000, "c")]
    assert subtasks.counters == {"late_dropped": 3}


def test_a_row_of_an_open_window_is_not_late(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(how="left", window=td.tumbling("10 s")), "heap", scratches())
    subtasks.watermark(19 * SECOND)
    subtasks.feed(0, [(1, 10 * SECOND, 1), (1, 9 * SECOND, 2)])
    assert subtasks.finish() == [(1, 10 * SECOND, 1, None, None, 10 * SECOND, 20 * SECOND)]
    assert subtasks.counters == {"late_dropped": 1}


def test_many_matches_come_in_bounded_batches(scratches: Any) -> None:
    spec = join_spec(between=("-1 h", "1 h"))
    subtasks = Subtasks(spec, "heap", scratches())
    subtasks.feed(0, [(1, n, n) for n in range(500)])
    (operator,) = subtasks.operators
    sizes = [b.num_rows for b in operator.process(batch_of(1, [(1, n * 1000, "a") for n in range(300)]), 1)]
    assert sum(sizes) == 150_000 and max(sizes) == 65536
    subtasks.close()


def test_state_of_other_bounds_is_refused(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(between=("-1 h", "1 h")), "heap", scratches())
    subtasks.feed(0, [(1, 0, 1)])
    subtasks.spec = join_spec(between=("-2 h", "1 h"))
    with pytest.raises(
        SnapshotError,
        match="is inner between -3600 s and 3600 s, the join of the pipeline is inner between -7200 s and 3600",
    ):
        subtasks.restart(1)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"how": "inner"}, {"how": "left"}),
        ({"how": "semi"}, {"how": "anti"}),
        ({"how": "semi"}, {"how": "semi", "where": pc.field("y") == "a"}),
        ({"how": "inner", "ttl": "1 h"}, {"how": "inner"}),
    ],
)
def test_state_of_another_kind_of_join_is_refused(scratches: Any, was: Any, now: Any) -> None:
    """What one kind keeps another would read as rows without columns, or without a match."""
    subtasks = Subtasks(join_spec(**was), "heap", scratches())
    subtasks.feed(1, [(1, 0, "a")])
    subtasks.spec = join_spec(**now)
    with pytest.raises(SnapshotError):
        subtasks.restart(1)


def test_a_further_column_of_one_side_is_filled_with_nulls(scratches: Any) -> None:
    """S5.5."""
    subtasks = Subtasks(join_spec(how="left", between=("-1 h", "1 h")), "heap", scratches())
    subtasks.feed(1, [(1, 0, "a")])
    spec = subtasks.spec
    more = replace(
        spec.inputs[1],
        schema=spec.inputs[1].schema.append(pa.field("z", pa.int64())),
        columns=(*spec.inputs[1].columns, ("z", "z")),
    )
    schema = spec.schema.append(pa.field("z", pa.int64()))
    subtasks.spec = replace(spec, inputs=(spec.inputs[0], more), pairs=schema, schema=schema)
    subtasks.restart(2)
    subtasks.feed(0, [(1, 0, 7)])
    assert subtasks.finish() == [(1, 0, 7, 0, "a", None)]
