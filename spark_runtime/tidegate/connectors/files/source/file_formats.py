"""Readers of one file as record batches: Parquet, CSV, JSON lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.files.source.bad_records import BadRecord, refused
from tidegate.connectors.files.source.character_encoding import Decoder, UndecodableRecordError
from tidegate.connectors.files.source.csv_records import CsvHead, CsvParser, header_names, infer_csv
from tidegate.connectors.files.source.file_errors import one_line, truncated_file_error, with_file_name
from tidegate.connectors.files.source.file_schema import FilePolicy, FileSchema, differences, refuse_doubled
from tidegate.connectors.files.source.json_records import JsonHead, JsonParser, disagreeing_row, infer_json
from tidegate.connectors.files.source.record_blocks import MAX_BLOCK_RECORDS, ByteStream, blocks, csv_ends
from tidegate.connectors.files.source.text_records import Chunk, TextParser, text_chunks
from tidegate.connectors.files.source.text_streams import COMPRESSIONS, open_text, without_bom
from tidegate.connectors.storage import is_local
from tidegate.errors import PipelineError

FormatName = Literal["parquet", "csv", "json"]

MAX_BATCH_ROWS = MAX_BLOCK_RECORDS
INFER_BLOCK_BYTES = 4 * 2**20
"""Size of a text file's first block, in which column types are inferred."""
HEADER_BLOCK_BYTES = 16 * 2**10

_SUFFIXES: dict[str, FormatName] = {
    "parquet": "parquet",
    "pq": "parquet",
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}


def suffixes_of(name: FormatName) -> tuple[str, ...]:
    """Return the suffixes of files of a format, compressed or not: all that `format_of` assigns to it."""
    plain = [f".{suffix}" for suffix, found in _SUFFIXES.items() if found == name]
    return tuple(suffix + packed for suffix in plain for packed in ("", *(f".{c}" for c in COMPRESSIONS)))


def format_of(path: str) -> FormatName | None:
    """Return the format by a file's name (`x.csv.gz` is CSV), or None."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")
    if parts[-1] in COMPRESSIONS:
        parts.pop()
    return _SUFFIXES.get(parts[-1]) if len(parts) > 1 else None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without metadata and dictionary encoding, with all columns nullable.

    A column, or a part of one, that has no value becomes a string.
    """
    return pa.schema([pa.field(f.name, _plain_type(f.type)) for f in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else _without_null_types(kind)


def _without_null_types(kind: pa.DataType) -> pa.DataType:
    """Replace null types by strings, also in structs and lists."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_null_types(field.type)) for field in fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_null_types(kind.value_type)))
    return kind


class FileFormat(Protocol):
    """Reader of files of one format. Stateless; errors are PipelineErrors that name the file."""

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the plain schema: from the footer, or from the head of a text file; None: the file has no record."""

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the columns of a file, as far as its head shows them, to compare them with another file's.

        None: the file has no record to infer them from. CSV: names alone, all as strings.
        """

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """Return the first record of a text file that no schema can read."""

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Return the rows of each part that can be read by itself; empty: the file is one part of unknown length."""

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        on_difference: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Yield the records after position `at` (`Chunk.at`, 0: the start) of row groups [first, last) or the whole
        file.

        Batches have the schema `columns.emitted`, of a Parquet file `columns.read`, and at most `MAX_BATCH_ROWS` rows.
        Columns are matched by name.

        Args:
            on_difference: receives what the file lacks or has beyond the schema; may raise. It is called before the
                chunk that shows the difference.
        """


class FieldDifferenceListener(Protocol):
    """Receiver of the differences between a file and the schema."""

    def __call__(self, path: str, *, missing: Sequence[str] = (), new: Sequence[str] = ()) -> None:
        """Raise if a difference is not allowed."""


@dataclass(frozen=True)
class ParquetFormat:
    """Reader of Parquet files."""

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema:
        """Return the plain schema of the footer."""
        with with_file_name(path), _parquet(filesystem, path) as file:
            return plain_schema(file.schema_arrow)

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the columns of the footer."""
        return self.infer(filesystem, path)

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """Return None, because the schema is in the footer."""
        return None

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Return the rows of each row group."""
        with with_file_name(path), _parquet(filesystem, path) as file:
            return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        on_difference: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Yield row groups in order. Row groups before `at`, a number of rows, are not read."""
        with with_file_name(path), _parquet(filesystem, path) as file:
            first, last = groups if groups is not None else (0, file.metadata.num_row_groups)
            before = sum(file.metadata.row_group(i).num_rows for i in range(first))
            row = 0
            while first < last and row + file.metadata.row_group(first).num_rows <= at:
                row += file.metadata.row_group(first).num_rows
                first += 1
            unlike = differences(plain_schema(file.schema_arrow), columns)
            if unlike.types:
                name, there, here = unlike.types[0]
                raise PipelineError(
                    "a column of the input file has another type than in the schema",
                    where=path,
                    cause=f"column {name!r} has type {there} in the file and {here} in the schema",
                    remedy="Pass a schema= that fits all files, or read files of different types as two sources",
                )
            if groups is None or groups[0] == 0:  # once per file
                on_difference(path, missing=unlike.missing, new=unlike.new)
            present = [name for name in columns.read.names if name in file.schema_arrow.names]
            read = file.iter_batches(MAX_BATCH_ROWS, row_groups=list(range(first, last)), columns=present)
            for batch in read:
                begin = min(batch.num_rows, max(0, at - row))
                rows = batch.num_rows - begin
                row += batch.num_rows
                if rows:
                    wanted = _to_schema(batch.slice(begin), columns.read)
                    yield _checked(wanted, row, before + row - rows)
            if row < at:
                raise truncated_file_error(path, row, at)


@dataclass(frozen=True)
class CsvFormat:
    """Reader of CSV files with a header line."""

    policy: FilePolicy

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the plain schema from the head of the file."""
        decode = self.policy.text.to_utf8
        with with_file_name(path):
            names, begin = self._header(filesystem, path, decode)
            if not names:
                return None
            parser = CsvHead(names, self.policy.null_values)
            with open_text(filesystem, path, self.policy.text, begin) as stream:
                text = _head(stream, begin, path, parser, decode, stop_at_bad=self.policy.stops_at_bad)
            return plain_schema(infer_csv(text, names, self.policy.null_values)) if text.strip() else None

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the names of the header."""
        with with_file_name(path):
            names = self._header(filesystem, path, self.policy.text.to_utf8)[0]
        return pa.schema([pa.field(name, pa.string()) for name in names]) if names else None

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """Return the first record that is not text, or has another number of values than the header has names."""
        decode = self.policy.text.to_utf8
        with with_file_name(path):
            names, begin = self._header(filesystem, path, decode)
            if not names:
                return None
            with open_text(filesystem, path, self.policy.text, begin) as stream:
                return _first_bad(stream, begin, CsvHead(names, self.policy.null_values), decode)

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Return nothing: the number of rows is unknown."""
        return ()

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        on_difference: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Yield block by block, from byte `at`."""
        decode = self.policy.text.to_utf8
        with with_file_name(path):
            names, begin = self._header(filesystem, path, decode)
            if not names:
                return
            refuse_doubled(path, names, columns.emitted.names)
            on_difference(
                path,
                missing=[name for name in columns.emitted.names if name not in names],
                new=[name for name in names if name not in columns.known.names],
            )
            at = max(at, begin)
            parser = CsvParser(names, columns.emitted, self.policy.null_values, keeps_digits=columns.inferred)
            with open_text(filesystem, path, self.policy.text, at) as stream:
                yield from text_chunks(stream, parser, at, decode, stop_at_bad=self.policy.stops_at_bad)

    def _header(self, filesystem: AbstractFileSystem, path: str, decode: Decoder) -> tuple[list[str], int]:
        """Return the names in the first non-blank line, and the offset of the next line; no names: there is no such
        line.
        """
        with open_text(filesystem, path, self.policy.text) as stream:
            for block in blocks(*without_bom(stream), csv_ends, HEADER_BLOCK_BYTES):
                for first, last in itertools.pairwise([0, *block.ends.tolist()]):
                    line = block.data[first:last]
                    if not line.strip(b"\r\n"):
                        continue
                    try:
                        return header_names(decode(line)), block.offset + last
                    except UndecodableRecordError as error:
                        raise refused(
                            path, BadRecord(block.offset + first, line, f"the header of the file: {error}")
                        ) from None
        return [], 0


@dataclass(frozen=True)
class JsonLinesFormat:
    """Reader of JSON lines, one object per line."""

    policy: FilePolicy

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the plain schema from the head of the file."""
        return self.fields(filesystem, path)

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Return the fields of all objects in the head of the file."""
        decode = self.policy.text.to_utf8
        with with_file_name(path):
            with open_text(filesystem, path, self.policy.text) as stream:
                rest, begin = without_bom(stream)
                text = _head(rest, begin, path, JsonHead(), decode, stop_at_bad=self.policy.stops_at_bad)
            while text.strip():
                try:
                    return plain_schema(infer_json(text))
                except pa.ArrowInvalid as error:
                    text = self._that_agree(text, path, begin, error)
        return None

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """Return the first record that is not a JSON object."""
        with with_file_name(path), open_text(filesystem, path, self.policy.text) as stream:
            rest, begin = without_bom(stream)
            return _first_bad(rest, begin, JsonHead(), self.policy.text.to_utf8)

    def _that_agree(self, text: bytes, path: str, begin: int, error: Exception) -> bytes:
        """Return the objects before the first one with a member of another type; that object is bad."""
        row = disagreeing_row(error)
        if row is None:
            raise error
        lines = [line for line in text.splitlines(keepends=True) if line.strip()]
        other = lines[min(row, len(lines) - 1)]
        if self.policy.stops_at_bad:
            why = f"{one_line(error).removeprefix('JSON parse error: ')} of the file; declare the type in schema="
            raise refused(path, BadRecord(begin + text.index(other), other.strip(), why)) from None
        return b"".join(lines[: min(row, len(lines) - 1)])

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Return nothing: the number of rows is unknown."""
        return ()

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        on_difference: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Yield block by block, from byte `at`. New fields are searched if all columns are read or none is allowed."""
        looks = columns.emitted.equals(columns.known) or self.policy.on_new_field == "fail"
        parser = JsonParser(columns, (lambda new: on_difference(path, new=new)) if looks else None)
        with with_file_name(path):
            with open_text(filesystem, path, self.policy.text, at) as stream:
                rest, at = (stream, at) if at else without_bom(stream)
                yield from text_chunks(rest, parser, at, self.policy.text.to_utf8, stop_at_bad=self.policy.stops_at_bad)


@contextmanager
def _parquet(filesystem: AbstractFileSystem, path: str) -> Iterator[pq.ParquetFile]:
    if is_local(filesystem):
        with pq.ParquetFile(path) as file:
            yield file
        return
    with filesystem.open(path, "rb") as handle, pq.ParquetFile(handle) as file:
        yield file


def _head(
    stream: ByteStream, offset: int, path: str, parser: TextParser, decode: Decoder, *, stop_at_bad: bool
) -> bytes:
    """Return the first readable records, as UTF-8 text. With `stop_at_bad`, raise PipelineError for a bad record."""
    texts: list[bytes] = []
    for chunk in text_chunks(stream, parser, offset, decode, stop_at_bad=stop_at_bad, block_bytes=INFER_BLOCK_BYTES):
        if stop_at_bad and chunk.bad:
            raise refused(path, chunk.bad[0])
        texts += chunk.batch.column(0).to_pylist()
        if chunk.at - offset >= INFER_BLOCK_BYTES // 2:
            break
    return b"".join(texts)


def _first_bad(stream: ByteStream, offset: int, parser: TextParser, decode: Decoder) -> BadRecord | None:
    read = text_chunks(stream, parser, offset, decode, stop_at_bad=True)
    return next((bad for chunk in read for bad in chunk.bad), None)


def _to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        column = batch.column(place) if place >= 0 else pa.nulls(batch.num_rows, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _checked(batch: pa.RecordBatch, at: int, first_row: int) -> Chunk:
    """Return rows of a Parquet file from row number `first_row` on, without rows whose strings are not valid UTF-8.

    Writers other than Arrow's do not validate strings.
    """
    try:
        batch.validate(full=True)
        return Chunk(batch, (), at)
    except pa.ArrowInvalid:
        pass
    good: list[pa.RecordBatch] = []
    bad: list[BadRecord] = []

    def halves(begin: int, end: int) -> None:
        part = batch.slice(begin, end - begin)
        try:
            part.validate(full=True)
            good.append(part)
        except pa.ArrowInvalid as error:
            if end - begin == 1:
                bad.append(BadRecord(first_row + begin, _decode_error(part), _reason(error, part.schema)))
                return
            middle = (begin + end) // 2
            halves(begin, middle)
            halves(middle, end)

    halves(0, batch.num_rows)
    return Chunk(pa.concat_batches(good) if good else batch.slice(0, 0), tuple(bad), at)


def _reason(error: pa.ArrowInvalid, schema: pa.Schema) -> str:
    """Return Arrow's text with the column's name: its number depends on which columns the job reads."""
    return re.sub(r"^In column (\d+)", lambda found: f"in column {schema.names[int(found[1])]!r}", one_line(error))


def _decode_error(row: pa.RecordBatch) -> bytes:
    """Return the first value of a row that is not valid UTF-8."""
    for column in row.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            value: bytes = column.cast(pa.binary())[0].as_py() or b""
            try:
                value.decode()
            except UnicodeDecodeError:
                return value
    return b""
