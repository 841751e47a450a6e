"""Canonical key bytes, version 1 (S5.1): equal keys have equal bytes, whatever their width, unit or batch.

Key columns follow one another, each in this form::

    null                           00
    integer of any width           01  int64, little endian
    unsigned >= 2^63               02  uint64
    bool                           03  0 or 1 as int64
    float                          04  float64; every NaN is 7ff8000000000000, -0.0 is 0.0
    timestamp                      05  microseconds since the epoch as int64
    date                           06  the microseconds of its midnight as int64
    timestamp not of whole us      07  nanoseconds since the epoch as int64
    time of day                    08  microseconds since midnight as int64
    time not of whole us           09  nanoseconds since midnight as int64
    duration                       0a  microseconds as int64
    duration not of whole us       0b  nanoseconds as int64
    string                         10  length as uint32, UTF-8 bytes
    binary                         11  length as uint32, bytes
    decimal                        12  length as uint32, bytes as in `decimal_keys`

The format is fixed, because key groups in snapshots depend on it (`snapshot.streams.KEY_BYTES_VERSION`). Types may be
added with new tags: a length follows tags from 10 on, eight bytes follow lower tags. Time zones have no effect: a
timestamp is an instant. Dictionaries and views have the bytes of their values. A key column of another type is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError
from tidegate.state.byte_words import (
    AHEAD_BYTES,
    address_of,
    copy_bytes,
    load_byte,
    load_word,
    prefetch,
    store_byte,
    store_half,
    store_word,
)
from tidegate.state.keys.decimal_keys import decimal_bytes
from tidegate.state.keys.key_types import KEY_TYPES_TEXT, is_text_type, stored_array
from tidegate.state.keys.key_types import is_fixed_key_type as is_fixed_key_type
from tidegate.state.keys.key_types import is_key_type as is_key_type
from tidegate.state.keys.stored_values import Int64s as Int64s
from tidegate.state.keys.stored_values import fixed_values as fixed_values
from tidegate.state.keys.stored_values import valid_mask as valid_mask
from tidegate.state.keys.stored_values import width_of
from tidegate.state.keys.xxh64 import xxh64
from tidegate.state.numba_kernels import kernel

NULL_TAG = 0x00
INT_TAG = 0x01
UINT_TAG = 0x02
BOOL_TAG = 0x03
FLOAT_TAG = 0x04
TIMESTAMP_TAG = 0x05
DATE_TAG = 0x06
NANOSECOND_TAG = 0x07
TIME_TAG = 0x08
TIME_NANOSECOND_TAG = 0x09
DURATION_TAG = 0x0A
DURATION_NANOSECOND_TAG = 0x0B
STRING_TAG = 0x10
BINARY_TAG = 0x11
DECIMAL_TAG = 0x12
NANOSECOND_TAGS = (NANOSECOND_TAG, TIME_NANOSECOND_TAG, DURATION_NANOSECOND_TAG)

HASHED_ROWS = 64
"""Rows that are written before they are hashed: a read of bytes that several stores have just written would wait."""
CANONICAL_NAN_BITS = 0x7FF8000000000000

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FixedKeyColumn:
    """A key column with eight bytes a row.

    Attributes:
        tag: tag of every row that is not null and has no tag of its own.
        values: the eight bytes as int64; arbitrary where null.
        tags: a tag for each row; None: all have `tag`.
    """

    tag: int
    values: Int64s
    tags: Bytes | None


@dataclass(frozen=True)
class VariableColumn:
    """A key column of strings or bytes: row i is data[offsets[i]:offsets[i + 1]], unless tags[i] is the tag of null.

    Attributes:
        tag, tags: as in `FixedKeyColumn`.
    """

    tag: int
    tags: Bytes | None
    offsets: Int64s
    data: Bytes


def fixed_column(array: pa.Array) -> FixedKeyColumn:
    """Return the eight bytes of each row of a column with `is_fixed_key_type`. No copy for int64 and timestamp[us]."""
    type_ = array.type
    own: npt.NDArray[np.bool_] | None = None
    own_tag = NULL_TAG
    if pt.is_boolean(type_):
        tag, values = BOOL_TAG, fixed_values(array.cast(pa.int8()))
    elif pt.is_floating(type_):
        tag, values = FLOAT_TAG, _normalised_floats(array)
    elif pt.is_date(type_):
        tag, values = DATE_TAG, fixed_values(array.cast(pa.timestamp("us")))
    elif pt.is_timestamp(type_) or pt.is_time(type_) or pt.is_duration(type_):
        tag, own_tag, wide = _of_time(type_)
        if type_.unit != "ns":
            values = fixed_values(array.cast(wide))
        else:
            nanoseconds = fixed_values(array)
            whole, rest = np.divmod(nanoseconds, 1000)
            own = rest != 0
            values = np.where(own, nanoseconds, whole)
    else:
        tag, values = INT_TAG, fixed_values(array)
        if pt.is_uint64(type_):
            # Seen as int64, unsigned values from 2^63 on are negative.
            own, own_tag = values < 0, UINT_TAG
    tags: Bytes | None = None
    if own is not None and own.any():
        tags = np.where(own, np.uint8(own_tag), np.uint8(tag))
    if array.null_count:
        tags = np.where(valid_mask(array), np.uint8(tag) if tags is None else tags, np.uint8(NULL_TAG))
    return FixedKeyColumn(tag, values, tags)


def variable_column(array: pa.Array) -> VariableColumn:
    """Return offsets and bytes of a string, binary or decimal column. Only for decimals, new bytes are computed."""
    if pt.is_decimal(array.type):
        valid = valid_mask(array)
        data, offsets = decimal_bytes(array, valid)
        return VariableColumn(DECIMAL_TAG, np.where(valid, np.uint8(DECIMAL_TAG), np.uint8(NULL_TAG)), offsets, data)
    tag = STRING_TAG if is_text_type(array.type) else BINARY_TAG
    if pt.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    tags = np.where(valid_mask(array), np.uint8(tag), np.uint8(NULL_TAG)) if array.null_count else None
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    if offsets_buffer is None or not len(array):
        return VariableColumn(tag, tags, np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8))
    dtype = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(offsets_buffer, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.int64)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return VariableColumn(tag, tags, offsets, data)


def canonical_bytes(batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[Bytes, Int64s]:
    """Return the canonical bytes of each row's key: row i is data[offsets[i]:offsets[i + 1]].

    Args:
        batch: any batch.
        columns: key columns, in order; the order matters.

    Returns:
        data as uint8, offsets as int64 with one more entry than rows.

    Raises:
        PipelineError: a column's type cannot be a key.
    """
    return _written(batch, columns, np.zeros(0, np.uint64))


def hashed_bytes(batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[Bytes, Int64s, npt.NDArray[np.uint64]]:
    """Return data and offsets as `canonical_bytes` does, and xxh64 of each row's bytes. Args and errors: the same."""
    hashes = np.empty(batch.num_rows, np.uint64)
    return *_written(batch, columns, hashes), hashes


def _written(batch: pa.RecordBatch, columns: Sequence[str], hashes: npt.NDArray[np.uint64]) -> tuple[Bytes, Int64s]:
    """Return canonical bytes and offsets, and write `hashes` unless they are empty."""
    arrays = [key_array(batch, name) for name in columns]
    parts = [fixed_column(a) if is_fixed_key_type(a.type) else variable_column(a) for a in arrays]
    rows, room = batch.num_rows, 0
    places: list[int] = []
    for part in parts:
        tags = 0 if part.tags is None else part.tags.ctypes.data
        if isinstance(part, VariableColumn):
            places += [tags, part.tag, 0, part.offsets.ctypes.data, part.data.ctypes.data]
            room += 5 * rows + int(part.offsets[-1] - part.offsets[0])
        else:
            places += [tags, part.tag, part.values.ctypes.data, 0, 0]
            room += 9 * rows
    data, offsets = np.empty(room, np.uint8), np.zeros(rows + 1, np.int64)
    _write_rows(np.array(places, np.int64), data, offsets, hashes)
    return data[: offsets[-1]], offsets


def key_array(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return column `name` of `batch`, in its stored type. Raises PipelineError if the type cannot be a key."""
    return stored_array(key_column(batch, name))


def key_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return column `name` of `batch` as it is. Raises PipelineError if the type cannot be a key."""
    array = batch.column(name)
    if not is_key_type(array.type):
        raise PipelineError(
            f"column {name!r} of type {array.type} cannot be a key",
            cause=f"keys can be {KEY_TYPES_TEXT}",
            remedy=f"Cast {name!r} to one of these types first",
        )
    return array


def raw_values(array: pa.Array) -> Int64s:
    """Return eight bytes a row that are equal exactly where two keys of this column are equal.

    They are the value itself, or a float's normalised bits. For a column with `is_fixed_key_type`; arbitrary where
    null.
    """
    if pt.is_floating(array.type):
        return _normalised_floats(array)
    return fixed_values(array.cast(pa.int8()) if pt.is_boolean(array.type) else array)


def fixed_array(raw: Int64s, is_null: npt.NDArray[np.bool_] | None, type_: pa.DataType) -> pa.Array:
    """Inverse of `raw_values`; copies if `type_` is narrower than eight bytes."""
    if pt.is_floating(type_):
        return pa.array(raw.view(np.float64), mask=is_null).cast(type_, safe=False)
    if pt.is_boolean(type_):
        return pa.array(raw != 0, mask=is_null)
    if pt.is_integer(type_):
        width = np.dtype(type_.to_pandas_dtype())
        return pa.array(raw.view(width) if width.itemsize == 8 else raw.astype(width), mask=is_null)
    width = width_of(type_)
    return pa.array(raw if width.itemsize == 8 else raw.astype(width), mask=is_null).view(type_)


def _of_time(type_: pa.DataType) -> tuple[int, int, pa.DataType]:
    """Return the tags of whole microseconds and of other values, and the type with microseconds."""
    if pt.is_timestamp(type_):
        return TIMESTAMP_TAG, NANOSECOND_TAG, pa.timestamp("us", type_.tz)
    if pt.is_time(type_):
        return TIME_TAG, TIME_NANOSECOND_TAG, pa.time64("us")
    return DURATION_TAG, DURATION_NANOSECOND_TAG, pa.duration("us")


def _normalised_floats(array: pa.Array) -> Int64s:
    wide = array.cast(pa.float64())
    buffer = wide.buffers()[1]
    values = np.zeros(len(wide)) if buffer is None else np.frombuffer(buffer, np.float64, len(wide), wide.offset * 8)
    # -0.0 + 0.0 is 0.0, so that both zeros have the same bits.
    bits: Int64s = (values + 0.0).view(np.int64)
    bits[np.isnan(values)] = CANONICAL_NAN_BITS
    return bits


@kernel("void(i8[], u1[]!, i8[]!, u8[]!)")
def _write_rows(parts: Any, data: Any, offsets: Any, hashes: Any) -> None:
    """Write the bytes of each row, their offsets and, unless `hashes` is empty, their hashes.

    Args:
        parts: five numbers for each column: the address of the tags or 0, the tag of all rows if that is 0, the address
            of the values or 0, and if that is 0 the addresses of the offsets and of the bytes.
    """
    base = address_of(data)
    rows = len(offsets) - 1
    at = base
    for first in range(0, rows, HASHED_ROWS):
        end = min(first + HASHED_ROWS, rows)
        for i in range(first, end):
            for p in range(0, len(parts), 5):
                tag = load_byte(parts[p] + i) if parts[p] else np.uint64(parts[p + 1])
                store_byte(at, tag)
                at += 1
                if tag and parts[p + 2]:
                    store_word(at, load_word(parts[p + 2] + 8 * i))
                    at += 8
                elif tag:
                    start = np.int64(load_word(parts[p + 3] + 8 * i))
                    length = np.int64(load_word(parts[p + 3] + 8 * i + 8)) - start
                    prefetch(parts[p + 4] + start + AHEAD_BYTES)
                    store_half(at, np.uint64(length))
                    copy_bytes(parts[p + 4] + start, at + 4, length)
                    at += 4 + length
            offsets[i + 1] = at - base
        if len(hashes):
            for i in range(first, end):
                hashes[i] = xxh64(base + offsets[i], offsets[i + 1] - offsets[i])
