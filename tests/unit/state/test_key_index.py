"""Key indexes against a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.state.keys.key_index import KeyReader

SCHEMAS = {
    "int": pa.schema([("k", pa.int64())]),
    "narrow": pa.schema([("k", pa.int32())]),
    "text": pa.schema([("k", pa.string())]),
    "pair": pa.schema([("k", pa.int64()), ("s", pa.string())]),
}
INTS = st.one_of(st.none(), st.integers(-50, 50))
TEXTS = st.one_of(st.none(), st.text("ab", max_size=12))
COLUMNS = {"int": [INTS], "narrow": [INTS], "text": [TEXTS], "pair": [INTS, TEXTS]}


def entries_of(reader: KeyReader, index: Any, batch: pa.RecordBatch, *, add: bool) -> list[int]:
    out = np.full(batch.num_rows, -9, np.int32)
    call = index.find_or_add if add else index.find
    call(reader.read(batch), 0, batch.num_rows, out)
    return out.tolist()


def batch_of(kind: str, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = SCHEMAS[kind]
    return pa.RecordBatch.from_arrays(
        [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema
    )


@pytest.mark.parametrize("kind", SCHEMAS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_an_index_numbers_keys_in_order_of_first_sight(kind: str, data: st.DataObject) -> None:
    reader = KeyReader(SCHEMAS[kind], SCHEMAS[kind].names)
    index = reader.new_index()
    numbers: dict[tuple[Any, ...], int] = {}
    for rows in data.draw(st.lists(st.lists(st.tuples(*COLUMNS[kind]), max_size=80), max_size=5)):
        batch = batch_of(kind, rows)
        before = [numbers.get(row, -1) for row in rows]
        assert entries_of(reader, index, batch, add=False) == before
        expected = [numbers.setdefault(row, len(numbers)) for row in rows]
        assert entries_of(reader, index, batch, add=True) == expected
        assert index.size == len(numbers) <= index.capacity
    keys = index.freeze()(0, index.size).to_pylist()
    assert [tuple(row.values()) for row in keys] == list(numbers)
    assert index.key_columns(1, index.size).to_pylist() == keys[1:]


@pytest.mark.parametrize("kind", ["int", "pair"])
def test_an_index_grows_over_many_keys_within_one_batch(kind: str) -> None:
    reader = KeyReader(SCHEMAS[kind], SCHEMAS[kind].names)
    rows = [(i * 7919, f"{'key' * 20}{i}")[: len(SCHEMAS[kind])] for i in range(20_000)]
    index = reader.new_index()
    assert entries_of(reader, index, batch_of(kind, rows), add=True) == list(range(20_000))
    assert entries_of(reader, index, batch_of(kind, rows[::-1]), add=False) == list(range(20_000))[::-1]


def test_many_small_batches_of_new_keys_keep_their_key_columns() -> None:
    reader = KeyReader(SCHEMAS["text"], ["k"])
    index = reader.new_index()
    for i in range(150):
        entries_of(reader, index, batch_of("text", [(f"k{i}",)]), add=True)
    assert index.key_columns(0, 150).column("k").to_pylist() == [f"k{i}" for i in range(150)]


def test_what_was_frozen_does_not_change_when_the_index_goes_on() -> None:
    """S5.2, S5.3."""
    for kind, first, second in (("int", (1,), (2,)), ("text", ("a",), ("b",))):
        reader = KeyReader(SCHEMAS[kind], ["k"])
        index = reader.new_index()
        entries_of(reader, index, batch_of(kind, [first]), add=True)
        frozen = index.freeze()
        entries_of(reader, index, batch_of(kind, [second] * 100), add=True)
        assert frozen(0, 1).column("k").to_pylist() == [first[0]]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1.5, -0.0, None, float("inf")]),
        pa.array([1.5, 0.25, None, 3.0], pa.float32()),
        pa.array([True, False, None]),
        pa.array([0, 2**64 - 1, None, 7], pa.uint64()),
        pa.array([0, -3, None, 7], pa.date32()),
        pa.array([0, -3, None, 7], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([b"\x00", b"", None, b"x"]),
        pa.array(["x", "", None, "ü"], pa.large_string()),
    ],
    ids=lambda array: str(array.type),
)
def test_keys_come_back_in_the_type_they_came_in(array: pa.Array) -> None:
    batch = pa.record_batch({"k": array})
    reader = KeyReader(batch.schema, ["k"])
    index = reader.new_index()
    assert entries_of(reader, index, batch, add=True) == list(range(len(array)))
    assert index.key_columns(0, len(array)).column("k").equals(array)


def test_canonical_readers_compare_keys_of_different_widths() -> None:
    narrow, wide = pa.schema([("k", pa.int16())]), pa.schema([("k", pa.int64())])
    index = KeyReader(wide, ["k"], canonical=True).new_index()
    reader = KeyReader(wide, ["k"], canonical=True)
    entries_of(reader, index, pa.record_batch({"k": [10, 20]}), add=True)
    other = KeyReader(narrow, ["k"], canonical=True)
    assert entries_of(other, index, pa.record_batch({"k": pa.array([20, 30, 10], pa.int16())}), add=False) == [1, -1, 0]
