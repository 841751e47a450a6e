"""JSON values in their original text: numbers with all their digits, and all members of the same name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.files.source.character_encoding import UndecodableRecordError

HALF_PAIR = "a text has half of a surrogate pair, which is no character"

IsText = Callable[[pa.DataType], bool]
"""Predicate: values of a type are read as texts, then cast."""


def nonblank_lines(text: bytes) -> Iterable[bytes]:
    """Return the non-blank lines, without white space around them."""
    return filter(None, (line.strip() for line in text.splitlines()))


class Number(str):
    """The text of a number."""

    __slots__ = ()


class JsonObject(list[tuple[str, Any]]):
    """Members in order, including members of the same name."""

    __slots__ = ()


_decoder = json.JSONDecoder(
    object_pairs_hook=JsonObject,
    parse_int=Number,
    parse_float=Number,
)


def not_json(error: json.JSONDecodeError) -> str:
    """Return why a text is not JSON, without a quotation from it."""
    what = error.msg.partition(": ")[0]  # some messages end with the character
    return f"not JSON: {what[:1].lower()}{what[1:]} (character {error.pos})"


def loads(line: bytes) -> list[Any]:
    """Return the values of a line. Raises UndecodableRecordError if it is not JSON."""
    values, rest = [], line.decode()
    while rest:
        try:
            value, end = _decoder.raw_decode(rest)
        except json.JSONDecodeError as error:
            raise UndecodableRecordError(not_json(error)) from error
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def members(
    values: Iterable[Any], fields: Sequence[pa.Field], prefix: str = ""
) -> Iterable[tuple[str, pa.DataType, Any]]:
    """Yield (path, type, value) of every member of these objects that is not a struct; members of structs are yielded
    themselves.
    """
    types = {field.name: field.type for field in fields}
    for value in values:
        for name, member in value if isinstance(value, JsonObject) else ():
            if name in types:
                yield from _inside(member, types[name], prefix + name)


def _inside(value: Any, kind: pa.DataType, path: str) -> Iterable[tuple[str, pa.DataType, Any]]:
    if pa.types.is_struct(kind):
        yield from members([value], [kind.field(i) for i in range(kind.num_fields)], path + ".")
    elif pa.types.is_list(kind):
        for one in value if isinstance(value, list) and not isinstance(value, JsonObject) else ():
            yield from _inside(one, kind.value_type, path)
    else:
        yield path, kind, value


def unknown_fields(values: Iterable[Any], fields: Sequence[pa.Field], prefix: str = "") -> Iterator[str]:
    """Yield paths of members of these objects that are none of the fields."""
    types = {field.name: field.type for field in fields}
    for value in values:
        for name, member in value if isinstance(value, JsonObject) else ():
            if name not in types:
                yield prefix + name
                continue
            kind, inner = types[name], [member]
            while pa.types.is_list(kind):
                lists = [one for one in inner if isinstance(one, list) and not isinstance(one, JsonObject)]
                kind, inner = kind.value_type, [one for many in lists for one in many]
            if pa.types.is_struct(kind):
                yield from unknown_fields(inner, [kind.field(i) for i in range(kind.num_fields)], prefix + name + ".")


def numbers_quoted(text: bytes, schema: pa.Schema, is_text: IsText) -> bytes:
    """Return the same objects, with numbers in quotes if the schema has strings, or reads them as strings.

    Numbers that stand for dates and times become texts.
    """
    whole = pa.struct(list(schema))
    try:
        lines = ["".join(_dumped(value, whole, is_text) for value in loads(line)) for line in nonblank_lines(text)]
        return ("\n".join(lines) + "\n").encode()
    except UnicodeError as error:
        raise UndecodableRecordError(HALF_PAIR) from error


def _dumped(value: Any, kind: pa.DataType | None, is_text: IsText) -> str:
    if isinstance(value, Number):
        if kind is not None and is_declared_text(kind):
            return f'"{_time_text(value, kind, is_text)}"'
        return f'"{value}"' if kind is not None and (is_string(kind) or is_text(kind)) else str(value)
    if isinstance(value, JsonObject):
        inner = {}
        if kind is not None and pa.types.is_struct(kind):
            inner = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        parts = (f"{json.dumps(name)}:{_dumped(member, inner.get(name), is_text)}" for name, member in value)
        return "{" + ",".join(parts) + "}"
    if isinstance(value, list):
        own = kind.value_type if kind is not None and pa.types.is_list(kind) else None
        return "[" + ",".join(_dumped(one, own, is_text) for one in value) + "]"
    return json.dumps(value)


def _time_text(number: str, kind: pa.DataType, is_text: IsText) -> str:
    """Return the text of a date or time of day that is a number in Arrow's unit.

    Only for a declared type: in a column of dates that was inferred from texts, 20240601 is not a number of days.
    """
    if pa.types.is_timestamp(kind) or is_text is is_found_text:
        raise UndecodableRecordError(f"a number cannot be read as {kind}; write it as ISO 8601 text")
    try:
        counted = pa.array([int(number)], pa.int32() if kind.bit_width == 32 else pa.int64())
        return str(counted.cast(kind).cast(pa.string())[0])
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise UndecodableRecordError(f"a number cannot be read as {kind}") from error


def is_string(kind: pa.DataType) -> bool:
    """Return whether the type is a string or large string."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_declared_text(kind: pa.DataType) -> bool:
    """Return whether values of a declared type are read as text, then cast.

    Arrow's cast accepts ISO 8601 for these types, as Spark's reader does. Arrow's JSON reader accepts only numbers for
    dates and times of day, and shifts or assumes time zones of timestamps without notice.
    """
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def is_found_text(kind: pa.DataType) -> bool:
    """Return whether values of an inferred type are read as text, then cast.

    Arrow's JSON reader reads `10:00+02:00` as 08:00 in a column without a zone, and accepts only numbers for dates. Its
    cast refuses the former and accepts ISO 8601 dates.
    """
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
