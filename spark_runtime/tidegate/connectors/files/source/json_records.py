"""JSON lines: one object per line, by Arrow's reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from tidegate.connectors.files.source.character_encoding import UndecodableRecordError
from tidegate.connectors.files.source.file_schema import FileSchema, differences
from tidegate.connectors.files.source.json_values import (
    HALF_PAIR,
    IsText,
    Number,
    is_declared_text,
    is_found_text,
    is_string,
    loads,
    members,
    nonblank_lines,
    not_json,
    numbers_quoted,
    unknown_fields,
)
from tidegate.connectors.files.source.number_text import all_whole, loses_digits, may_be_tiny, may_lose_digits
from tidegate.connectors.files.source.record_blocks import Ends, line_ends
from tidegate.connectors.files.source.repeated_names import REPEATED, refuse_repeated_names
from tidegate.connectors.files.source.value_ranges import has_range, is_in_range

MAX_NEW_FIELDS = 100
"""Number of new fields at which the search for more stops, because it reads every block twice."""

_TINY_VALUE = re.compile(rb'[:\[,][ \t]*"?-?[0-9.]+[eE]-[0-9]{5,}"?[ \t]*[,\]}]')
"""A whole value, number or text, as `may_be_tiny` finds it."""
_UNEXPECTED = "unexpected field"
_TO_NUMBER = "from string to number"
_TOO_BIG = "Number too big"
_TWICE = "was specified twice"
_CHANGED = re.compile(r"changed from \w+ to \w+ in row (\d+)")
"""Phrases in Arrow's errors: a field that the schema lacks; a number where the schema has a string; a number beyond a
64-bit float, anywhere; a repeated field; another type than before.
"""
_ABOUT_ZONES = ("expected no zone offset", "expected a zone offset")
"""Phrases about zones in Arrow's errors, which a user needs and which quote no value."""

_EPOCH = "1970-01-01T"
MAX_DEPTH = 200
"""Most nesting of objects and lists. Python parses only some hundreds, depending on the caller's stack."""
TOO_DEEP = f"the record has more than {MAX_DEPTH} levels of nested objects and lists"
UNREADABLE = "the record is not readable as JSON"
_ABSENT = pa.field("\0tidegate", pa.string())
"""A field that no record has: a record is readable with it if it is readable apart from the fields of the schema."""
_STRING_OR_POWER = re.compile(rb'"(?:[^"\\]|\\.)*"|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE]\+?[0-9]+')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')

_TEXT = pa.schema([("text", pa.binary())])


class JsonHead:
    """Parser that returns the text of objects itself."""

    schema = _TEXT

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """See `TextParser`."""
        return line_ends(text, is_last)

    def parse(self, text: bytes) -> pa.RecordBatch:
        """See `TextParser`. Objects that disagree on a type pass here; `infer_json` handles them."""
        _refuse_other_values(text)
        try:
            _infer(text)
        except pa.ArrowInvalid as error:
            if not (disagreeing_row(error) or 0) > 0:
                raise
        return pa.record_batch([[text]], schema=_TEXT)

    def reason(self, error: Exception, text: bytes) -> str:
        """See `TextParser`."""
        return bad_record_reason(error, text)


class JsonParser:
    """Parser of the objects of one file.

    Args:
        columns: columns of the batches, and all known columns.
        on_new: called with the paths of fields that no known column has, each once, with the first block that has it,
            up to about `MAX_NEW_FIELDS`; None: new fields are ignored.
    """

    def __init__(self, columns: FileSchema, on_new: Callable[[Sequence[str]], None] | None) -> None:
        self.schema = columns.emitted
        self._columns = columns
        self._is_text: IsText = is_found_text if columns.inferred else is_declared_text
        self._texts = [f.name for f in columns.emitted if _holds(f.type, self._is_text)]
        self._is_strict = on_new is not None
        self._typed = columns.known if self._is_strict else columns.emitted
        self._on_new = on_new
        self._new: dict[str, None] = {}
        self._has_timestamps = any(_holds(f.type, pa.types.is_timestamp) for f in columns.emitted)
        declares_times = bool(self._texts) and not columns.inferred
        self._has_strings = declares_times or any(map(_holds_string, columns.emitted.types))
        self._keeps_digits = columns.inferred and any(map(_holds_float, columns.emitted.types))
        self._ranged = frozenset(f.name for f in columns.emitted if has_range(f.type))
        self._ignores_fields = False

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """See `TextParser`."""
        return line_ends(text, is_last)

    def parse(self, text: bytes) -> pa.RecordBatch:
        """See `TextParser`."""
        return self.parse_objects(text, _refuse_other_values(text))

    def parse_objects(self, text: bytes, lines: int) -> pa.RecordBatch:
        """Parse `lines` lines that begin as objects and are at most `MAX_DEPTH` levels deep; see `parse`."""
        if self._on_new is not None and not self._is_strict:
            self._look_for_new(text)
        table = self._read(text)
        # Arrow makes a row of each value if a line has several values.
        if table.num_rows != lines:
            _refuse_others_beside(text)
        if self._keeps_digits and may_lose_digits(text):
            self._refuse_losses(text)
        columns = [self._column(table, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def reason(self, error: Exception, text: bytes) -> str:
        """See `TextParser`."""
        return bad_record_reason(error, text, self._columns)

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        """Return a column. Raises UndecodableRecordError, which does not quote the value, if a value does not fit."""
        read = table.column(field.name)
        try:
            if field.name not in self._texts or read.type == field.type:
                column = _one(read, field.type)
            else:
                column = _from_texts(_one(read, read.type), field.type)
        except pa.ArrowInvalid as error:
            zone = next((phrase for phrase in _ABOUT_ZONES if phrase in str(error)), "")
            raise self._unfit(field, f", {zone}" if zone else "") from error
        if field.name in self._ranged and not is_in_range(column):
            raise self._unfit(field, " in its range")
        return column

    def _unfit(self, field: pa.Field, more: str) -> UndecodableRecordError:
        remedy = "; declare the field as a string in schema=" if self._columns.inferred else ""
        return UndecodableRecordError(f"{not_of_type(field)}{more}{remedy}")

    def _read(self, text: bytes, *, quoted: bool = False) -> pa.Table:
        try:
            return self._read_as(text, self._with_texts())
        except pa.ArrowInvalid as error:
            if self._is_strict and _UNEXPECTED in str(error):
                if not self._look_for_new(text):
                    raise
                self._is_strict, self._typed = False, self._columns.emitted
                return self._read(text, quoted=quoted)
            if quoted or not self._has_strings or not any(known in str(error) for known in (_TO_NUMBER, _TOO_BIG)):
                raise
        if self._texts and not self._columns.inferred and not self._has_timestamps:
            with suppress(pa.ArrowInvalid):  # all dates and times of the block are numbers, which Arrow can read
                return self._read_as(text, self._typed)
        return self._read(numbers_quoted(text, self._typed, self._is_text), quoted=True)

    def _read_as(self, text: bytes, schema: pa.Schema) -> pa.Table:
        if self._is_strict:
            return read_json(text, schema, "error")
        if not self._ignores_fields:
            # Without other fields than the schema's, Arrow itself finds every repeated one.
            try:
                return read_json(text, schema, "error")
            except pa.ArrowInvalid as error:
                if _UNEXPECTED not in str(error):
                    raise
            self._ignores_fields = True
        table = read_json(text, schema, "ignore")
        refuse_repeated_names(text)
        return table

    def _with_texts(self) -> pa.Schema:
        """Return the schema in which fields are read before the cast."""
        return pa.schema([f.with_type(_as_text(f.type, self._is_text)) for f in self._typed])

    def _look_for_new(self, text: bytes) -> bool:
        """Report new fields of a block that were not reported yet. Returns False if the block is not readable as a
        whole.
        """
        assert self._on_new is not None, "new fields are ignored"
        try:
            found = _new_fields(text, self._columns)
        except UndecodableRecordError:
            return False
        fresh = [path for path in dict.fromkeys(found) if path not in self._new]
        if fresh:
            self._on_new(fresh)
            self._new.update(dict.fromkeys(fresh))
        if len(self._new) >= MAX_NEW_FIELDS:
            self._on_new = None
        return True

    def _refuse_losses(self, text: bytes) -> None:
        """Raise UndecodableRecordError for a number that would lose digits."""
        for line in nonblank_lines(text):
            for name, kind, value in members(loads(line), list(self.schema)):
                if pa.types.is_floating(kind) and isinstance(value, Number) and loses_digits(value):
                    raise UndecodableRecordError(
                        f"field {name!r} has a number with more digits than a float can store; declare the field as a "
                        "string in schema="
                    )


def read_json(text: bytes, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    """Return the objects as Arrow parses them. Raises UndecodableRecordError for a number that it must not read."""
    if schema is not None and may_be_tiny(text) and any(_holds(field.type, pa.types.is_decimal) for field in schema):
        # The value may belong to a text field. Such a record is refused, too.
        if _TINY_VALUE.search(text) is not None:
            raise UndecodableRecordError("a number is too small for a decimal")
    return pa_json.read_json(
        pa.BufferReader(text),
        read_options=pa_json.ReadOptions(block_size=len(text) + 1, use_threads=False),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=unexpected
        ),
    )


def disagreeing_row(error: Exception) -> int | None:
    """Return the number of the object in which a member has another type than before."""
    found = _CHANGED.search(str(error))
    return None if found is None else int(found[1])


def infer_json(text: bytes) -> pa.Schema:
    """Return the types that Arrow infers, with these exceptions.

    Numbers that would lose digits are strings. Times are strings if some have a zone and some do not; if all have one,
    they are timestamps in UTC. Dates are dates, and times with fractions of a second are timestamps.

    Raises:
        UndecodableRecordError, ArrowInvalid: a record is not an object, or not JSON.
    """
    _refuse_other_values(text)
    read, readable = _infer(text)
    found = read.schema
    if any(_holds(kind, pa.types.is_timestamp) for kind in found.types):
        texts = pa.schema([f.with_type(_as_text(f.type, pa.types.is_timestamp)) for f in found])
        read = read_json(readable, texts, "error")
    found = pa.schema([f.with_type(_with_times(_one(read[f.name], read[f.name].type), f.type)) for f in found])
    if not any(map(_holds_float, found.types)):
        return found
    numbers: dict[str, list[str]] = {}
    for line in nonblank_lines(text):
        for name, kind, value in members(loads(line), list(found)):
            if pa.types.is_floating(kind) and isinstance(value, Number):
                numbers.setdefault(name, []).append(value)
    lost = {n for n, texts in numbers.items() if any(map(loses_digits, texts)) or all_whole(pa.array(texts))}
    return pa.schema([_with_strings(field, "", lost) for field in found])


def _infer(text: bytes) -> tuple[pa.Table, bytes]:
    """Return objects with the types that Arrow infers, and the text that was read for it.

    Arrow cannot read a block with numbers such as `1e400`; the text has another number in their place.
    """
    try:
        return read_json(text, None, "infer"), text
    except pa.ArrowInvalid as error:
        if _TOO_BIG not in str(error):
            raise
    # 0.5 is a float, as is each number that it replaces, so the inferred types stay the same.
    readable = _STRING_OR_POWER.sub(lambda found: found[0] if found[0].startswith(b'"') else b"0.5", text)
    return read_json(readable, None, "infer"), readable


def _with_strings(field: pa.Field, prefix: str, paths: set[str]) -> pa.Field:
    path = prefix + field.name
    return field.with_type(_type_with_strings(field.type, path, paths))


def _type_with_strings(kind: pa.DataType, path: str, paths: set[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_with_strings(kind.field(i), path + ".", paths) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_type_with_strings(kind.value_type, path, paths))
    return pa.string() if path in paths and pa.types.is_floating(kind) else kind


# ------------------------------------------------------------ dates and times


def _holds(kind: pa.DataType, is_text: IsText) -> bool:
    return is_text(kind) or any(_holds(kind.field(i).type, is_text) for i in range(kind.num_fields))


def _as_text(kind: pa.DataType, is_text: IsText) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_as_text(field.type, is_text)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type, is_text)))
    return pa.string() if is_text(kind) else kind


def _from_texts(read: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of texts that `_as_text` has read. Arrow cannot cast text to a time of day, only to a
    timestamp.
    """
    if read.type == kind:
        return read
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [_from_texts(read.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=read.is_null())
    if pa.types.is_list(kind):
        values = _from_texts(read.values, kind.value_type)
        return pa.ListArray.from_arrays(read.offsets, values, type=kind, mask=read.is_null())
    if pa.types.is_time(kind):
        stamp = pa.timestamp(kind.unit)
        try:
            return pc.binary_join_element_wise(_EPOCH, read, "").cast(stamp).cast(kind)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(str(error).replace(_EPOCH, "").replace(str(stamp), str(kind))) from error
    return read.cast(kind)


def _with_times(texts: pa.Array, kind: pa.DataType) -> pa.DataType:
    """Return the type, with dates and times for texts that all are dates or times; in UTC if all have a zone, such as
    `Z`.

    Arrow itself reads dates as times, recognises no times with fractions of a second, and does not distinguish times
    with and without a zone.
    """
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([f.with_type(_with_times(texts.field(f.name), f.type)) for f in fields])
    if pa.types.is_list(kind):
        return pa.list_(_with_times(texts.flatten(), kind.value_type))
    first = texts.drop_null()[:1]
    if pa.types.is_timestamp(kind):
        candidates = (pa.date32(), kind, pa.timestamp(kind.unit, "UTC"))
    elif is_string(kind) and len(first):
        candidates = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
    else:
        return kind
    # a failing cast is slow, because it continues to the end; so the first value is tried before the rest
    fitting = (found for found in candidates if _fits(first, found))
    return next((found for found in fitting if _fits(texts, found)), pa.string())


def _fits(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


# ------------------------------------------------------------ what is no object


def _refuse_other_values(text: bytes) -> int:
    """Return the number of non-blank lines.

    Raise UndecodableRecordError if a line does not begin as an object, because Arrow would read `null` as a row of
    nulls, or crash. Also raise it if a line is nested too deeply.
    """
    data = np.frombuffer(text, np.uint8)
    if not len(data):
        return 0
    ends = line_ends(text, True)
    begins = np.concatenate([[0], ends[:-1]])
    # The number of opening marks, also in strings, is an upper bound of the depth. Only lines beyond it are measured.
    opened = np.searchsorted(np.flatnonzero((data | 32) == 123), np.append(begins, len(data)))
    for place in np.flatnonzero(np.diff(opened) > MAX_DEPTH).tolist():
        if nesting_depth(text[begins[place] : ends[place]]) > MAX_DEPTH:
            raise UndecodableRecordError(TOO_DEEP)
    first = data[begins]
    blank = (first == 10) | (first == 13)
    odd = ~blank & (first != 123)
    if not odd.any():
        return len(begins) - int(blank.sum())
    lines = list(nonblank_lines(text))
    for line in lines:
        if not line.startswith(b"{"):
            raise UndecodableRecordError("the record is not a JSON object; each line must hold one object")
    return len(lines)


def nesting_depth(line: bytes) -> int:
    """Return the deepest nesting of objects and lists. `[` and `{` differ in one bit only, as do their ends."""
    marks = np.frombuffer(_STRING.sub(b"", line), np.uint8) | 32
    return int(np.cumsum((marks == 123).astype(np.int64) - (marks == 125)).max(initial=0))


def _refuse_others_beside(text: bytes) -> None:
    """Raise UndecodableRecordError if a line with several values has one that is not an object."""
    decoder = json.JSONDecoder()
    for line in nonblank_lines(text):
        rest = line.decode()
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except json.JSONDecodeError as error:
                raise UndecodableRecordError(not_json(error)) from error
            if not isinstance(value, dict):
                raise UndecodableRecordError("the record is not a JSON object; each line must hold one object")
            rest = rest[end:].lstrip()


def _new_fields(text: bytes, columns: FileSchema) -> Sequence[str]:
    """Return paths of fields that no known column has. Raises UndecodableRecordError if a line is not JSON."""
    try:
        return differences(read_json(text, None, "infer").schema, columns).new
    except pa.ArrowInvalid:  # a new field has several types
        fields = list(columns.known)
        return [path for line in nonblank_lines(text) for path in unknown_fields(loads(line), fields)]


def _holds_string(kind: pa.DataType) -> bool:
    return is_string(kind) or any(_holds_string(kind.field(i).type) for i in range(kind.num_fields))


def _holds_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind)) or any(_holds_float(kind.field(i).type) for i in range(kind.num_fields))


def not_of_type(field: pa.Field) -> str:
    """Return the reason of a record with a value that its column cannot hold."""
    return f"field {field.name!r} has a value that is no {field.type}"


def bad_record_reason(error: Exception, text: bytes, columns: FileSchema | None = None) -> str:
    """Return why a single record is bad, without a quotation from it. Arrow's messages quote values.

    Args:
        error: as the parser raised it for this record.
        columns: columns of the parser; None: it has no schema yet.
    """
    if isinstance(error, UndecodableRecordError):
        return " ".join(str(error).split())
    message = str(error)
    fields: dict[str, Any] = {}
    try:
        fields = json.loads(text.strip(), object_pairs_hook=_single_members)
        json.dumps(fields, ensure_ascii=False).encode()
    except json.JSONDecodeError as no_json:
        if no_json.msg != "Extra data":
            return not_json(no_json)
    except _RepeatedNameError:
        return REPEATED
    except UnicodeEncodeError:
        return HALF_PAIR
    except (ValueError, RecursionError):
        pass
    if _TWICE in message:
        return REPEATED
    if _TOO_BIG in message:
        return "a number is too big for a 64-bit float"
    for field in columns.emitted if columns is not None else ():
        if _is_other_kind(fields.get(field.name), field.type) or not _is_readable(text, field):
            remedy = "; declare the field as a string in schema=" if columns is not None and columns.inferred else ""
            return f"{not_of_type(field)}{remedy}" if _is_readable(text, _ABSENT) else UNREADABLE
    return UNREADABLE


class _RepeatedNameError(Exception):
    """An object has two members of one name."""


def _single_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise _RepeatedNameError
    return found


def _is_other_kind(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value is surely of another kind than the column. It spares a parse, which takes longer."""
    if pa.types.is_integer(kind):
        return isinstance(value, str | float | bool | list | dict)
    if pa.types.is_string(kind) or pa.types.is_floating(kind):
        return isinstance(value, bool | list | dict)
    return (pa.types.is_struct(kind) and isinstance(value, list | str)) or (
        pa.types.is_list(kind) and isinstance(value, dict | str)
    )


def _is_readable(text: bytes, field: pa.Field) -> bool:
    one = pa.schema([field])
    try:
        JsonParser(FileSchema(one, one, False, one), None).parse(text)
    except (UndecodableRecordError, pa.ArrowInvalid):
        return False
    return True


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    # The empty array gives `concat_arrays` its type if there is no chunk.
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], kind), *column.chunks])
