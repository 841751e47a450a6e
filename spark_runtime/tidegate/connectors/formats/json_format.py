"""Json: one JSON object in each record, decoded by Arrow's reader under the rules of JSON files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.files.sink.json_text import json_objects, json_type_problem
from tidegate.connectors.files.source.character_encoding import UndecodableRecordError
from tidegate.connectors.files.source.file_schema import FileSchema
from tidegate.connectors.files.source.json_records import MAX_DEPTH, TOO_DEEP, JsonParser, nesting_depth
from tidegate.connectors.formats.declared_schema import DeclaredSchema, declared_schema
from tidegate.connectors.formats.decoded_rows import (
    Indices,
    as_binary,
    assemble,
    bad_nulls,
    concatenated,
    null_records,
    selected,
)
from tidegate.connectors.formats.interface import DecodedRecords, Format, RecordDecoder, RecordEncoder
from tidegate.connectors.formats.json_shapes import NOT_THERE, PLAIN, object_shapes
from tidegate.connectors.formats.raw_format import NO_TEXT
from tidegate.connectors.formats.utf8 import invalid_texts
from tidegate.errors import OptionError, PipelineError
from tidegate.state.arrow.arrow_buffers import ranges_of

OnNewField = Literal["ignore", "refuse"]

_ISOLATED_RECORDS = 8
"""At most so many records are parsed one by one if one of them is bad; more are halved. Each call of Arrow's reader
takes about 0.1 ms.
"""
_BLANK = b" \t\r\n"
_STRING_OR_BREAK = re.compile(rb'"(?:[^"\\]|\\.)*"|[\r\n]+', re.DOTALL)
"""A text, or line breaks outside of texts. Line breaks inside a text are not JSON."""
_NEW_FIELD = "the record has a field that the schema does not declare"


class Json(Format):
    """A JSON object in each record. It means the same as a line of a JSON-lines file.

    Types, missing fields, and numbers that are too big follow the rules of `Files(format="json")`. A record is refused
    if it is empty, not one JSON object, has a field twice, or has a value that the column's type cannot hold.

    Args:
        schema: a `pyarrow.Schema`, or a mapping of column name -> type such as `int64`. Other fields are not decoded.
            A record without a declared field has null in it; if the field is declared `nullable=False`, the record is
            refused.
        on_new_field: `ignore` (default) or `refuse` records with fields that the schema does not declare.

    Raises:
        OptionError: the schema or `on_new_field` is wrong.
    """

    def __init__(self, schema: DeclaredSchema, *, on_new_field: OnNewField = "ignore") -> None:
        self._schema = declared_schema(schema, "Json(schema=)")
        if on_new_field not in ("ignore", "refuse"):
            raise OptionError(
                f"on_new_field={on_new_field!r} is unknown",
                where="Json(on_new_field=)",
                remedy="Use 'ignore' or 'refuse'",
            )
        _check_readable(self._schema)
        self._on_new_field = on_new_field

    @property
    def refuses_new_fields(self) -> bool:
        """Return whether a record with a field that the schema does not declare is refused."""
        return self._on_new_field == "refuse"

    def schema(self) -> pa.Schema:
        """Return the declared schema."""
        return self._schema

    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        """Return a decoder. It parses all declared columns, because each of them can make a record bad."""
        return JsonDecoder(self._schema, columns, refuses_new=self.refuses_new_fields)

    def check_encodable(self, schema: pa.Schema) -> None:
        """Check that JSON has a form for each column, and that no name is repeated."""
        problems = [f"column {f.name!r}: {found}" for f in schema if (found := json_type_problem(f.type))]
        problems += [
            f"column {name!r} exists twice" for name in sorted({n for n in schema.names if schema.names.count(n) > 1})
        ]
        if problems:
            raise PipelineError(
                "the rows cannot be written as JSON",
                where=self.describe(),
                cause="; ".join(problems),
                remedy="Cast, rename or leave out these columns before the sink",
            )

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        """Return an encoder. It writes every column of the rows, whatever schema was declared."""
        self.check_encodable(schema)
        return _JsonEncoder()

    def describe(self) -> str:
        """Return the names of the columns."""
        return f"Json({', '.join(self._schema.names)})"


class JsonDecoder(RecordDecoder):
    """Decoder of JSON objects.

    Args:
        schema: all columns; a field that is not nullable must be in each record.
        columns: columns of the batches; None: all.
        refuses_new: whether a record with other fields is bad.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str] | None = None, *, refuses_new: bool = False) -> None:
        self._schema, self._columns = schema, selected(schema, columns).names
        self._refuses_new = refuses_new
        self._required = [field.name for field in schema if not field.nullable]
        # Arrow's reader does not know required fields, so these are checked afterwards.
        self._read = pa.schema([field.with_nullable(True) for field in schema])
        self._parser = self._parser_of(self._read)

    def decode(self, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        values = as_binary(values)
        bad = dict.fromkeys(invalid_texts(values).tolist(), NO_TEXT)
        nulls = bad_nulls(self._schema, null_records(values), bad)
        lines, of_line = _single_lines(values, bad)
        parts = list(self._parsed(lines, of_line, bad))
        rows = concatenated(self._read, [batch for batch, _ in parts])
        of_row = np.concatenate([of_line[:0], *(records for _, records in parts)])
        for name in self._required:
            rows, of_row = _with_field(rows, of_row, name, bad)
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=self._schema).select(self._columns)
        return assemble(len(values), rows, of_row, nulls, bad)

    def _parser_of(self, schema: pa.Schema) -> JsonParser:
        return JsonParser(FileSchema(schema, schema, False, schema), _refuse_new if self._refuses_new else None)

    def _parsed(
        self, lines: pa.Array, of_line: Indices, bad: dict[int, str]
    ) -> Iterator[tuple[pa.RecordBatch, Indices]]:
        """Yield rows and their records: all lines together if all are readable, else parts of them separately."""
        if not len(lines):
            return
        try:
            batch = self._parser.parse_objects(_joined(lines), len(lines))
            if batch.num_rows != len(lines):
                raise UndecodableRecordError("the record has several JSON objects")
        except (UndecodableRecordError, pa.ArrowInvalid) as error:
            if len(lines) == 1:
                bad[int(of_line[0])] = self._parser.reason(error, lines[0].as_py())
                return
            step = (len(lines) + 1) // 2 if len(lines) > _ISOLATED_RECORDS else 1
            for first in range(0, len(lines), step):
                yield from self._parsed(lines.slice(first, step), of_line[first : first + step], bad)
            return
        yield batch, of_line


class _JsonEncoder(RecordEncoder):
    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """See `RecordEncoder`."""
        texts = json_objects(batch)
        return pa.Array.from_buffers(pa.binary(), len(texts), texts.buffers(), 0, texts.offset)


def _refuse_new(names: Sequence[str]) -> None:
    raise UndecodableRecordError(_NEW_FIELD)


def _joined(lines: pa.Array) -> bytes:
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    joined: bytes = pc.binary_join(whole, b"\n")[0].as_py()
    return joined


def _single_lines(values: pa.Array, bad: dict[int, str]) -> tuple[pa.Array, Indices]:
    """Return the values that may be one object, each on one line, and their records. Other values are added to `bad`.

    Each begins with `{` and ends with `}`. So a value with half an object cannot be completed by the next value: after
    its last `}`, the `{` of the next value is an error. As every value begins an object, as many rows as values mean
    that each value is one object.
    """
    starts, lengths, data = ranges_of(values)
    shapes = object_shapes(data, starts, lengths.astype(np.int64), MAX_DEPTH)
    shapes[list(bad)] = NOT_THERE
    if (shapes == PLAIN).all():
        return values, np.arange(len(values), dtype=np.int64)
    changed: dict[int, bytes] = {}
    for record in np.flatnonzero(shapes > PLAIN).tolist():
        line = _as_line(data[starts[record] : starts[record] + lengths[record]].tobytes())
        if line is None:
            bad[record] = "the record is not one JSON object"
        elif nesting_depth(line) > MAX_DEPTH:
            bad[record] = TOO_DEEP
        else:
            changed[record] = line
    shapes[list(changed)] = PLAIN
    records: Indices = np.flatnonzero(shapes == PLAIN).astype(np.int64)
    lines = values.take(pa.array(records))
    if changed:
        lines = pc.coalesce(pa.array([changed.get(record) for record in records.tolist()], pa.binary()), lines)
    return lines, records


def _as_line(value: bytes) -> bytes | None:
    """Return the value on one line; None: it is no object, or has a line break in a text."""
    line = _STRING_OR_BREAK.sub(lambda found: found[0] if found[0].startswith(b'"') else b" ", value.strip(_BLANK))
    if not line.startswith(b"{") or not line.endswith(b"}") or b"\n" in line or b"\r" in line:
        return None
    return line


def _with_field(
    rows: pa.RecordBatch, of_row: Indices, name: str, bad: dict[int, str]
) -> tuple[pa.RecordBatch, Indices]:
    """Return the rows in which a required field is not null. Other records are added to `bad`."""
    column = rows.column(name)
    if not column.null_count:
        return rows, of_row
    there = column.is_valid()
    kept = there.to_numpy(zero_copy_only=False)
    bad.update(dict.fromkeys(of_row[~kept].tolist(), f"field {name!r} is missing or null"))
    return rows.filter(there), of_row[kept]


def _check_readable(schema: pa.Schema) -> None:
    """Raise OptionError if Arrow's reader does not know a type, or a nested field is required."""
    for field in schema:
        if not _nested_nullable(field.type):
            raise OptionError(
                "a nested field is declared nullable=False",
                where=f"Json(schema=), column {field.name!r}",
                remedy="Only columns can be required; declare nested fields as nullable",
            )
        one = pa.schema([field.with_nullable(True)])
        try:
            JsonParser(FileSchema(one, one, False, one), None).parse(b"{}\n")
        except (pa.ArrowException, UndecodableRecordError) as error:
            raise OptionError(
                f"JSON cannot be read as {field.type}",
                where=f"Json(schema=), column {field.name!r}",
                cause=" ".join(str(error).split()),
                remedy="Declare the column as string, number, boolean, date, time, timestamp, list or struct",
            ) from error


def _nested_nullable(kind: pa.DataType) -> bool:
    fields = [] if pa.types.is_map(kind) else [kind.field(i) for i in range(kind.num_fields)]
    return all(field.nullable and _nested_nullable(field.type) for field in fields)
