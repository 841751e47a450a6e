"""Arrow columns in PostgreSQL: which column accepts which type, and records as the text format of COPY.

COPY's text format is used, not CSV: before PostgreSQL 18 a line of `\\.` inside a quoted CSV value ends the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6}
_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
_TEXT_CATEGORIES = "SEUI"
"""Categories in pg_type of types that parse a text: string, enum, user-defined (uuid, json), network address."""
_INTEGERS = ("int2", "int4", "int8")
# The two hexadecimal digits of a byte as one 16-bit number, so that one lookup converts all bytes of a column.
_HEX = np.array([int.from_bytes(f"{byte:02x}".encode(), "little") for byte in range(256)], dtype="<u2")
_NULL = pa.scalar("\\N", pa.large_string())
_TAB = pa.scalar("\t", pa.large_string())
_NEWLINE = pa.scalar("\n", pa.large_string())
_UTC = pa.scalar("Z", pa.large_string())
_EMPTY = pa.scalar("", pa.large_string())
# The backslash comes first, because the other escapes add backslashes.
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target table, from the catalog.

    Attributes:
        sql_type: as in DDL, `numeric(10,2)`.
        base: the type's name in pg_type; for a domain, the name of its base type: `numeric`.
        category: the type's category in pg_type.
        modifier: `atttypmod`; -1: none.
        collation: as in DDL, if it differs from the type's own; else empty.
        filled: has a default, or is filled by the database.
        always_filled: generated, or identity ALWAYS: accepts no value.
    """

    name: str
    sql_type: str
    base: str
    category: str
    modifier: int
    collation: str
    required: bool
    filled: bool
    always_filled: bool


def problem_of(field: pa.Field, column: TargetColumn) -> str | None:
    """Return why the column cannot store the field's values unchanged; None if it can."""
    if column.always_filled:
        return "the database computes this column, so it accepts no values"
    taken = _taken_by(_plain(field.type))
    if taken is None:
        return f"type {field.type} has no counterpart in PostgreSQL; cast it, or leave it out with select()"
    if column.category in _TEXT_CATEGORIES and column.base != "bytea":
        fits = taken == ("text",)
    else:
        fits = column.base in taken
    if not fits:
        return (
            f"type {field.type} does not fit {column.sql_type}; cast the values, or use a column of "
            f"type {' or '.join(taken)}"
        )
    return _loss(_plain(field.type), column)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _taken_by(kind: pa.DataType) -> tuple[str, ...] | None:
    """Return the pg_type names of the types that store every value of the Arrow type.

    ("text",) stands for all types that parse a text.
    """
    types = pa.types
    if types.is_boolean(kind):
        return ("bool",)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _number_taken_by(kind)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return ("text",)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return ("bytea",)
    if types.is_date(kind):
        return ("date",)
    if getattr(kind, "unit", None) not in _UNIT_DIGITS:
        return None
    if types.is_timestamp(kind):
        return ("timestamptz",) if kind.tz else ("timestamp",)
    return ("time",) if types.is_time(kind) else ("interval",)


def _number_taken_by(kind: pa.DataType) -> tuple[str, ...]:
    if pa.types.is_decimal(kind):
        return ("numeric",)
    if pa.types.is_floating(kind):
        return ("float8",) if kind.bit_width == 64 else ("float4", "float8")
    # The largest values of an unsigned type need a signed type with one bit more.
    bits = kind.bit_width + pa.types.is_unsigned_integer(kind)
    return (*(name for name, width in zip(_INTEGERS, (16, 32, 64), strict=True) if width >= bits), "numeric")


def _loss(kind: pa.DataType, column: TargetColumn) -> str | None:
    """Return the description of a loss that a type modifier would cause without an error; None: no loss."""
    if column.modifier < 0:
        return None
    kept, needed = 0, 0
    if column.base == "numeric":
        # The modifier of numeric is (precision << 16 | scale) + 4. The scale is a signed number of 11 bits.
        scale = (column.modifier - 4) & 0x7FF
        kept, needed = scale - 0x800 * (scale >= 0x400), kind.scale if pa.types.is_decimal(kind) else 0
    elif column.base in ("timestamp", "timestamptz", "time"):
        kept, needed = column.modifier, _UNIT_DIGITS[kind.unit]
    elif column.base == "interval":
        return f"{column.sql_type} would cut parts of the values off; use a column of type interval"
    return f"{column.sql_type} would round values of type {kind}" if kept < needed else None


def copy_text(batch: pa.RecordBatch, leading: Mapping[str, pa.Array]) -> memoryview:
    """Return the records in COPY's text format, columns of `leading` first. No Python code runs per row."""
    # Large strings have 64-bit offsets: the lines of a chunk may exceed 2 GiB.
    columns = [array.cast(pa.large_string()) for array in leading.values()]
    columns += [_texts(column) for column in batch.columns]
    lines = pc.binary_join_element_wise(*columns, _TAB, null_handling="replace", null_replacement=_NULL.as_py())
    lines = pc.binary_join_element_wise(lines, _EMPTY, _NEWLINE)
    _, offsets, data = lines.buffers()
    if data is None:
        return memoryview(b"")
    start, end = np.frombuffer(offsets, np.int64, count=len(lines) + 1, offset=8 * lines.offset)[[0, -1]]
    return memoryview(data)[start:end]


def _texts(array: pa.Array) -> pa.Array:
    """Return each value in PostgreSQL's input syntax, with special characters escaped; nulls stay."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    for applies, encode in _ENCODERS:
        if applies(kind):
            return encode(array)
    return array.cast(pa.large_string())


def _escaped(array: pa.Array) -> pa.Array:
    array = array.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(array, r"[\\\t\n\r]")).as_py():
        for character, code in _ESCAPES.items():
            array = pc.replace_substring(array, character, code)
    return array


def _hexadecimal(array: pa.Array) -> pa.Array:
    array = array.cast(pa.large_binary())
    valid = array.is_valid()
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64, count=len(array) + 1, offset=8 * array.offset)
    digits = _HEX[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]] if data is not None else _HEX[:0]
    # Each byte becomes two digits, so the offsets double.
    made = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(digits))
    # COPY reads two backslashes as one. The bytea input then sees `\x`, the prefix of hexadecimal bytes.
    return pc.if_else(valid, pc.binary_join_element_wise(pa.scalar("\\\\x", pa.large_string()), made, _EMPTY), None)


def _seconds(array: pa.Array) -> pa.Array:
    suffix = pa.scalar(f" {_UNIT_NAMES[array.type.unit]}", pa.large_string())
    return pc.binary_join_element_wise(array.cast(pa.int64()).cast(pa.large_string()), suffix, _EMPTY)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _in_utc(array: pa.Array) -> pa.Array:
    """Return times in UTC as texts. Arrow formats times without a zone ten times as fast as times with a zone."""
    times = array.view(pa.timestamp(array.type.unit)).cast(pa.large_string())
    return pc.binary_join_element_wise(times, _UTC, _EMPTY)


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (_is_text, _escaped),
    (_is_bytes, _hexadecimal),
    (pa.types.is_duration, _seconds),
    (_has_zone, _in_utc),
    (pa.types.is_float16, lambda array: array.cast(pa.float32()).cast(pa.large_string())),
)
