"""Keys of one text or binary column: hashed and indexed from Arrow's buffers, against canonical bytes (S5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.keys.key_hash import hash_keys, hash_rows, partition_hash
from tidegate.state.keys.key_index import BytesKeys, KeyReader, TextIndex
from tidegate.state.keys.key_index_kernels import MANY_SLOTS
from tidegate.state.keys.text_keys import NULL_HASH, is_ranged, text_array

TEXTS = st.one_of(st.none(), st.text(max_size=6), st.text("abü", min_size=20, max_size=70))
TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]


def slow_hashes(batch: pa.RecordBatch) -> list[int]:
    """Hashes over canonical bytes, of values without a dictionary."""
    array = batch.column("k")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    data, offsets = canonical_bytes(pa.record_batch({"k": array}), ["k"])
    out = np.empty(len(array), np.uint64)
    hash_rows(data, offsets, out)
    return out.tolist()


def entries_of(index: Any, reader: KeyReader, batch: pa.RecordBatch, start: int = 0) -> list[int]:
    out = np.empty(batch.num_rows - start, np.int32)
    index.find_or_add(reader.read(batch), start, batch.num_rows, out)
    return out.tolist()


def column(values: list[str | None], type_: pa.DataType) -> pa.Array:
    binary = type_ in (pa.binary(), pa.large_binary(), pa.binary_view())
    return pa.array([None if v is None else v.encode() if binary else v for v in values], type_)


@pytest.mark.parametrize("type_", TYPES, ids=str)
@settings(deadline=None, max_examples=40)
@given(values=st.lists(TEXTS, max_size=60), start=st.integers(0, 9))
def test_hashes_and_entries_are_those_of_canonical_bytes(
    type_: pa.DataType, values: list[str | None], start: int
) -> None:
    """S5.1."""
    batch = pa.record_batch({"k": column(values, type_)}).slice(start)
    values = values[start:]
    assert hash_keys(batch, ["k"]).tolist() == slow_hashes(batch)
    reader = KeyReader(batch.schema, ["k"])
    index = reader.new_index()
    assert isinstance(index, TextIndex)
    numbers: dict[str | None, int] = {}
    assert entries_of(index, reader, batch) == [numbers.setdefault(v, len(numbers)) for v in values]
    expected = column(list(numbers), reader.schema.field(0).type)
    assert index.key_columns(0, index.size).column(0).equals(expected)
    backwards = np.arange(index.size, dtype=np.int32)[::-1]
    assert index.key_columns_of(backwards).column(0).equals(expected.take(pa.array(backwards)))


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_the_exchange_sends_text_where_canonical_bytes_send_it(type_: pa.DataType) -> None:
    """S5.1."""
    values = [None if i % 11 == 0 else f"key-{i % 50}" for i in range(500)]
    batch = pa.record_batch({"k": column(values, type_), "row": pa.array(range(500))})
    everything = batch.column("k").to_pylist()
    owners = [h % 128 * 3 // 128 for h in slow_hashes(batch)]
    for target, part in enumerate(partition_hash(batch, ["k"], 3, 128)):
        assert part is not None and part.schema == batch.schema
        assert part.column("row").to_pylist() == [row for row in range(500) if owners[row] == target]
        assert part.column("k").to_pylist() == [everything[row] for row in part.column("row").to_pylist()]


def test_nulls_and_unused_values_of_dictionaries_are_no_keys_of_their_own() -> None:
    dictionary = pa.array(["unused", "a", None, "a", ""])
    array = pa.DictionaryArray.from_arrays(pa.array([1, None, 3, 2, 4], pa.int8()), dictionary)
    nothing = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.string()))
    many = pa.DictionaryArray.from_arrays(pa.array([4, 2, 1, 3, None] * 3, pa.int8()), dictionary)
    batches = [pa.record_batch({"k": one}) for one in (array, nothing, many)]
    reader = KeyReader(batches[0].schema, ["k"])
    index = reader.new_index()
    assert [entries_of(index, reader, batch) for batch in batches] == [[0, 1, 0, 1, 2], [1, 1], [2, 1, 0, 0, 1] * 3]
    assert all(hash_keys(batch, ["k"]).tolist() == slow_hashes(batch) for batch in batches)
    assert index.key_columns(0, 3).column(0).to_pylist() == ["a", None, ""]


def test_bytes_under_a_null_mean_nothing() -> None:
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 3, 6, 9], np.int32)), pa.py_buffer(b"abcdefabc")]
    batch = pa.record_batch({"k": pa.Array.from_buffers(pa.string(), 3, buffers)})
    reader = KeyReader(batch.schema, ["k"])
    index = reader.new_index()
    assert entries_of(index, reader, batch) == [0, 1, 0]
    assert index.key_columns(0, 2).column(0).to_pylist() == ["abc", None]
    assert hash_keys(batch, ["k"]).tolist() == slow_hashes(batch)


def test_null_differs_from_empty_text_in_the_bits_of_a_slot() -> None:
    """A slot has the upper half of the hash, and the bytes of both are none."""
    for empty in ("", b""):
        null, hash_of_empty = hash_keys(pa.record_batch({"k": pa.array([None, empty])}), ["k"]).tolist()
        assert null == NULL_HASH and null >> 32 != hash_of_empty >> 32


@pytest.mark.parametrize("length", [*range(1, 42), 64, 100])
def test_one_changed_byte_makes_another_key_even_if_the_hashes_are_equal(length: int) -> None:
    text = bytes(range(1, length + 1))
    keys = [text, *(text[:i] + b"\xff" + text[i + 1 :] for i in range(length)), text + b"\x00", text[:-1]]
    ends = np.cumsum([0, *map(len, keys)])
    data = np.frombuffer(b"".join(keys), np.uint8)
    alike = BytesKeys(data, ends[:-1], ends[1:], np.full(len(keys), 7, np.uint64), None)
    index = KeyReader(pa.schema([("k", pa.binary())]), ["k"]).new_index()
    for _ in range(2):
        out = np.empty(len(keys), np.int32)
        index.find_or_add(alike, 0, len(keys), out)
        assert out.tolist() == list(range(len(keys)))
    index.find(alike, 0, len(keys), out)
    assert out.tolist() == list(range(len(keys)))
    assert index.key_columns(0, index.size).column(0).to_pylist() == keys


def test_a_large_index_requests_memory_in_advance_and_finds_the_same() -> None:
    rows = MANY_SLOTS
    batch = pa.record_batch({"k": pa.array(np.arange(rows) % (rows - 9)).cast(pa.string())})
    reader = KeyReader(batch.schema, ["k"])
    index = reader.new_index(rows)
    expected = [*range(rows - 9), *range(9)]
    assert entries_of(index, reader, batch) == expected
    assert entries_of(index, reader, batch, start=rows - 20) == expected[-20:]
    missing = pa.record_batch({"k": pa.array(["x", "5", None] * 20)})
    out = np.empty(60, np.int32)
    index.find(reader.read(missing), 0, 60, out)
    assert out.tolist() == [-1, 5, -1] * 20


def test_a_frozen_text_index_has_its_keys_after_growth() -> None:
    """S5.2, S5.3."""
    batch = pa.record_batch({"k": pa.array([str(i) for i in range(5_000)])})
    reader = KeyReader(batch.schema, ["k"])
    index = reader.new_index()
    entries_of(index, reader, batch.slice(0, 10))
    frozen = index.freeze()
    entries_of(index, reader, batch)
    assert frozen(0, 5_000).column(0).to_pylist() == [str(i) for i in range(10)]
    assert index.key_columns(10, 5_000).column(0).to_pylist() == [str(i) for i in range(10, 5_000)]


def test_texts_beyond_2_gib_are_read_and_never_cut() -> None:
    far = 2**31 + 3
    data = np.zeros(far + 8, np.uint8)  # memory that nothing touches costs nothing
    data[far : far + 3] = list(b"abc")
    offsets = pa.py_buffer(np.array([far, far + 3], np.int64))
    batch = pa.record_batch({"k": pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(data)])})
    assert hash_keys(batch, ["k"]).tolist() == hash_keys(pa.record_batch({"k": ["abc"]}), ["k"]).tolist()
    ends, hashes = np.array([0, 2**31]), np.zeros(1, np.uint64)
    with pytest.raises(pa.ArrowInvalid):
        text_array(pa.binary(), ends, hashes, data)
    assert len(text_array(pa.large_binary(), ends, hashes, data)) == 1


def test_only_text_and_binary_of_any_width_are_ranges() -> None:
    assert all(is_ranged(type_) for type_ in TYPES)
    others = [pa.int64(), pa.binary(4), pa.decimal128(5), pa.timestamp("us"), pa.dictionary(pa.int8(), pa.int64())]
    assert not any(is_ranged(type_) for type_ in others)
