"""The broadcast join against a model and against DuckDB."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.errors import SnapshotError
from tidegate.operators.joins.join_specs import BroadcastJoinSpec

LEFT = pa.schema([("k", pa.int64()), ("s", pa.string()), ("x", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("s", pa.string()), ("name", pa.string())])


def spec(how: Any = "inner", on: tuple[str, ...] = ("k",), right: pa.Schema = RIGHT) -> BroadcastJoinSpec:
    added = [f for f in right if f.name not in on]
    if "s" not in on:
        right = right.remove(right.get_field_index("s"))
        added = [f for f in added if f.name != "s"]
    return BroadcastJoinSpec(on, how, LEFT, right, LEFT if how in ("semi", "anti") else pa.schema([*LEFT, *added]))


def left(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(LEFT.names, row)) for row in rows], schema=LEFT)


def right_of(join: BroadcastJoinSpec, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(RIGHT.names, row)) for row in rows], schema=RIGHT).select(
        join.right_schema.names
    )


def rows_of(out: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(r.values()) for b in out if isinstance(b, pa.RecordBatch) for r in b.to_pylist()]


def test_probe_rows_wait_for_the_build_side_and_come_out_in_order(open_operator: Any) -> None:
    join = spec()
    operator = open_operator(join)
    assert list(operator.process(left((1, "", 10)), 0)) == []
    assert list(operator.process(right_of(join, (1, "", "one"), (2, "", "two")), 1)) == []
    assert list(operator.process(left((2, "", 20), (3, "", 30)), 0)) == []
    assert rows_of(list(operator.end_input(1))) == [(1, "", 10, "one"), (2, "", 20, "two")]
    assert rows_of(list(operator.process(left((2, "", 40)), 0))) == [(2, "", 40, "two")]


def test_watermarks_are_held_back_until_the_waiting_rows_are_out(open_operator: Any) -> None:
    join = spec()
    operator = open_operator(join)
    list(operator.process(left((1, "", 10)), 0))
    assert list(operator.on_watermark(5)) == [] and not operator.forwards_watermarks()
    assert list(operator.on_watermark(7)) == []
    list(operator.process(right_of(join, (1, "", "one")), 1))
    *rows, last = operator.end_input(1)
    assert len(rows) == 1 and last == Watermark(7)
    assert operator.forwards_watermarks() and list(operator.on_watermark(9)) == []


def test_the_last_watermark_releases_the_waiting_rows_when_it_comes_before_the_end_of_the_build_side(
    open_operator: Any,
) -> None:
    join = spec()
    operator = open_operator(join)
    list(operator.process(right_of(join, (1, "", "one")), 1))
    list(operator.process(left((1, "", 10)), 0))
    assert rows_of(list(operator.on_watermark(MAX_WATERMARK))) == [(1, "", 10, "one")]
    assert list(operator.end_input(1)) == [] == list(operator.end_input(0))


def test_the_end_of_the_probe_side_releases_nothing(open_operator: Any) -> None:
    operator = open_operator(spec())
    list(operator.process(left((1, "", 10)), 0))
    assert list(operator.end_input(0)) == []


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_null_key_matches_nothing_not_even_null(open_operator: Any, how: str) -> None:
    join = spec(how)
    operator = open_operator(join)
    list(operator.process(right_of(join, (None, "", "null"), (1, "", "one")), 1))
    list(operator.end_input(1))
    out = rows_of(list(operator.process(left((None, "", 1), (1, "", 2)), 0)))
    assert out == ([(None, "", 1, None)] if how == "left" else []) + [(1, "", 2, "one")]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_an_empty_build_side_matches_nothing(open_operator: Any, how: str) -> None:
    operator = open_operator(spec(how))
    list(operator.process(left((1, "", 10)), 0))
    assert rows_of(list(operator.end_input(1))) == ([(1, "", 10, None)] if how == "left" else [])


def test_build_rows_of_one_key_multiply_probe_rows_into_bounded_batches(open_operator: Any) -> None:
    join = spec()
    operator = open_operator(join)
    list(operator.process(right_of(join, *((1, "", str(i)) for i in range(100))), 1))
    list(operator.end_input(1))
    out = list(operator.process(left(*((1, "", i) for i in range(2000))), 0))
    assert [b.num_rows for b in out] == [65536, 65536, 65536, 3392]
    assert rows_of(out)[:2] == [(1, "", 0, "0"), (1, "", 0, "1")]


def test_keys_of_different_widths_match(open_operator: Any) -> None:
    narrow = pa.schema([("k", pa.int16()), ("name", pa.string())])
    join = BroadcastJoinSpec(("k",), "inner", LEFT, narrow, pa.schema([*LEFT, narrow.field("name")]))
    operator = open_operator(join)
    list(operator.process(pa.RecordBatch.from_pylist([{"k": 7, "name": "seven"}], schema=narrow), 1))
    list(operator.end_input(1))
    assert rows_of(list(operator.process(left((7, "", 1), (8, "", 2)), 0))) == [(7, "", 1, "seven")]


def test_a_build_side_of_keys_alone_filters_the_probe_side(open_operator: Any) -> None:
    keys = pa.schema([("k", pa.int64())])
    operator = open_operator(BroadcastJoinSpec(("k",), "inner", LEFT, keys, LEFT))
    list(operator.process(pa.record_batch({"k": [1]}), 1))
    list(operator.end_input(1))
    assert rows_of(list(operator.process(left((1, "", 1), (2, "", 2)), 0))) == [(1, "", 1)]


def test_state_of_other_columns_is_refused_with_old_and_new_type(open_operator: Any) -> None:
    """S5.5."""
    operator = open_operator(spec())
    changed = RIGHT.set(2, pa.field("name", pa.int64()))
    with pytest.raises(SnapshotError, match=r"'build' of operator 'op'.*'name' was string, now int64"):
        open_operator(spec(right=changed), operator.snapshot(1)())


@pytest.mark.slow
def test_a_build_side_of_more_text_than_one_column_can_hold_is_refused_not_cut(open_operator: Any) -> None:
    """S5.5: 2 GiB; Arrow leaves two chunks, of which the first is not all."""
    join = spec()
    operator = open_operator(join)
    ends, text = pa.array([0, 1100 * 2**20], pa.int32()).buffers()[1], pa.py_buffer(np.zeros(1100 * 2**20, np.uint8))
    name = pa.StringArray.from_buffers(1, ends, text)
    for key in (1, 2):
        list(operator.process(pa.record_batch([pa.array([key]), name], schema=join.right_schema), 1))
    with pytest.raises(pa.ArrowInvalid, match="large_string"):
        list(operator.end_input(1))


def test_batches_that_differ_from_their_schema_in_nullability_can_wait_be_snapshotted_and_joined(
    open_operator: Any,
) -> None:
    """S5.5: a source's batches need not have the nullability that it declares."""
    sides = [
        pa.schema([pa.field("k", pa.int64(), nullable=False)]),
        pa.schema([*LEFT.remove(2).remove(1), ("name", pa.string())]),
    ]
    join = BroadcastJoinSpec(("k",), "inner", *sides, pa.schema([*sides[0], sides[1].field("name")]))
    operator = open_operator(join)
    list(operator.process(pa.record_batch({"k": [1]}), 0))
    one = [pa.field("k", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
    list(operator.process(pa.record_batch([[1], ["one"]], schema=pa.schema(one)), 1))
    operator = open_operator(join, operator.snapshot(1)())
    assert rows_of(list(operator.end_input(1))) == [(1, "one")]


KEY = st.one_of(st.none(), st.integers(0, 4))
TEXT = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))
ROWS = st.lists(st.tuples(KEY, TEXT, st.integers(0, 99)), max_size=12)
BUILD = st.lists(st.tuples(KEY, TEXT, st.sampled_from(["p", "q", None])), max_size=8)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.one_of(ROWS.map(lambda r: (0, r)), BUILD.map(lambda r: (1, r))), max_size=6),
    after=st.lists(ROWS, max_size=3),
    how=st.sampled_from(["inner", "left", "semi", "anti"]),
    on=st.sampled_from([("k",), ("s",), ("k", "s")]),
    snapshot_at=st.integers(0, 10),
    condition=st.booleans(),
)
def test_a_join_with_a_restore_in_the_middle_equals_duckdb(
    open_operator: Any,
    steps: list[Any],
    after: list[Any],
    how: Any,
    on: tuple[str, ...],
    snapshot_at: int,
    condition: bool,
) -> None:
    if on == ("s",):
        right = pa.schema([RIGHT.field("s"), RIGHT.field("name")])
        joined = LEFT if how in ("semi", "anti") else pa.schema([*LEFT, right.field("name")])
        join = BroadcastJoinSpec(on, how, LEFT, right, joined)
    else:
        join = spec(how, on)
    if condition:
        join = replace(join, where=pc.field("x") > pc.if_else(pc.equal(pc.field("name"), "p"), 50, 20))
    script = [*steps, None, *((0, rows) for rows in after)]
    operator, out = open_operator(join), []
    for number, step in enumerate(script):
        if number == snapshot_at:
            operator = open_operator(join, operator.snapshot(1)())
        if step is None:
            out += operator.end_input(1)
        else:
            out += operator.process(left(*step[1]) if step[0] == 0 else right_of(join, *step[1]), step[0])
    probe = pa.Table.from_batches([left(*s[1]) for s in script if s and s[0] == 0], schema=LEFT)  # noqa: F841
    build = pa.Table.from_batches(  # noqa: F841
        [right_of(join, *s[1]) for s in script if s and s[0] == 1], schema=join.right_schema
    )
    matches = " and ".join(f"probe.{key} = build.{key}" for key in on)
    if condition:
        matches += " and x > case when name is null then null when name = 'p' then 50 else 20 end"
    columns = "probe.k, probe.s, x" + ("" if how in ("semi", "anti") else ", name")
    query = f"select {columns} from probe {how} join build on {matches}"
    assert Counter(rows_of(out)) == Counter(duckdb.sql(query).fetchall())


def test_keys_may_have_different_names_and_other_columns_get_new_ones(open_operator: Any) -> None:
    right = pa.schema([("code", pa.int32()), ("x", pa.string())])
    schema = pa.schema([*LEFT, ("code", pa.int32()), ("x_right", pa.string())])
    names = (("code", "code"), ("x", "x_right"))
    join = BroadcastJoinSpec(("k",), "left", LEFT, right, schema, right_on=("code",), added=names)
    operator = open_operator(join)
    list(operator.process(pa.record_batch([pa.array([1], pa.int32()), pa.array(["one"])], schema=right), 1))
    list(operator.end_input(1))
    out = list(operator.process(left((1, "", 10), (2, "", 20)), 0))
    assert rows_of(out) == [(1, "", 10, 1, "one"), (2, "", 20, None, None)] and out[0].schema.equals(schema)
