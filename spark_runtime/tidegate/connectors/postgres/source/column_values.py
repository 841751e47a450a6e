"""Types of PostgreSQL as Arrow types, and PostgreSQL's texts as Arrow columns. No Python code runs per value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.postgres.copy_columns import TargetColumn
from tidegate.errors import DataError, PipelineError

OUTPUT_SETTINGS: Mapping[str, str] = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
"""Settings of a session under which the server writes values as this module reads them."""
MOST_DIGITS = 76
"""Digits of Arrow's largest decimal."""
_TEXT_CATEGORIES = "SEUI"
"""Categories in pg_type of types that are read as texts, as `copy_columns` writes them."""
_TYPES: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
}
_INTERVAL = (
    r"^(?:(?P<days>-?\d+) days? ?)?"
    r"(?:(?P<sign>[-+]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?$"
)
_NIBBLES = np.zeros(256, np.uint8)
for _digit in b"0123456789abcdef":
    _NIBBLES[_digit] = int(chr(_digit), 16)


def arrow_type(column: TargetColumn) -> pa.DataType | None:
    """Return the Arrow type that holds every value of a column unchanged; None: there is none."""
    if column.base == "numeric":
        return _decimal(column.modifier)
    if column.base in _TYPES:
        return _TYPES[column.base]
    return pa.string() if column.category in _TEXT_CATEGORIES else None


def _decimal(modifier: int) -> pa.DataType | None:
    if modifier < 0:
        return None
    # The modifier of numeric is (precision << 16 | scale) + 4. The scale is a signed number of 11 bits.
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    scale -= 0x800 * (scale >= 0x400)
    if not 0 <= scale <= precision <= MOST_DIGITS:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def declared_type(column: TargetColumn, declared: pa.DataType) -> bool:
    """Return whether a column can be read as the type that the user declares for it."""
    return pa.types.is_string(declared) or (column.base == "numeric" and pa.types.is_decimal(declared))


def fields_of(
    columns: Sequence[TargetColumn], declared: Mapping[str, pa.DataType], where: str
) -> Sequence[tuple[TargetColumn, pa.Field]]:
    """Return the field of each column.

    Args:
        declared: column -> type that the user declares.

    Raises:
        PipelineError: columns have types without a counterpart; the error names all of them.
    """
    fields, problems = [], []
    for column in columns:
        kind = declared.get(column.name) or arrow_type(column)
        if kind is None:
            unbounded = " without precision and scale" if column.base == "numeric" and column.modifier < 0 else ""
            problems.append(f"column {column.name!r} has the type {column.sql_type}{unbounded}")
        elif column.name in declared and not declared_type(column, kind):
            problems.append(f"column {column.name!r} of type {column.sql_type} cannot be read as {kind}")
        else:
            fields.append((column, pa.field(column.name, kind, nullable=not column.required)))
    if problems:
        raise PipelineError(
            "the table has columns that cannot be read",
            where=where,
            cause="; ".join(problems),
            remedy="Leave the columns out with columns=, or declare types=: decimals for numeric, or pa.string() "
            "for the text that PostgreSQL shows",
        )
    return fields


def column_of(texts: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """Return PostgreSQL's texts as a column of the field's type; nulls stay.

    Raises:
        DataError: a value does not fit, such as `infinity` in a timestamp. The error names the column, not the value.
    """
    try:
        return _converted(texts, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(
            f"a value of column {field.name!r} does not fit {field.type}",
            where=where,
            cause="the value has no counterpart in Arrow: infinite, not a number, in months, or outside of the range",
            remedy=f'Read the column as text, with types={{"{field.name}": pa.string()}}, or leave the row out',
        ) from None


def _converted(texts: pa.Array, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_string(kind):
        return texts
    if types.is_boolean(kind):
        return pc.equal(texts, "t")
    if types.is_binary(kind):
        return _bytes(texts)
    if types.is_time(kind):
        # Arrow reads times only as a part of timestamps.
        day = pa.scalar("1970-01-01 ", pa.string())
        return pc.binary_join_element_wise(day, texts, "").cast(pa.timestamp("us")).cast(kind)
    return _durations(texts) if types.is_duration(kind) else texts.cast(kind)


def _bytes(texts: pa.Array) -> pa.Array:
    """Return hexadecimal texts such as `\\x0aff` as bytes."""
    filled = pc.fill_null(texts, "\\x")
    digits = pc.utf8_slice_codeunits(filled, 2).combine_chunks() if isinstance(filled, pa.ChunkedArray) else None
    digits = pc.utf8_slice_codeunits(filled, 2) if digits is None else digits
    _, offsets, data = digits.buffers()
    ends = np.frombuffer(offsets, np.int32, count=len(digits) + 1, offset=4 * digits.offset)
    nibbles = _NIBBLES[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]] if data is not None else _NIBBLES[:0]
    values = (nibbles[::2] << 4) | nibbles[1::2]
    made = pa.Array.from_buffers(
        pa.binary(), len(digits), [None, pa.py_buffer((ends - ends[0]) // 2), pa.py_buffer(values.tobytes())]
    )
    return pc.if_else(texts.is_valid(), made, pa.scalar(None, pa.binary()))


def _durations(texts: pa.Array) -> pa.Array:
    """Return intervals as durations. A day has 24 hours; months have no fixed length, and are refused."""
    parts = pc.extract_regex(texts, _INTERVAL)
    if parts.null_count > texts.null_count:
        raise pa.ArrowInvalid("an interval has months")

    def number(name: str) -> pa.Array:
        part = pc.struct_field(parts, name)
        return pc.if_else(pc.equal(part, ""), "0", part).cast(pa.int64())

    fraction = pc.utf8_rpad(pc.struct_field(parts, "fraction"), 6, "0").cast(pa.int64())
    minutes = pc.add(pc.multiply(number("hours"), 60), number("minutes"))
    micros = pc.add(pc.multiply(pc.add(pc.multiply(minutes, 60), number("seconds")), 1_000_000), fraction)
    negative = pc.equal(pc.struct_field(parts, "sign"), "-")
    signed = pc.if_else(negative, pc.negate(micros), micros)
    total = pc.add_checked(pc.multiply_checked(number("days"), 86_400_000_000), signed)
    return pc.if_else(texts.is_valid(), total, None).cast(pa.duration("us"))
