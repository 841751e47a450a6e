"""Rows between the stages of a batch job: columns, by position, of types that Spark's rows hold without changing a bit.

Columns are named by number, because Spark treats "a" and "A" as one column. Times are sent as integers, because Spark
has only microseconds. Null is allowed everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError

_SAME = frozenset(
    {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()}
)
_SIGNED = {pa.uint8(): pa.int8(), pa.uint16(): pa.int16(), pa.uint32(): pa.int32(), pa.uint64(): pa.int64()}
_PLAIN = (
    *((is_one, pa.int32()) for is_one in (pt.is_date32, pt.is_time32)),
    *((is_one, pa.int64()) for is_one in (pt.is_date64, pt.is_time64, pt.is_timestamp, pt.is_duration)),
    (pt.is_float16, pa.float32()),
    *((is_one, pa.string()) for is_one in (pt.is_large_string, pt.is_string_view)),
    *((is_one, pa.binary()) for is_one in (pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)),
    (pt.is_null, pa.int8()),
)
"""Wire types of types with parameters, and of types that Spark lacks."""
_MAX_SPARK_DIGITS = 38


def wire_schema(schema: pa.Schema, prefix: str = "c") -> pa.Schema:
    """Return the wire columns of rows of `schema`, named `<prefix>0`, `<prefix>1`, ...

    Raises:
        PipelineError: a column's type cannot be sent; the message names the column.
    """
    fields = []
    for number, field in enumerate(schema):
        kind = wire_type(field.type)
        if kind is None:
            raise PipelineError(
                f"column {field.name!r} of type {field.type} cannot be sent from stage to stage in batch mode",
                remedy="Cast the column before the next group_by, join or union, or leave the column out with select()",
            )
        fields.append(pa.field(f"{prefix}{number}", kind))
    return pa.schema(fields)


def wire_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the wire type of a type; None: it cannot be sent, or not be restored from its wire type."""
    if kind in _SAME:
        return kind
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pt.is_decimal(kind):
        fits = pt.is_decimal128(kind) and 0 <= kind.scale <= kind.precision <= _MAX_SPARK_DIGITS
        return kind if fits else None
    if pt.is_dictionary(kind):
        return wire_type(kind.value_type)
    plain = next((plain for is_one, plain in _PLAIN if is_one(kind)), None)
    return _nested_wire_type(kind) if plain is None else plain


def _member_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the wire type within a nested column; None: it cannot be sent.

    Arrow casts nested columns as a whole, but not to nulls, and not to dictionaries of types other than text and bytes.
    """
    if pt.is_null(kind):
        return None
    if pt.is_dictionary(kind) and not (pt.is_string(kind.value_type) or pt.is_binary(kind.value_type)):
        return None
    return wire_type(kind)


def _nested_wire_type(kind: pa.DataType) -> pa.DataType | None:
    if pt.is_map(kind):
        key, item = _member_type(kind.key_type), _member_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        value = _member_type(kind.value_type)
        return None if value is None else pa.list_(value)
    if pt.is_struct(kind) and kind.num_fields:
        members = [_member_type(member.type) for member in kind]
        if any(member is None for member in members):
            return None
        return pa.struct([pa.field(kind.field(i).name, member) for i, member in enumerate(members)])
    return None


def to_wire(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns in wire types."""
    return [_cast(column, wire_type(column.type)) for column in batch.columns]


def from_wire(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Inverse of `to_wire`."""
    arrays = [_cast(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast between a type and its wire type: unsigned integers wrap, and wrap back."""
    if column.type == kind:
        return column
    if pt.is_null(kind):
        return pa.nulls(len(column))
    if pt.is_dictionary(column.type):
        return _cast(column.dictionary_decode(), kind)
    if pt.is_dictionary(kind):
        return _cast(column, kind.value_type).dictionary_encode().cast(kind)
    if pt.is_nested(kind):
        column = _without_offset(column)
    return column.cast(kind, safe=False)


def _without_offset(column: pa.Array) -> pa.Array:
    """Return a copy of a slice, because casts of nested columns ignore offsets in some versions of Arrow."""
    return pa.concat_arrays([column, column.slice(0, 0)]) if column.offset else column
