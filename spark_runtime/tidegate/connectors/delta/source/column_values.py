"""Columns of data files as the table has them: types, names, and columns whose values are in the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.connectors.delta.log.table_metadata import Names
from tidegate.errors import PipelineError


def conformed(array: pa.Array, kind: pa.DataType, names: Names | None = None) -> pa.Array:
    """Return the values of a file's column with the type of the table.

    Fields of structures are matched by name; a field that the file lacks is null.

    Args:
        names: names in the file of the fields inside `kind`; None: the same as in the table.

    Raises:
        pa.ArrowException: a value does not fit the type.
    """
    if array.type == kind:
        return array
    if pt.is_struct(kind) and pt.is_struct(array.type):
        return _struct(array, kind, names)
    if pt.is_list(kind) and (pt.is_list(array.type) or pt.is_large_list(array.type)):
        values = conformed(pc.list_flatten(array), kind.value_type, _inside(names, "element"))
        return pa.ListArray.from_arrays(_offsets(array), values, type=kind, mask=_nulls(array))
    if pt.is_map(kind) and pt.is_map(array.type):
        pairs = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        keys, items = pc.list_flatten(pairs).flatten()
        keys = conformed(keys, kind.key_type, _inside(names, "key"))
        items = conformed(items, kind.item_type, _inside(names, "value"))
        # `from_arrays` has no type of its own fields; the cast only gives them their names.
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items, mask=_nulls(array)).cast(kind)
    return array.cast(kind)


def _struct(array: pa.StructArray, kind: pa.StructType, names: Names | None) -> pa.Array:
    there = {field.name: values for field, values in zip(array.type, array.flatten(), strict=True)}
    children, fields = [], []
    for field in kind:
        name, inside = (field.name, None) if names is None else names[field.name]
        values = there.get(name)
        children.append(pa.nulls(len(array), field.type) if values is None else conformed(values, field.type, inside))
        fields.append(field)
    return pa.StructArray.from_arrays(children, fields=fields, mask=_nulls(array))


def _inside(names: Names | None, part: str) -> Names | None:
    return None if names is None else names[part][1]


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _offsets(array: pa.Array) -> pa.Array:
    """Return offsets into the flattened values: a slice of an array has others."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def partition_scalar(text: str | None, kind: pa.DataType, column: str, where: str) -> pa.Scalar:
    """Return a value of a partition column, which the log has as text. An empty text is null.

    A time without a zone in a column of timestamps is read as UTC.

    Raises:
        PipelineError: the text is no such value, or the column has another type than partitions can have.
    """
    if not text:
        return pa.scalar(None, kind)
    try:
        return pa.scalar(_partition_value(text, kind), kind)
    except (ValueError, pa.ArrowException) as e:
        raise PipelineError(
            f"the partition value {text!r} of column {column!r} cannot be read",
            where=where,
            cause=f"the column has the type {kind}; {' '.join(str(e).split())}",
            remedy="Leave the column out with columns=, or rewrite the partition",
        ) from e


def _partition_value(text: str, kind: pa.DataType) -> Any:
    if pt.is_string(kind):
        return text
    if pt.is_boolean(kind):
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else int(text) != 0
    if pt.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        if kind.tz is None:
            return moment.replace(tzinfo=None)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if pt.is_binary(kind):
        raise ValueError("values of binary partition columns are not supported")
    return pa.scalar(text, pa.string()).cast(kind)
