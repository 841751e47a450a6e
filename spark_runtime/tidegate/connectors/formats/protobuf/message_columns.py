"""Columns of many messages, and messages of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.connectors.formats.encoded_records import CannotEncodeError
from tidegate.connectors.formats.protobuf.message_types import MessageField

_PER_SECOND = {"us": 10**6, "ns": 10**9}
_NANOS = 10**9


def column_of(field: MessageField, messages: Sequence[Any]) -> pa.Array:
    """Return a field of messages; null where the message is None.

    Raises:
        ValueError, OverflowError, ArrowException: a value does not fit its column.
    """
    type_ = field.column.type
    if field.shape == "one":
        return _one(field, messages)
    values = [None if message is None else getattr(message, field.name) for message in messages]
    counts = [0 if value is None else len(value) for value in values]
    offsets = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int32)
    mask = pa.array([value is None for value in values]) if None in values else None
    if field.shape == "list":
        inner = _values(field, list(chain.from_iterable(value for value in values if value is not None)))
        return pa.ListArray.from_arrays(pa.array(offsets), inner, type=type_, mask=mask)
    # The order of a map's items differs from process to process, and a replay must give equal rows.
    items = [item for value in values if value is not None for item in sorted(value.items(), key=itemgetter(0))]
    keys = pa.array([key for key, _ in items], type_.key_type)
    inner = _values(field, [value for _, value in items])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, inner, type=type_, mask=mask)


def _one(field: MessageField, messages: Sequence[Any]) -> pa.Array:
    name = field.name
    if not field.has_presence:
        get: Callable[[Any], Any] = attrgetter(name)
        if None in messages:
            return _values(field, [None if message is None else get(message) for message in messages])
        return _values(field, list(map(get, messages)))
    return _values(
        field,
        [None if message is None or not message.HasField(name) else getattr(message, name) for message in messages],
    )


def _values(field: MessageField, values: list[Any]) -> pa.Array:
    if field.kind == "scalar":
        return pa.array(values, field.type)
    if field.kind == "enum":
        names = {number: one.name for number, one in field.descriptor.values_by_number.items()}
        # Enums of proto3 are open: a number without a name is kept as text.
        return pa.array([None if one is None else names.get(one, str(one)) for one in values], pa.string())
    if field.kind == "wrapper":
        return pa.array([None if one is None else one.value for one in values], field.type)
    if field.kind in ("timestamp", "duration"):
        scale = _PER_SECOND[field.type.unit]
        per = _NANOS // scale
        counts = [None if one is None else one.seconds * scale + one.nanos // per for one in values]
        return pa.array(counts, pa.int64()).cast(field.type)
    inner = field.inner[1:] if field.shape == "map" else field.inner
    if not inner:
        return pa.array([None if one is None else {} for one in values], field.type)
    children = [column_of(one, values) for one in inner]
    mask = pa.array([one is None for one in values]) if None in values else None
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=mask)


def encodable_problem(type_: pa.DataType, field: MessageField) -> str:
    """Return why a column of this type cannot be written to a field; empty: it can."""
    wanted = field.column.type
    if pt.is_dictionary(type_):
        return encodable_problem(type_.value_type, field)
    if pt.is_null(type_) or type_ == wanted:
        return ""
    return _problem(type_, wanted)


def _problem(type_: pa.DataType, wanted: pa.DataType) -> str:
    refused = f"{type_} cannot be written as {wanted} without loss"
    if pt.is_struct(wanted):
        if not pt.is_struct(type_):
            return refused
        known = {one.name: one.type for one in wanted}
        unknown = [one.name for one in type_ if one.name not in known]
        if unknown:
            return f"the message has no field {unknown[0]!r}"
        return next(filter(None, (_problem(one.type, known[one.name]) for one in type_)), "")
    if pt.is_map(wanted):
        if not pt.is_map(type_):
            return refused
        return _problem(type_.key_type, wanted.key_type) or _problem(type_.item_type, wanted.item_type)
    if pt.is_list(wanted):
        return (
            _problem(type_.value_type, wanted.value_type) if pt.is_list(type_) or pt.is_large_list(type_) else refused
        )
    return "" if type_ == wanted or _widens(type_, wanted) else refused


def _widens(type_: pa.DataType, wanted: pa.DataType) -> bool:
    if pt.is_integer(wanted) and pt.is_integer(type_):
        signed = pt.is_signed_integer(type_)
        return type_.bit_width < wanted.bit_width and (not signed or bool(pt.is_signed_integer(wanted)))
    if pt.is_floating(wanted):
        return bool(pt.is_floating(type_)) and type_.bit_width <= wanted.bit_width
    if pt.is_timestamp(wanted):
        return bool(pt.is_timestamp(type_)) and type_.tz is not None
    if pt.is_duration(wanted):
        return bool(pt.is_duration(type_))
    if pt.is_string(wanted):
        return bool(pt.is_large_string(type_) or pt.is_string_view(type_) or pt.is_dictionary(type_))
    return bool(pt.is_binary(wanted) and (pt.is_large_binary(type_) or pt.is_fixed_size_binary(type_)))


def messages_of(
    class_of: Callable[[Any], Any],
    descriptor: Any,
    fields: Iterable[MessageField],
    columns: dict[str, pa.Array],
    count: int,
) -> list[Any]:
    """Return messages of `count` rows. Args: class_of: descriptor -> class of its messages.

    Raises:
        CannotEncodeError: a value does not fit its field.
    """
    made = class_of(descriptor)
    wanted = [one for one in fields if one.name in columns]
    try:
        values = [_python(class_of, one, columns[one.name]) for one in wanted]
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise CannotEncodeError(descriptor.full_name, "a column has a value that its field cannot hold") from error
    names = [one.name for one in wanted]
    rows = zip(*values) if values else ([] for _ in range(count))
    return [made(**{name: value for name, value in zip(names, row) if value is not None}) for row in rows]


def _python(class_of: Callable[[Any], Any], field: MessageField, array: pa.Array) -> list[Any]:
    """Return the values as the constructor of a message accepts them; None: absent."""
    array = array.dictionary_decode() if pt.is_dictionary(array.type) else array
    if field.shape == "one":
        return _singles(class_of, field, array)
    if pt.is_null(array.type):
        return [None] * len(array)
    if field.shape == "map":
        keys, values = array.keys.to_pylist(), _singles(class_of, field, array.items)
        spans = zip(array.offsets[:-1].to_pylist(), array.offsets[1:].to_pylist())
        found: list[Any] = [dict(zip(keys[begin:end], values[begin:end])) for begin, end in spans]
    else:
        array = array.cast(pa.list_(array.type.value_type))
        elements = _singles(class_of, field, array.values)
        spans = zip(array.offsets[:-1].to_pylist(), array.offsets[1:].to_pylist())
        found = [elements[begin:end] for begin, end in spans]
        if any(None in one for one in found):
            raise CannotEncodeError(field.name, "a list has a null, which Protobuf does not have")
    return [one if valid else None for one, valid in zip(found, array.is_valid().to_pylist())]


def _singles(class_of: Callable[[Any], Any], field: MessageField, array: pa.Array) -> list[Any]:
    if pt.is_null(array.type):
        return [None] * len(array)
    if field.kind == "scalar":
        return array.cast(field.type).to_pylist()
    if field.kind == "enum":
        numbers = {name: one.number for name, one in field.descriptor.values_by_name.items()}
        texts = array.cast(pa.string()).to_pylist()
        return [None if one is None else numbers[one] if one in numbers else int(one) for one in texts]
    if field.kind == "wrapper":
        made = class_of(field.descriptor)
        return [None if one is None else made(value=one) for one in array.cast(field.type).to_pylist()]
    if field.kind in ("timestamp", "duration"):
        made, kind = class_of(field.descriptor), array.type
        scale = {"s": 1, "ms": 10**3, **_PER_SECOND}[kind.unit]
        return [_moment(made, one, scale, field.kind) for one in array.cast(pa.int64()).to_pylist()]
    inner = field.inner[1:] if field.shape == "map" else field.inner
    columns = dict(zip((one.name for one in array.type), array.flatten()))
    messages = messages_of(class_of, field.descriptor, inner, columns, len(array))
    return [one if valid else None for one, valid in zip(messages, array.is_valid().to_pylist())]


def _moment(made: Any, count: int | None, scale: int, kind: str) -> Any:
    if count is None:
        return None
    seconds, rest = divmod(count, scale)
    if kind == "duration" and seconds < 0 and rest:  # seconds and nanos of a duration have the same sign
        seconds, rest = seconds + 1, rest - scale
    return made(seconds=seconds, nanos=rest * (_NANOS // scale))
