"""Key columns from canonical key bytes: the inverse of `key_bytes.canonical_bytes`.

Values that are equal as keys become one value: every NaN becomes the canonical NaN, -0.0 becomes 0.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.keys.decimal_keys import decimal_array
from tidegate.state.keys.key_bytes import (
    NANOSECOND_TAGS,
    NULL_TAG,
    STRING_TAG,
    Bytes,
    Int64s,
    fixed_array,
    is_fixed_key_type,
)
from tidegate.state.numba_kernels import kernel
from tidegate.state.rocksdb.byte_rows import ByteRows


def key_columns(rows: ByteRows, schema: pa.Schema, skip: int = 0) -> tuple[pa.RecordBatch, Int64s]:
    """Return the key columns of `schema` in each row from byte `skip` on, and the position in `rows.data` after it."""
    cursor = rows.starts + skip
    arrays = []
    for field in schema:
        tags, values = np.empty(len(rows), np.uint8), np.empty(len(rows), np.int64)
        read_key(rows.data, cursor, tags, values)
        arrays.append(_column(rows.data, cursor, tags, values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema), cursor


def key_ends(rows: ByteRows, columns: int, skip: int = 0) -> Int64s:
    """Return the position after the first `columns` key columns in `rows.data`. They begin at byte `skip` of a row."""
    cursor = rows.starts + skip
    tags, values = np.empty(len(rows), np.uint8), np.empty(len(rows), np.int64)
    for _ in range(columns):
        read_key(rows.data, cursor, tags, values)
    return cursor


def _column(data: Bytes, ends: Int64s, tags: Bytes, values: Int64s, type_: pa.DataType) -> pa.Array:
    is_null = tags == NULL_TAG
    mask = is_null if is_null.any() else None
    if is_fixed_key_type(type_):
        return fixed_array(_native(tags, values, type_), mask, type_)
    lengths = np.where(is_null, 0, values)
    if pt.is_decimal(type_):
        return decimal_array(data, ends - lengths, lengths, mask, type_)
    packed, offsets = ByteRows(data, ends - lengths, lengths).packed()
    wide = pt.is_string(type_) or pt.is_large_string(type_)
    buffers = [
        None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little")),
        pa.py_buffer(offsets),
        pa.py_buffer(packed),
    ]
    array = pa.Array.from_buffers(pa.large_string() if wide else pa.large_binary(), len(tags), buffers)
    if pt.is_fixed_size_binary(type_):
        array = array.cast(pa.binary())
    return array.cast(type_)


def _native(tags: Bytes, values: Int64s, type_: pa.DataType) -> Int64s:
    """Return the eight bytes in the form of `raw_values` for this type."""
    if pt.is_timestamp(type_) or pt.is_time(type_) or pt.is_duration(type_):
        if type_.unit == "ns":
            return np.where(np.isin(tags, NANOSECOND_TAGS), values, values * 1000)
        return values // {"s": 1_000_000, "ms": 1000, "us": 1}[type_.unit]
    if pt.is_date32(type_):
        return values // 86_400_000_000
    return values // 1000 if pt.is_date64(type_) else values


@kernel("void(u1[], i8[]!, u1[]!, i8[]!)")
def read_key(data: Any, cursor: Any, tags: Any, values: Any) -> None:
    """Read the tag of the key column at each cursor and its eight bytes or its length; move the cursors after it."""
    for i in range(len(cursor)):
        at = cursor[i]
        tag = data[at]
        at += 1
        value = np.uint64(0)
        if tag >= STRING_TAG:
            for j in range(4):
                value |= np.uint64(data[at + j]) << np.uint64(8 * j)
            at += 4 + np.int64(value)
        elif tag != NULL_TAG:
            for j in range(8):
                value |= np.uint64(data[at + j]) << np.uint64(8 * j)
            at += 8
        tags[i] = tag
        values[i] = np.int64(value)
        cursor[i] = at
