"""Open-addressing indexes from keys to dense entry numbers 0, 1, 2, ... in order of first occurrence.

State per key is kept in plain columns indexed by entry number. `FixedIndex` is for one key column of eight bytes a row,
`TextIndex` for one of text or binary, `BytesIndex` for all other keys; all implement `KeyIndex`.
Not safe for several threads. A snapshot writer may use the result of `freeze` while the index continues to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.byte_words import gather_bytes
from tidegate.state.keys.key_bytes import (
    Bytes,
    Int64s,
    fixed_array,
    hashed_bytes,
    is_fixed_key_type,
    key_array,
    key_column,
    raw_values,
    valid_mask,
)
from tidegate.state.keys.key_hash import Hashes
from tidegate.state.keys.key_index_kernels import (
    FREE,
    MAX_ENTRIES,
    add_bytes,
    add_fixed,
    add_fixed_or_null,
    fill_bytes,
    fill_fixed,
    find_bytes,
    find_fixed,
)
from tidegate.state.keys.key_types import stored_field
from tidegate.state.keys.stored_values import plain_int64s
from tidegate.state.keys.text_keys import is_ranged, text_array, text_keys

Entries = npt.NDArray[np.int32]

MIN_ENTRIES = 32
"""Number of entries that a new index has room for."""
FrozenKeys: TypeAlias = Callable[[int, int], pa.RecordBatch]
"""Returns the key columns of entries start..stop; for any thread."""


@dataclass(frozen=True)
class FixedKeys:
    """Keys of a batch of one fixed-width key column: raw values as int64, and 0 where null (None: no nulls)."""

    values: Int64s
    valid: Bytes | None

    def rows(self, numbers: Int64s) -> FixedKeys:
        """Return the keys of these rows."""
        return FixedKeys(self.values[numbers], None if self.valid is None else self.valid[numbers])


@dataclass(frozen=True)
class BytesKeys:
    """Keys of a batch as bytes: row i is data[starts[i]:ends[i]].

    Attributes:
        hashes: xxh64 of the canonical bytes.
        columns: key columns from which canonical bytes were read; None: the bytes are plain text or binary, and a
            null is empty, but has another hash.
    """

    data: Bytes
    starts: Int64s
    ends: Int64s
    hashes: Hashes
    columns: pa.RecordBatch | None

    def rows(self, numbers: Int64s) -> BytesKeys:
        """Return the keys of these rows."""
        columns = None if self.columns is None else self.columns.take(pa.array(numbers))
        return BytesKeys(self.data, self.starts[numbers], self.ends[numbers], self.hashes[numbers], columns)


Keys: TypeAlias = FixedKeys | BytesKeys


class KeyIndex(Protocol):
    """Interface of all indexes."""

    size: int
    capacity: int

    def find_or_add(self, keys: Any, start: int, stop: int, out: Entries) -> None:
        """Write entry numbers of rows start..stop of `keys` into out[:stop - start]; new keys get the next numbers.

        Equal keys have one number, null is a key. `size` and `capacity` may grow.
        """

    def find(self, keys: Any, start: int, stop: int, out: Entries) -> None:
        """Do as `find_or_add`, but write -1 for missing keys."""

    def key_columns(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the key columns of entries start..stop."""

    def key_columns_of(self, entries: Entries) -> pa.RecordBatch:
        """Return the key columns of these entries."""

    def freeze(self) -> FrozenKeys:
        """Return a reader of the keys of all present entries; copies nothing."""


class KeyReader:
    """Reads the keys of batches of one schema, and creates matching indexes."""

    def __init__(self, schema: pa.Schema, columns: Sequence[str], *, canonical: bool = False) -> None:
        """Create a reader. Its schema has the stored types of the key columns.

        Args:
            schema: schema of the batches.
            columns: key columns, in order; at least one.
            canonical: always use canonical bytes, so that keys of two schemas whose types differ in width or unit can
                be compared.
        """
        self.schema = pa.schema([stored_field(schema.field(name)) for name in columns])
        self._columns = tuple(columns)
        single = not canonical and len(self.schema) == 1
        self.is_fixed = single and is_fixed_key_type(self.schema.field(0).type)
        self._is_text = single and is_ranged(self.schema.field(0).type)

    def read(self, batch: pa.RecordBatch) -> Keys:
        """Return the keys of every row. Raises PipelineError if a column's type cannot be a key."""
        if self.is_fixed:
            plain = plain_int64s(batch.column(self._columns[0]))
            if plain is not None:
                return FixedKeys(plain, None)
            array = key_array(batch, self._columns[0])
            return FixedKeys(raw_values(array), valid_mask(array).view(np.uint8) if array.null_count else None)
        if self._is_text:
            texts, hashes = text_keys(key_column(batch, self._columns[0]))
            return BytesKeys(texts.data, texts.starts, texts.ends, hashes, None)
        arrays = [key_array(batch, name) for name in self._columns]
        keys = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        data, offsets, hashes = hashed_bytes(keys, self._columns)
        return BytesKeys(data, offsets[:-1], offsets[1:], hashes, keys)

    def new_index(self, expected: int = 0) -> KeyIndex:
        """Return an empty index with room for `expected` entries."""
        if self.is_fixed:
            return FixedIndex(self.schema, expected)
        return (TextIndex if self._is_text else BytesIndex)(self.schema, expected)


class FixedIndex:
    """Index over int64 values; see `KeyIndex`."""

    def __init__(self, schema: pa.Schema, expected: int = 0) -> None:
        """Create an empty index. Args: schema: the one key column. expected: number of entries to have room for."""
        self._schema = schema
        self.size = 0
        self.capacity = _capacity(expected)
        self._slots = np.full(2 * self.capacity, -1, np.int32)
        self._values = np.empty(self.capacity, np.int64)
        self._cursor = np.array([0, 0, -1], np.int64)  # next row, size, entry of the null key

    def find_or_add(self, keys: FixedKeys, start: int, stop: int, out: Entries) -> None:
        """See `KeyIndex`."""
        values = keys.values[start:stop]
        valid = None if keys.valid is None else keys.valid[start:stop]
        self._cursor[0] = 0
        while True:
            if valid is None:
                add_fixed(values, self._slots, self._values, self._cursor, out)
            else:
                add_fixed_or_null(values, valid, self._slots, self._values, self._cursor, out)
            self.size = int(self._cursor[1])
            if self._cursor[0] == len(values):
                return
            self._grow()

    def find(self, keys: FixedKeys, start: int, stop: int, out: Entries) -> None:
        """See `KeyIndex`."""
        find_fixed(keys.values[start:stop], self._slots, self._values, out)
        if keys.valid is not None:
            out[: stop - start][keys.valid[start:stop] == 0] = self._cursor[2]

    def key_columns(self, start: int, stop: int) -> pa.RecordBatch:
        """See `KeyIndex`."""
        return _fixed_batch(self._schema, self._values[start:stop], int(self._cursor[2]) - start)

    def key_columns_of(self, entries: Entries) -> pa.RecordBatch:
        """See `KeyIndex`."""
        is_null = entries == self._cursor[2]
        array = fixed_array(self._values[entries], is_null if is_null.any() else None, self._schema.field(0).type)
        return pa.RecordBatch.from_arrays([array], schema=self._schema)

    def freeze(self) -> FrozenKeys:
        """See `KeyIndex`."""
        values, null_entry = self._values[: self.size], int(self._cursor[2])  # values of existing entries never change
        return lambda start, stop: _fixed_batch(self._schema, values[start:stop], null_entry - start)

    def _grow(self) -> None:
        self.capacity = _grown(self.capacity)
        self._values = np.concatenate([self._values, np.empty(self.capacity - len(self._values), np.int64)])
        self._slots = np.full(2 * self.capacity, -1, np.int32)
        fill_fixed(self._values[: self.size], self._cursor[2], self._slots)


class BytesIndex:
    """Index over canonical bytes; see `KeyIndex`. Keeps the key columns of first occurrences as Arrow batches."""

    def __init__(self, schema: pa.Schema, expected: int = 0) -> None:
        """Create an empty index. Args: schema: the key columns. expected: number of entries to have room for."""
        self._schema = schema
        self.size = 0
        self.capacity = _capacity(expected)
        self._slots = np.full(2 * self.capacity, FREE, np.int64)
        self._hashes = np.empty(self.capacity, np.uint64)
        self._ends = np.zeros(self.capacity + 1, np.int64)  # bytes of entry e: arena[ends[e]:ends[e + 1]]
        self._arena = np.empty(self.capacity * 16, np.uint8)
        self._cursor = np.zeros(2, np.int64)  # next row, size
        self._chunks: list[pa.RecordBatch] = []

    def find_or_add(self, keys: BytesKeys, start: int, stop: int, out: Entries) -> None:
        """See `KeyIndex`."""
        starts, ends, hashes = keys.starts[start:stop], keys.ends[start:stop], keys.hashes[start:stop]
        known = self.size
        added = np.empty(stop - start, np.int64)
        self._cursor[0] = 0
        while True:
            before = self.size
            # The kernel numbers new rows from 0 in each call, so that it gets the rest of `added`.
            add_bytes(
                keys.data, starts, ends, hashes, self._slots, self._hashes, self._ends, self._arena, self._cursor,
                out, added[before - known :],
            )  # fmt: skip
            self.size = int(self._cursor[1])
            row = int(self._cursor[0])
            if row == len(hashes):
                break
            if self.size == self.capacity:
                self._grow()
            else:
                self._grow_arena(int(ends[row] - starts[row]))
        if self.size > known:
            self._keep(keys, added[: self.size - known] + start)

    def find(self, keys: BytesKeys, start: int, stop: int, out: Entries) -> None:
        """See `KeyIndex`."""
        find_bytes(
            keys.data, keys.starts[start:stop], keys.ends[start:stop], keys.hashes[start:stop],
            self._slots, self._ends, self._arena, out,
        )  # fmt: skip

    def key_columns(self, start: int, stop: int) -> pa.RecordBatch:
        """See `KeyIndex`."""
        if len(self._chunks) != 1:
            self._chunks = [_one_batch(self._chunks, self._schema)]
        return self._chunks[0].slice(start, stop - start)

    def key_columns_of(self, entries: Entries) -> pa.RecordBatch:
        """See `KeyIndex`."""
        return self.key_columns(0, self.size).take(pa.array(entries))

    def freeze(self) -> FrozenKeys:
        """See `KeyIndex`."""
        chunks = list(self._chunks)
        return lambda start, stop: _one_batch(_slices(chunks, start, stop), self._schema)

    def _keep(self, keys: BytesKeys, rows: Int64s) -> None:
        """Keep the key columns of new entries."""
        assert keys.columns is not None, "keys of another reader"
        self._chunks.append(_normalised(keys.columns.take(pa.array(rows))))
        if len(self._chunks) > 64:
            self._chunks = [_one_batch(self._chunks, self._schema)]

    def _grow(self) -> None:
        self.capacity = _grown(self.capacity)
        more = self.capacity - len(self._hashes)
        self._hashes = np.concatenate([self._hashes, np.empty(more, np.uint64)])
        self._ends = np.concatenate([self._ends, np.empty(more, np.int64)])
        self._slots = np.full(2 * self.capacity, FREE, np.int64)
        fill_bytes(self._hashes[: self.size], self._slots)

    def _grow_arena(self, needed: int) -> None:
        self._arena = np.concatenate([self._arena, np.empty(len(self._arena) + needed, np.uint8)])


class TextIndex(BytesIndex):
    """Index over the bytes of one text or binary column; see `KeyIndex`. Its keys are the key column."""

    def key_columns(self, start: int, stop: int) -> pa.RecordBatch:
        """See `KeyIndex`."""
        return self.freeze()(start, stop)

    def key_columns_of(self, entries: Entries) -> pa.RecordBatch:
        """See `KeyIndex`."""
        starts = self._ends[entries]
        lengths = self._ends[1:][entries] - starts
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return self._batch(ends, self._hashes[entries], gather_bytes(self._arena, starts, lengths))

    def freeze(self) -> FrozenKeys:
        """See `KeyIndex`."""
        size, ends, hashes, arena = self.size, self._ends, self._hashes, self._arena  # existing entries never change

        def read(start: int, stop: int) -> pa.RecordBatch:
            start, stop = min(start, size), min(stop, size)
            return self._batch(ends[start : stop + 1], hashes[start:stop], arena)

        return read

    def _keep(self, keys: BytesKeys, rows: Int64s) -> None:
        """Do nothing: the arena has the keys."""

    def _batch(self, ends: Int64s, hashes: Hashes, data: Bytes) -> pa.RecordBatch:
        array = text_array(self._schema.field(0).type, ends, hashes, data)
        return pa.RecordBatch.from_arrays([array], schema=self._schema)


def _capacity(expected: int) -> int:
    return max(MIN_ENTRIES, 1 << (max(expected, 1) - 1).bit_length())


def _grown(capacity: int) -> int:
    assert capacity < MAX_ENTRIES, f"an index holds at most {MAX_ENTRIES} keys"
    return capacity * (4 if capacity < 65536 else 2)


def _fixed_batch(schema: pa.Schema, values: Int64s, null_entry: int) -> pa.RecordBatch:
    is_null: npt.NDArray[np.bool_] | None = None
    if 0 <= null_entry < len(values):
        is_null = np.zeros(len(values), np.bool_)
        is_null[null_entry] = True
    return pa.RecordBatch.from_arrays([fixed_array(values, is_null, schema.field(0).type)], schema=schema)


def _one_batch(chunks: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches(chunks) if chunks else pa.RecordBatch.from_pylist([], schema=schema)


def _slices(chunks: Sequence[pa.RecordBatch], start: int, stop: int) -> list[pa.RecordBatch]:
    """Return rows start..stop of concatenated batches."""
    slices: list[pa.RecordBatch] = []
    first = 0
    for chunk in chunks:
        low, high = max(start - first, 0), min(stop - first, chunk.num_rows)
        if low < high:
            slices.append(chunk.slice(low, high - low))
        first += chunk.num_rows
    return slices


def _normalised(columns: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [
        fixed_array(raw_values(a), ~valid_mask(a) if a.null_count else None, a.type) if pt.is_floating(a.type) else a
        for a in columns.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)
