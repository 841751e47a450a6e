"""Record batches as JSON lines, column by column.

Each column becomes a column of JSON texts. One kernel joins them, with the member names in between, to lines. No Python
code runs per row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES |= {chr(code): f"\\u{code:04x}" for code in range(32) if chr(code) not in _ESCAPES}
"""The backslash comes first, because the other escapes add backslashes. Source: RFC 8259, section 7."""
_NEVER_PLAIN_FROM = 1e15
"""Absolute value from which Arrow writes all floats with an exponent. It does so from 1e10 on with few digits."""
_TEXT_BYTES = 2**28
"""Bytes of records converted to lines at a time: the lines must fit 2 GiB."""


def json_type_problem(kind: pa.DataType) -> str:
    """Return why a column of this type cannot be written as JSON, or an empty string."""
    if pt.is_dictionary(kind):
        return json_type_problem(kind.value_type)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return json_type_problem(kind.value_type)
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if len({field.name for field in fields}) < len(fields):
            return "the struct has several fields of the same name"
        return next(filter(None, (json_type_problem(field.type) for field in fields)), "")
    return "" if is_text_type(kind) else f"JSON has no type for {kind}"


def is_text_type(kind: pa.DataType) -> bool:
    """Return whether single values of this type have a text form that readers of CSV and JSON agree on."""
    text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)
    number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_boolean(kind)
    return text or number or pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind) or pt.is_null(kind)


def json_lines(batch: pa.RecordBatch) -> Sequence[pa.Buffer]:
    """Return the records as lines, in order; as several buffers if they are large."""
    # The inner `max` leaves batches below the limit whole. The outer one makes progress if single rows exceed the
    # limit.
    rows = max(1, batch.num_rows * _TEXT_BYTES // max(_TEXT_BYTES, batch.nbytes))
    parts = (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
    return [_bytes_of(_objects(part.schema.names, part.columns, "\n")) for part in parts]


def json_objects(batch: pa.RecordBatch) -> pa.StringArray:
    """Return one JSON object for each row, without a line end. All objects together must be smaller than 2 GiB."""
    if not batch.num_columns:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    return _objects(batch.schema.names, batch.columns)


def time_texts(column: pa.Array) -> pa.Array:
    """Return timestamps as ISO 8601: `2026-11-21T16:48:50.000000`. Timestamps with a zone are in UTC, with a Z."""
    zone = column.type.tz
    # Arrow's own conversion of timestamps with a zone is forty times slower.
    texts = pc.replace_substring(column.cast(pa.timestamp(column.type.unit)).cast(pa.string()), " ", "T")
    return texts if zone is None else pc.binary_join_element_wise(texts, "Z", "")


def _objects(names: Sequence[str], columns: Sequence[pa.Array], end: str = "") -> pa.Array:
    """Return one JSON object for each row."""
    pieces: list[Any] = []
    literal = "{"
    for name, column in zip(names, columns, strict=True):
        literal += f"{',' if pieces else ''}{json.dumps(name, ensure_ascii=False)}:"
        quote, texts = _json_texts(column)
        # Null has no quotation marks, so they become part of the values. This costs one more kernel, and only here.
        if quote and texts.null_count:
            quote, texts = "", pc.binary_join_element_wise('"', texts, '"', "")
        pieces += [literal + quote, texts]
        literal = quote
    return pc.binary_join_element_wise(
        *pieces, literal + "}" + end, "", null_handling="replace", null_replacement="null"
    )


def _json_texts(column: pa.Array) -> tuple[str, pa.Array]:
    """Return the quotation mark to put around the values, or "", and the values as JSON texts; null stays null."""
    kind = column.type
    if pt.is_dictionary(kind):
        return _json_texts(column.dictionary_decode())
    if pt.is_struct(kind):
        return "", _nulls_of(column, _struct_texts(column))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return "", _list_texts(column)
    if pt.is_timestamp(kind):
        return '"', time_texts(column)
    if pt.is_floating(kind):
        return "", _float_texts(column)
    texts = column.cast(pa.string())
    if pt.is_date(kind) or pt.is_time(kind):
        return '"', texts
    if pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_decimal(kind) or pt.is_null(kind):
        return "", texts
    return '"', _escaped(texts)


def _struct_texts(column: pa.StructArray) -> pa.Array:
    if not column.type.num_fields:
        return pa.repeat("{}", len(column))
    # Unlike `field`, `flatten` respects the offset of a slice and the nulls of the struct.
    return _objects([field.name for field in column.type], column.flatten())


def _list_texts(column: pa.Array) -> pa.Array:
    """Convert the elements of all lists to text at once, then join them list by list."""
    lists = column.cast(pa.list_(column.type.value_type))
    first, last = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    # `values` ignores the offset of a slice, so only the elements that these lists refer to are converted.
    quote, texts = _json_texts(lists.values.slice(first, last - first))
    if quote:
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    offsets = pc.subtract(lists.offsets, lists.offsets[0])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(texts, "null")), ",")
    return _nulls_of(column, pc.binary_join_element_wise("[", joined, "]", ""))


def _nulls_of(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _float_texts(column: pa.Array) -> pa.Array:
    """Return floats as texts. NaN and infinities become null, because JSON has neither.

    A whole number keeps its `.0`, so that readers that guess types recognise a float.
    """
    finite = pc.is_finite(column)
    # With `min_count=0`, a column without values counts as finite; otherwise the result is null.
    if not pc.all(finite, min_count=0).as_py():
        column = pc.if_else(finite, column, pa.scalar(None, column.type))
    texts = column.cast(pa.string())
    numbers = column.cast(pa.float64())
    whole = pc.and_(pc.equal(numbers, pc.trunc(numbers)), pc.less(pc.abs(numbers), _NEVER_PLAIN_FROM))
    if pc.any(whole).as_py():
        whole = pc.and_not(whole, pc.match_substring(texts, "e"))
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    return texts


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Replace only characters that occur. In UTF-8, a byte below 128 always is the character of that code."""
    data = np.frombuffer(_bytes_of(texts), np.uint8)
    if not ((data < 32) | (data == ord('"')) | (data == ord("\\"))).any():
        return texts
    for char, escape in _ESCAPES.items():
        if (data == ord(char)).any():
            texts = pc.replace_substring(texts, char, escape)
    return texts


def _bytes_of(texts: pa.StringArray) -> pa.Buffer:
    """Return the bytes of the texts, concatenated."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return pa.py_buffer(b"")
    # A slice shares the buffers of the whole array, so its bytes are between its own first and last offset.
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
