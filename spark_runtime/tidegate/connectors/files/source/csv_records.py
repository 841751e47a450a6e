"""CSV records, by Arrow's reader."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tidegate.connectors.files.source.character_encoding import UndecodableRecordError
from tidegate.connectors.files.source.number_text import (
    all_whole,
    first_beyond_float,
    first_tiny,
    may_be_tiny,
    may_have_leading_zeros,
    may_lose_digits,
    with_leading_zeros,
)
from tidegate.connectors.files.source.record_blocks import Ends, csv_ends
from tidegate.connectors.files.source.value_ranges import has_range, is_in_range

_CONVERSION = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to (.+?): (.*)", re.DOTALL)
_COUNT = re.compile(r"Expected \d+ columns, got \d+")
"""Parts of Arrow's errors that quote no value."""
_SAID = ("invalid UTF8 data", "expected no zone offset", "expected a zone offset")
"""Phrases in Arrow's errors that a user needs and that quote no value."""
_QUOTED = re.compile(rb'(?:\A|(?<=[,\r\n]))(?:""(?=[,\r\n]|\Z)|("[^"]*(?:""[^"]*)*"))')
"""A field in quotes; without the group, an empty field in quotes."""
_TEXT = pa.schema([("text", pa.binary())])


def header_names(line: bytes) -> list[str]:
    """Return the names in a header line, which is in UTF-8."""
    return next(csv.reader([line.decode().strip("\r\n")]), [])


class CsvHead:
    """Parser that returns the text of records itself, and checks that each has as many values as there are names."""

    schema = _TEXT

    def __init__(self, names: Sequence[str], null_values: Sequence[str]) -> None:
        self._names, self._null_values = list(names), null_values

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """See `TextParser`."""
        return csv_ends(text, is_last)

    def parse(self, text: bytes) -> pa.RecordBatch:
        """See `TextParser`."""
        read_csv(text, self._names, self._null_values, dict.fromkeys(self._names[:1], pa.string()))
        return pa.record_batch([[text]], schema=_TEXT)

    def reason(self, error: Exception, text: bytes) -> str:
        """See `TextParser`."""
        return _reason(error, self._names)


class CsvParser:
    """Parser of records of files with one header.

    Args:
        names: names of the file's columns, in order.
        schema: schema of the batches. Columns are matched by name; columns that the file lacks are null.
        null_values: texts that mean null.
        keeps_digits: refuse numbers that would lose digits in the column's type.
    """

    def __init__(
        self, names: Sequence[str], schema: pa.Schema, null_values: Sequence[str], *, keeps_digits: bool
    ) -> None:
        self._names = list(names)
        self.schema = schema
        self._null_values = list(null_values)
        present = [field for field in schema if field.name in names]
        self._others = [f for f in present if not _is_text(f.type)]
        self._types = {field.name: field.type for field in present}
        self._floats = [f.name for f in present if keeps_digits and pa.types.is_floating(f.type)]
        self._ranged = frozenset(f.name for f in present if has_range(f.type))
        self._decimals = [f.name for f in present if pa.types.is_decimal(f.type)]
        self._numbers = [f.name for f in present if keeps_digits and pa.types.is_integer(f.type)] + self._floats

    def ends(self, text: bytes, is_last: bool) -> Ends:
        """See `TextParser`."""
        return csv_ends(text, is_last)

    def parse(self, text: bytes) -> pa.RecordBatch:
        """See `TextParser`."""
        self._refuse_tiny(text)
        try:
            table = self._read(text, self._types)
        # Few blocks have empty quotes in columns that are not text, so the text is searched for them only after an
        # error.
        except pa.ArrowInvalid:
            if not self._others:
                raise
            other, null_values = _empty_quotes_as_null(text, self._null_values)
            if other == text:
                raise
            table = self._with_empty_quotes(text, other, null_values)
        self._refuse_losses(text)
        rows = table.num_rows
        columns = [
            _one(table.column(field.name), field.type) if field.name in self._types else pa.nulls(rows, field.type)
            for field in self.schema
        ]
        self._refuse_beyond_range(text, columns)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def reason(self, error: Exception, text: bytes) -> str:
        """See `TextParser`."""
        return _reason(error, self._names)

    def _with_empty_quotes(self, text: bytes, other: bytes, null_values: Sequence[str]) -> pa.Table:
        """Read an empty field in quotes as an empty string in text columns, and as null in other columns."""
        table = self._read(text, {name: _text_of(kind) for name, kind in self._types.items()})
        unquoted = read_csv(other, self._names, null_values, {field.name: field.type for field in self._others})
        for field in self._others:
            place = table.schema.get_field_index(field.name)
            table = table.set_column(place, field, unquoted.column(field.name))
        return table

    def _refuse_tiny(self, text: bytes) -> None:
        """Raise UndecodableRecordError for a number that Arrow must not read as a decimal."""
        if self._decimals and may_be_tiny(text):
            texts = self._read(text, dict.fromkeys(self._decimals, pa.string()))
            for name in self._decimals:
                found = first_tiny(_one(texts.column(name), pa.string()))
                if found is not None:
                    raise UndecodableRecordError(f"column {name!r} has a number too small for {self._types[name]}")

    def _refuse_losses(self, text: bytes) -> None:
        """Raise UndecodableRecordError for a number that would lose digits."""
        zeros = self._numbers if self._numbers and may_have_leading_zeros(text) else []
        floats = self._floats if self._floats and may_lose_digits(text) else []
        if not zeros and not floats:
            return
        texts = self._read(text, dict.fromkeys([*zeros, *floats], pa.string()))
        for name in zeros:
            found = with_leading_zeros(_one(texts.column(name), pa.string()))
            _refuse(name, found, "its hexadecimal form" if "x" in (found or "").lower() else "its leading zeros")
        for name in floats:
            _refuse(name, first_beyond_float(_one(texts.column(name), pa.string())), "digits")

    def _refuse_beyond_range(self, text: bytes, columns: Sequence[pa.Array]) -> None:
        """Raise UndecodableRecordError for a time that no column means, and for a number that became infinite."""
        for field, column in zip(self.schema, columns, strict=True):
            if field.name not in self._ranged or is_in_range(column):
                continue
            # `inf` is a value of floats; only digits must not become infinite.
            if not pa.types.is_floating(field.type) or _has_digits(self._infinite(text, field.name, column)):
                raise UndecodableRecordError(f"{_unfit(field.name, field.type)} in its range")

    def _infinite(self, text: bytes, name: str, column: pa.Array) -> pa.Array:
        """Return the texts of the infinite numbers of a column."""
        texts = _one(self._read(text, {name: pa.string()}).column(name), pa.string())
        return texts.filter(pc.is_inf(column).fill_null(False))

    def _read(self, text: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        return read_csv(text, self._names, self._null_values, types)


def read_csv(
    text: bytes,
    names: Sequence[str],
    null_values: Sequence[str],
    types: dict[str, pa.DataType] | None = None,
) -> pa.Table:
    """Return the records as Arrow parses them.

    Args:
        types: types of the columns to read; None: all columns, with the types that Arrow infers.
    """
    convert: dict[str, Any] = {}
    if types is not None:
        # For Arrow, an empty list means all columns. One column is enough to count the rows.
        convert = {"column_types": types, "include_columns": list(types) or list(names[:1])}
    return pa_csv.read_csv(
        pa.BufferReader(text),
        read_options=pa_csv.ReadOptions(column_names=list(names), block_size=len(text) + 1, use_threads=False),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            null_values=list(null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            **convert,
        ),
    )


def infer_csv(text: bytes, names: Sequence[str], null_values: Sequence[str]) -> pa.Schema:
    """Return the types that Arrow infers. Columns of numbers that would lose digits are strings."""
    text, null_values = _empty_quotes_as_null(text, null_values)
    found = read_csv(text, names, null_values).schema
    numbers = [f.name for f in found if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    texts = read_csv(text, names, null_values, dict.fromkeys(numbers, pa.string()))
    for place, field in enumerate(found):
        if field.name in numbers:
            column = _one(texts.column(field.name), pa.string())
            lost = with_leading_zeros(column) is not None
            if pa.types.is_floating(field.type):
                lost = lost or first_beyond_float(column) is not None or all_whole(column)
            if lost:
                found = found.set(place, field.with_type(pa.string()))
    return found


def _empty_quotes_as_null(text: bytes, null_values: Sequence[str]) -> tuple[bytes, Sequence[str]]:
    """Replace each empty text in quotes by a marker, and add the marker to the null values.

    Arrow treats either all null values as null inside quotes, or none.
    """
    if "" not in null_values or b'""' not in text:
        return text, null_values
    # The marker becomes longer until the text does not contain it.
    null = next(mark for mark in (b"\x1a" * length for length in itertools.count(1)) if mark not in text)
    return _QUOTED.sub(lambda match: match[1] or null, text), [*null_values, null.decode()]


def _reason(error: Exception, names: Sequence[str]) -> str:
    """Return why a record is bad, without a quotation from it. Arrow's messages quote values, so parts are used."""
    text = " ".join(str(error).split())
    if isinstance(error, UndecodableRecordError):
        return text
    if found := _CONVERSION.search(text):
        said = next((f", {phrase}" for phrase in _SAID if phrase in found[3]), "")
        return f"{_unfit(names[int(found[1])], found[2])}{said}"
    counted = _COUNT.search(text)
    return counted[0] if counted is not None else "the record is not readable as CSV"


def _unfit(name: str, kind: object) -> str:
    return f"column {name!r} has a value that is no {kind}"


def _refuse(name: str, number: str | None, lost: str) -> None:
    if number is not None:
        raise UndecodableRecordError(
            f"column {name!r} has a number that would lose {lost}; declare the column as a string in schema="
        )


def _one(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    # The empty array gives `concat_arrays` its type if there is no chunk.
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], kind), *column.chunks])


def _has_digits(texts: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, "[0-9]")).as_py())


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _text_of(kind: pa.DataType) -> pa.DataType:
    return kind if _is_text(kind) else pa.string()
