"""JSON lines: one object a line, by Arrow's reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from tidegate.connectors.file_schema import FileSchema, differences
from tidegate.connectors.number_text import all_whole, loses_digits, may_lose_digits
from tidegate.connectors.record_blocks import Ends, line_ends
from tidegate.connectors.text_encoding import RecordError

_UNEXPECTED = "unexpected field"
_TO_NUMBER = "from string to number"
_CHANGED = re.compile(r"changed from \w+ to \w+ in row (\d+)")
"""In Arrow's errors: a field that the schema lacks; a number where it has a string; any other type than before."""


_MAX_DEPTH = 200
"""Of objects and lists in each other: Python reads some hundreds only, and how many depends on who calls."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')

_TEXT = pa.schema([("text", pa.binary())])


class JsonHead:
    """Gives the text of objects itself."""

    schema = _TEXT

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """See `TextParser`."""
        return line_ends(text, is_last)

    def parse(self, text: bytes) -> pa.RecordBatch:
        """See `TextParser`. That objects do not agree on a type is `infer_json`'s business."""
        _refuse_other_values(text)
        try:
            read_json(text, None, "infer")
        except pa.ArrowInvalid as error:
            if not (disagreeing_row(error) or 0) > 0:
                raise
        return pa.record_batch([[text]], schema=_TEXT)

    def reason(self, error: Exception, text: bytes) -> str:
        """See `TextParser`."""
        return _reason(error, text)


class JsonParser:
    """Reads objects of one file.

    Args:
        columns: of the batches, and all known ones.
        on_new: told the paths of fields that no known column has, when a block first has such; None: they are passed
            over.
    """

    def __init__(self, columns: FileSchema, on_new: Callable[[Sequence[str]], None] | None) -> None:
        self.schema = columns.emitted
        self._columns = columns
        self._times = [f.name for f in columns.emitted if columns.inferred and _holds_time(f.type)]
        self._read_as = self._with_times_as_text(columns.emitted if on_new is None else columns.known)
        self._on_new = on_new
        self._has_strings = any(map(_holds_string, columns.emitted.types))
        self._keeps_digits = columns.inferred and any(map(_holds_float, columns.emitted.types))

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """See `TextParser`."""
        return line_ends(text, is_last)

    def parse(self, text: bytes) -> pa.RecordBatch:
        """See `TextParser`."""
        lines = _refuse_other_values(text)
        table = self._read(text)
        if table.num_rows != lines:
            _refuse_others_beside(text)
        if self._keeps_digits and may_lose_digits(text):
            self._refuse_losses(text)
        columns = [self._column(table, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def reason(self, error: Exception, text: bytes) -> str:
        """See `TextParser`."""
        return _reason(error, text)

    def _with_times_as_text(self, schema: pa.Schema) -> pa.Schema:
        """Arrow's reader takes `10:00+02:00` for 08:00 in a column without a zone; its cast refuses that."""
        return pa.schema([f.with_type(_times_as_text(f.type)) if f.name in self._times else f for f in schema])

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        if field.name not in self._times:
            return _one(table.column(field.name), field.type)
        try:
            return _one(table.column(field.name), _times_as_text(field.type)).cast(field.type)
        except pa.ArrowInvalid as error:
            why = str(error).rstrip(".")
            raise RecordError(f"field {field.name!r}: {why}; declare the field in schema=, as a string") from error

    def _read(self, text: bytes, *, quoted: bool = False) -> pa.Table:
        try:
            return read_json(text, self._read_as, "ignore" if self._on_new is None else "error")
        except pa.ArrowInvalid as error:
            if self._on_new is not None and _UNEXPECTED in str(error):
                new = differences(read_json(text, None, "infer").schema, self._columns).new
                self._on_new(new)
                self._on_new, self._read_as = None, self._with_times_as_text(self._columns.emitted)
                return self._read(text, quoted=quoted)
            if self._has_strings and not quoted and _TO_NUMBER in str(error):
                return self._read(_numbers_quoted(text, self._read_as), quoted=True)
            raise

    def _refuse_losses(self, text: bytes) -> None:
        """Raises RecordError."""
        for line in nonblank_lines(text):
            for name, kind, value in _members(_loads(line), list(self.schema)):
                if pa.types.is_floating(kind) and isinstance(value, _Number) and loses_digits(value):
                    raise RecordError(
                        f"field {name!r}: {str(value)!r} would lose digits as a number; declare the field in schema=, "
                        "as a string"
                    )


def read_json(text: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    """Objects as Arrow reads them."""
    return pa_json.read_json(
        pa.BufferReader(text),
        read_options=pa_json.ReadOptions(block_size=len(text) + 1, use_threads=False),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=unexpected
        ),
    )


def disagreeing_row(error: Exception) -> int | None:
    """Number of the object in which a member has another type than before."""
    found = _CHANGED.search(str(error))
    return None if found is None else int(found[1])


def infer_json(text: bytes) -> pa.Schema:
    """The types of objects, as Arrow finds them, but for numbers that would lose digits and times of which some have a
    zone and some have none: they are strings. Times that all have one are times in UTC.

    Raises:
        RecordError, ArrowInvalid: a record is no object, or no JSON.
    """
    _refuse_other_values(text)
    found = read_json(text, None, "infer").schema
    if any(map(_holds_time, found.types)):
        texts = read_json(text, pa.schema([f.with_type(_times_as_text(f.type)) for f in found]), "error")
        found = pa.schema([f.with_type(_without_zoned(_one(texts[f.name], texts[f.name].type), f.type)) for f in found])
    if not any(map(_holds_float, found.types)):
        return found
    numbers: dict[str, list[str]] = {}
    for line in nonblank_lines(text):
        for name, kind, value in _members(_loads(line), list(found)):
            if pa.types.is_floating(kind) and isinstance(value, _Number):
                numbers.setdefault(name, []).append(value)
    lost = {n for n, texts in numbers.items() if any(map(loses_digits, texts)) or all_whole(pa.array(texts))}
    return pa.schema([_with_strings(field, "", lost) for field in found])


def _with_strings(field: pa.Field, prefix: str, paths: set[str]) -> pa.Field:
    path = prefix + field.name
    return field.with_type(_type_with_strings(field.type, path, paths))


def _type_with_strings(kind: pa.DataType, path: str, paths: set[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_with_strings(kind.field(i), path + ".", paths) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_type_with_strings(kind.value_type, path, paths))
    return pa.string() if path in paths and pa.types.is_floating(kind) else kind


# ------------------------------------------------------------ times


def _holds_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) or any(_holds_time(kind.field(i).type) for i in range(kind.num_fields))


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_times_as_text(field.type)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _without_zoned(texts: pa.Array, kind: pa.DataType) -> pa.DataType:
    """The type, with UTC for times that all have a zone, such as `Z`, and strings where only some have one."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([f.with_type(_without_zoned(texts.field(f.name), f.type)) for f in fields])
    if pa.types.is_list(kind):
        return pa.list_(_without_zoned(texts.flatten(), kind.value_type))
    if pa.types.is_timestamp(kind):
        return next((found for found in (kind, pa.timestamp(kind.unit, "UTC")) if _fits(texts, found)), pa.string())
    return kind


def _fits(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


# ------------------------------------------------------------ what is no object


def _refuse_other_values(text: bytes) -> int:
    """The number of lines with something on them. RecordError when one does not begin as an object: Arrow would take
    `null` for a row of nulls, or die of it. Also when one is nested too deeply."""
    data = np.frombuffer(text, np.uint8)
    if not len(data):
        return 0
    ends = line_ends(text, True)
    begins = np.concatenate([[0], ends[:-1]])
    opened = np.searchsorted(np.flatnonzero((data | 32) == 123), np.append(begins, len(data)))
    for place in np.flatnonzero(np.diff(opened) > _MAX_DEPTH).tolist():
        if _depth(text[begins[place] : ends[place]]) > _MAX_DEPTH:
            raise RecordError(f"it is nested too deeply: more than {_MAX_DEPTH} objects and lists in each other")
    first = data[begins]
    blank = (first == 10) | (first == 13)
    odd = ~blank & (first != 123)
    if not odd.any():
        return len(begins) - int(blank.sum())
    lines = list(nonblank_lines(text))
    for line in lines:
        if not line.startswith(b"{"):
            raise RecordError("it is not a JSON object, one of which makes a line")
    return len(lines)


def _depth(line: bytes) -> int:
    """The most objects and lists in each other. `[` and `{` differ in one bit only, as do their ends."""
    marks = np.frombuffer(_STRING.sub(b"", line), np.uint8) | 32
    return int(np.cumsum((marks == 123).astype(np.int64) - (marks == 125)).max(initial=0))


def _refuse_others_beside(text: bytes) -> None:
    """Raises RecordError when a line with several values has one that is no object."""
    decoder = json.JSONDecoder()
    for line in nonblank_lines(text):
        rest = line.decode()
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except ValueError as error:
                raise RecordError(str(error)) from error
            if not isinstance(value, dict):
                raise RecordError("it is not a JSON object, one of which makes a line")
            rest = rest[end:].lstrip()


def nonblank_lines(text: bytes) -> Iterable[bytes]:
    """Without white space around them."""
    return filter(None, (line.strip() for line in text.splitlines()))


# ------------------------------------------------------------ numbers as they are written


class _Number(str):
    """The text of a number."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """Members in order, also those of one name."""

    __slots__ = ()


_decoder = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_Number,
    parse_float=_Number,
)


def _loads(line: bytes) -> list[Any]:
    """The values of a line."""
    values, rest = [], line.decode()
    while rest:
        try:
            value, end = _decoder.raw_decode(rest)
        except ValueError as error:
            raise RecordError(str(error)) from error
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def _members(
    values: Iterable[Any], fields: Sequence[pa.Field], prefix: str = ""
) -> Iterable[tuple[str, pa.DataType, Any]]:
    """(path, type, value) of everything in these objects that is in no deeper one."""
    types = {field.name: field.type for field in fields}
    for value in values:
        for name, member in value if isinstance(value, _Object) else ():
            if name in types:
                yield from _inside(member, types[name], prefix + name)


def _inside(value: Any, kind: pa.DataType, path: str) -> Iterable[tuple[str, pa.DataType, Any]]:
    if pa.types.is_struct(kind):
        yield from _members([value], [kind.field(i) for i in range(kind.num_fields)], path + ".")
    elif pa.types.is_list(kind):
        for one in value if isinstance(value, list) and not isinstance(value, _Object) else ():
            yield from _inside(one, kind.value_type, path)
    else:
        yield path, kind, value


def _numbers_quoted(text: bytes, schema: pa.Schema) -> bytes:
    """The same objects, with numbers in quotes where the schema has strings."""
    whole = pa.struct(list(schema))
    try:
        lines = ["".join(_dumped(value, whole) for value in _loads(line)) for line in nonblank_lines(text)]
        return ("\n".join(lines) + "\n").encode()
    except UnicodeError as error:
        raise RecordError(str(error)) from error


def _dumped(value: Any, kind: pa.DataType | None) -> str:
    if isinstance(value, _Number):
        return f'"{value}"' if kind is not None and _is_string(kind) else str(value)
    if isinstance(value, _Object):
        inner = {}
        if kind is not None and pa.types.is_struct(kind):
            inner = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        members = (f"{json.dumps(name)}:{_dumped(member, inner.get(name))}" for name, member in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        own = kind.value_type if kind is not None and pa.types.is_list(kind) else None
        return "[" + ",".join(_dumped(one, own) for one in value) + "]"
    return json.dumps(value)


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_string(kind: pa.DataType) -> bool:
    return _is_string(kind) or any(_holds_string(kind.field(i).type) for i in range(kind.num_fields))


def _holds_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind)) or any(_holds_float(kind.field(i).type) for i in range(kind.num_fields))


def _reason(error: Exception, text: bytes) -> str:
    """Arrow takes a line that is cut off within a string for one of invalid encoding: Python says better what is no
    JSON."""
    if not isinstance(error, RecordError):
        try:
            json.loads(text.rstrip())
        except json.JSONDecodeError as no_json:
            return f"{no_json.msg[:1].lower()}{no_json.msg[1:]} (character {no_json.pos})"
        except ValueError:
            pass
    return " ".join(str(error).split()).removeprefix("JSON parse error: ").removesuffix(" in row 0")


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], kind), *column.chunks])
