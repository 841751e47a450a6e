"""Rows of Arrow columns as byte strings, encoded and decoded a column at a time. Version 1 of a row::

    version        1 byte, 1
    nulls          a bit for each column, set where null, lowest bit first; whole bytes
    fixed area     for each column in order: its value, little endian, as wide as its type (boolean: a byte);
                   for a string, binary or nested column the length of its bytes as uint32
    variable area  these bytes, in order

A struct is the row of its fields. A list is the rows of its elements, each after its length as uint32. A map is a list
of (key, value). Bytes of a null are undefined. The format is durable: RocksDB's files in snapshots hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.errors import PipelineError, SnapshotError
from tidegate.state.keys.key_bytes import Bytes, Int64s, valid_mask
from tidegate.state.numba_kernels import kernel
from tidegate.state.rocksdb.byte_rows import ByteRows, frame, unframe

ROW_VERSION = 1
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class _Place:
    """Place of a column in a row: `at` bytes from its start; `width` 0: variable."""

    at: int
    width: int


class RowCodec:
    """Encodes and decodes batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        """Create a codec. Raises PipelineError if a column's type is not supported."""
        self.schema = schema
        self._head = 1 + (len(schema) + 7) // 8
        at = self._head
        self._places: list[_Place] = []
        for field in schema:
            width = _width(field)
            self._places.append(_Place(at, width))
            at += width or _LENGTH_BYTES
        self._fixed = at

    def encode(self, batch: pa.RecordBatch) -> ByteRows:
        """Return a byte string for each row of a batch with the columns of `schema`."""
        arrays = [_stored(array) for array in batch.columns]
        variable = [_bytes_of(array) for array, place in zip(arrays, self._places, strict=True) if not place.width]
        offsets = np.full(batch.num_rows + 1, self._fixed, np.int64)
        offsets[0] = 0
        for rows in variable:
            offsets[1:] += rows.lengths
        np.cumsum(offsets, out=offsets)
        data, starts = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
        _begin(data, starts, ROW_VERSION, self._head)
        cursor, left = starts + self._fixed, iter(variable)
        for number, (array, place) in enumerate(zip(arrays, self._places, strict=True)):
            if array.null_count:
                _put_nulls(valid_mask(array).view(np.uint8), data, starts, 1 + number // 8, 1 << number % 8)
            if place.width:
                _put_fixed(_raw(array, place.width), place.width, data, starts + place.at)
            else:
                rows = next(left)
                _put_variable(rows.data, rows.starts, rows.lengths, data, starts + place.at, cursor)
        return ByteRows.of(data, offsets)

    def decode(self, rows: ByteRows) -> pa.RecordBatch:
        """Inverse of `encode`; for a missing row, all columns are zero or empty.

        Raises:
            SnapshotError: rows of another version.
        """
        if not _all_of_version(rows.data, rows.starts, ROW_VERSION):
            raise SnapshotError(
                "the state has rows that this version of tidegate cannot read",
                cause="another version of tidegate wrote the rows, or the rows are damaged",
                remedy="Restore with the tidegate version that wrote the rows, take a savepoint, and restore it with "
                "this version",
            )
        variable_at = rows.starts + self._fixed
        arrays = []
        for number, (field, place) in enumerate(zip(self.schema, self._places, strict=True)):
            valid = np.empty(len(rows), np.uint8)
            any_null = _get_valid(rows.data, rows.starts, 1 + number // 8, 1 << number % 8, valid)
            mask = valid if any_null else None
            if place.width:
                raw = np.zeros(len(rows) * place.width, np.uint8)
                _get_fixed(rows.data, rows.starts, place.at, place.width, raw)
                arrays.append(_of_raw(field.type, len(rows), raw, mask))
            else:
                lengths = np.empty(len(rows), np.int64)
                at = np.empty(len(rows), np.int64)
                _get_lengths(rows.data, rows.starts, place.at, variable_at, at, lengths)
                arrays.append(_of_bytes(field.type, ByteRows(rows.data, at, lengths), mask))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def numbers(self, rows: ByteRows, column: int) -> Int64s:
        """Return column `column`, of eight bytes, as int64; 0 for missing rows."""
        raw = np.zeros(len(rows) * 8, np.uint8)
        _get_fixed(rows.data, rows.starts, self._places[column].at, 8, raw)
        return raw.view(np.int64)

    def with_numbers(self, rows: ByteRows, column: int, values: Int64s) -> ByteRows:
        """Return a copy with other values in column `column`, of eight bytes. No row may be missing."""
        data, offsets = rows.packed()
        _put_fixed(values.view(np.uint8), 8, data, offsets[:-1] + self._places[column].at)
        return ByteRows.of(data, offsets)


def _storage_type(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.BaseExtensionType):
        return type_.storage_type
    if type_ == pa.string_view():
        return pa.large_string()
    return pa.large_binary() if type_ == pa.binary_view() else type_


def _stored(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    type_ = _storage_type(array.type)
    return array if type_ == array.type else array.cast(type_)


def _width(field: pa.Field) -> int:
    type_ = _storage_type(field.type)
    if pt.is_boolean(type_) or pt.is_null(type_):
        return 1
    if _is_text(type_):
        return 0
    if pt.is_struct(type_) or pt.is_map(type_) or pt.is_list(type_) or pt.is_large_list(type_):
        _children(type_)
        return 0
    try:
        width = 0 if pt.is_nested(type_) or pt.is_dictionary(type_) else type_.bit_width // 8
    except ValueError:
        width = 0
    if not width:
        raise PipelineError(
            f"the state back end 'rocksdb' cannot store column {field.name!r} of type {field.type}",
            cause="its type is neither of fixed width nor text, binary, list, struct or map",
            remedy=f"Cast {field.name!r} to one of these types first, or use state_backend='heap'",
        )
    return int(width)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_) or pt.is_large_string(type_) or pt.is_binary(type_) or pt.is_large_binary(type_))


def _children(type_: pa.DataType) -> RowCodec:
    if pt.is_struct(type_):
        return RowCodec(pa.schema([type_.field(i) for i in range(type_.num_fields)]))
    if pt.is_map(type_):
        return RowCodec(pa.schema([("item", pa.struct([type_.key_field, type_.item_field]))]))
    return RowCodec(pa.schema([("item", type_.value_type)]))


def _raw(array: pa.Array, width: int) -> Bytes:
    if pt.is_null(array.type):
        return np.zeros(len(array), np.uint8)
    if pt.is_boolean(array.type):
        array = array.cast(pa.uint8())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) * width, np.uint8)
    return np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)


def _bytes_of(array: pa.Array) -> ByteRows:
    """Return the bytes of each row of a variable column; empty where null."""
    type_ = array.type
    if _is_text(type_):
        wide = pt.is_large_string(type_) or pt.is_large_binary(type_)
        dtype = np.dtype(np.int64 if wide else np.int32)
        _, offsets_buffer, data_buffer = array.buffers()
        if offsets_buffer is None or data_buffer is None or not len(array):
            return ByteRows.of(np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64))
        offsets = np.frombuffer(offsets_buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)
        rows = ByteRows.of(np.frombuffer(data_buffer, np.uint8), offsets.astype(np.int64))
        return ByteRows(rows.data, rows.starts, rows.lengths * valid_mask(array)) if array.null_count else rows
    codec = _children(type_)
    if pt.is_struct(type_):
        return codec.encode(pa.RecordBatch.from_arrays(array.flatten(), schema=codec.schema))
    if pt.is_map(type_):
        array = array.cast(pa.list_(codec.schema.field(0).type))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return frame(codec.encode(pa.RecordBatch.from_arrays([array.flatten()], schema=codec.schema)), offsets)


def _validity(mask: Bytes | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))


def _of_raw(type_: pa.DataType, rows: int, raw: Bytes, mask: Bytes | None) -> pa.Array:
    stored = _storage_type(type_)
    if pt.is_null(stored):
        array = pa.nulls(rows)
    else:
        data = np.packbits(raw, bitorder="little") if pt.is_boolean(stored) else raw
        array = pa.Array.from_buffers(stored, rows, [_validity(mask), pa.py_buffer(data)])
    return pa.ExtensionArray.from_storage(type_, array) if stored != type_ else array


def _of_bytes(type_: pa.DataType, rows: ByteRows, mask: Bytes | None) -> pa.Array:
    stored = _storage_type(type_)
    array = _of_stored_bytes(stored, rows, mask)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, array)
    return array if stored == type_ else array.cast(type_)


def _of_stored_bytes(type_: pa.DataType, rows: ByteRows, mask: Bytes | None) -> pa.Array:
    if _is_text(type_):
        data, ends = rows.packed()
        if not (pt.is_large_string(type_) or pt.is_large_binary(type_)):
            assert len(data) < 2**31, "a batch's strings of one column stay below 2 GiB"
            ends = ends.astype(np.int32)
        return pa.Array.from_buffers(type_, len(rows), [_validity(mask), pa.py_buffer(ends), pa.py_buffer(data)])
    codec = _children(type_)
    if pt.is_struct(type_):
        # A null has no bytes, not even a version, so that it is decoded as a missing row.
        rows = ByteRows(rows.data, np.where(rows.lengths > 0, rows.starts, -1), rows.lengths)
        return pa.Array.from_buffers(type_, len(rows), [_validity(mask)], children=codec.decode(rows).columns)
    elements, offsets = unframe(rows)
    ends = offsets.astype(np.int64 if pt.is_large_list(type_) else np.int32)
    children = codec.decode(elements).columns
    return pa.Array.from_buffers(type_, len(rows), [_validity(mask), pa.py_buffer(ends)], children=children)


@kernel("void(u1[]!, i8[], i8, i8)")
def _begin(data: Any, starts: Any, version: Any, head: Any) -> None:
    for i in range(len(starts)):
        data[starts[i]] = version
        for j in range(1, head):
            data[starts[i] + j] = 0


@kernel("void(u1[], u1[]!, i8[], i8, i8)")
def _put_nulls(valid: Any, data: Any, starts: Any, at: Any, bit: Any) -> None:
    for i in range(len(starts)):
        if not valid[i]:
            data[starts[i] + at] |= np.uint8(bit)


@kernel("void(u1[], i8, u1[]!, i8[])")
def _put_fixed(source: Any, width: Any, data: Any, places: Any) -> None:
    for i in range(len(places)):
        for j in range(width):
            data[places[i] + j] = source[i * width + j]


@kernel("void(u1[], i8[], i8[], u1[]!, i8[], i8[]!)")
def _put_variable(source: Any, starts: Any, lengths: Any, data: Any, places: Any, cursor: Any) -> None:
    for i in range(len(starts)):
        length = lengths[i]
        for j in range(4):
            data[places[i] + j] = np.uint8(np.uint64(length) >> np.uint64(8 * j))
        at = cursor[i]
        for j in range(length):
            data[at + j] = source[starts[i] + j]
        cursor[i] = at + length


@kernel("b1(u1[], i8[], i8)")
def _all_of_version(data: Any, starts: Any, version: Any) -> Any:
    same = True
    for i in range(len(starts)):
        same = same and (starts[i] < 0 or data[starts[i]] == version)
    return same


@kernel("b1(u1[], i8[], i8, i8, u1[]!)")
def _get_valid(data: Any, starts: Any, at: Any, bit: Any, valid: Any) -> Any:
    any_null = False
    for i in range(len(starts)):
        valid[i] = starts[i] < 0 or (data[starts[i] + at] & np.uint8(bit)) == 0
        any_null = any_null or not valid[i]
    return any_null


@kernel("void(u1[], i8[], i8, i8, u1[]!)")
def _get_fixed(data: Any, starts: Any, at: Any, width: Any, out: Any) -> None:
    for i in range(len(starts)):
        if starts[i] >= 0:
            for j in range(width):
                out[i * width + j] = data[starts[i] + at + j]


@kernel("void(u1[], i8[], i8, i8[]!, i8[]!, i8[]!)")
def _get_lengths(data: Any, starts: Any, at: Any, cursor: Any, places: Any, lengths: Any) -> None:
    for i in range(len(starts)):
        length = np.int64(0)
        if starts[i] >= 0:
            for j in range(4):
                length |= np.int64(data[starts[i] + at + j]) << (8 * j)
        places[i] = cursor[i]
        lengths[i] = length
        cursor[i] += length
