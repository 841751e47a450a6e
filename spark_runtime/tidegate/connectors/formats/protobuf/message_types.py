"""Equivalents of Protobuf messages in Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import PipelineError

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"

MAX_DEPTH = 64
"""Most messages inside each other. Protobuf's own decoders accept 100, and each level takes some of Python's stack."""
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)
_ENUM, _GROUP, _MESSAGE = 14, 10, 11
_TYPES: Mapping[int, pa.DataType] = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    _ENUM: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""Number of a type in `descriptor.proto` -> its equivalent."""


@dataclass(frozen=True)
class MessageField:
    """A field of a message as a column.

    Attributes:
        shape: `one`, `list` or `map`.
        kind: `scalar`, `enum`, `message`, `timestamp`, `duration` or `wrapper`; of a map the kind of its values.
        type: Arrow type of one value; of a map the type of its values.
        has_presence: whether the field can be absent, which is null.
        inner: of a message its fields, and of a map its keys.
        descriptor: descriptor of the enum or message; None: it has none.
    """

    name: str
    shape: str
    kind: str
    type: pa.DataType
    has_presence: bool
    inner: tuple[MessageField, ...] = ()
    descriptor: Any = None

    @property
    def column(self) -> pa.Field:
        """Return the column."""
        if self.shape == "map":
            values = pa.field("value", self.type, nullable=False)
            return pa.field(self.name, pa.map_(self.inner[0].type, values), nullable=False)
        if self.shape == "list":
            return pa.field(self.name, pa.list_(pa.field("item", self.type, nullable=False)), nullable=False)
        return pa.field(self.name, self.type, nullable=self.has_presence)


def message_fields(descriptor: Any, unit: str, *, around: tuple[str, ...] = ()) -> tuple[MessageField, ...]:
    """Return the fields of a message, by their numbers.

    Args:
        unit: unit of timestamps and durations, `us` or `ns`.
        around: full names of the messages that contain this one.

    Raises:
        PipelineError: a message contains itself, or nests too many others.
    """
    if descriptor.full_name in around:
        raise PipelineError(
            f"the message {descriptor.full_name!r} contains itself",
            where="Protobuf(message=)",
            cause="Arrow has no recursive types",
            remedy="Use Raw(), and decode the records in a process of your own",
        )
    if len(around) >= MAX_DEPTH:
        raise PipelineError(
            f"the message nests more than {MAX_DEPTH} messages",
            where="Protobuf(message=)",
            remedy="Use Raw(), and decode the records in a process of your own",
        )
    around = (*around, descriptor.full_name)
    return tuple(_field(one, unit, around) for one in sorted(descriptor.fields, key=lambda one: one.number))


def _field(field: Any, unit: str, around: tuple[str, ...]) -> MessageField:
    if not field.is_repeated:
        return _value(field, "one", unit, around)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        found = _value(value, "map", unit, around)
        keys = _value(key, "one", unit, around)
        return MessageField(field.name, "map", found.kind, found.type, False, (keys, *found.inner), found.descriptor)
    return _value(field, "list", unit, around)


def _value(field: Any, shape: str, unit: str, around: tuple[str, ...]) -> MessageField:
    presence = shape == "one" and bool(field.has_presence)
    if field.type not in (_MESSAGE, _GROUP):
        kind = "enum" if field.type == _ENUM else "scalar"
        return MessageField(field.name, shape, kind, _TYPES[field.type], presence, (), field.enum_type)
    message = field.message_type
    if message.full_name == TIMESTAMP:
        return MessageField(field.name, shape, "timestamp", pa.timestamp(unit, "UTC"), presence, (), message)
    if message.full_name == DURATION:
        return MessageField(field.name, shape, "duration", pa.duration(unit), presence, (), message)
    if message.full_name in _WRAPPERS:
        type_ = _TYPES[message.fields_by_name["value"].type]
        return MessageField(field.name, shape, "wrapper", type_, presence, (), message)
    inner = message_fields(message, unit, around=around)
    return MessageField(
        field.name, shape, "message", pa.struct([one.column for one in inner]), presence, inner, message
    )


def message_schema(fields: tuple[MessageField, ...]) -> pa.Schema:
    """Return the columns of a message. All can be null: a record may have no value."""
    return pa.schema([one.column.with_nullable(True) for one in fields])
