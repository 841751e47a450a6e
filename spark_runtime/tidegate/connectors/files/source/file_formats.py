"""Reading one file as record batches: Parquet, CSV, JSON lines."""

from __future__ import annotations

import itertools
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
"""Column types of text are found in the first block of this size."""
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
    """How names of files of a format may end, compressed or not: all that `format_of` takes for it."""
    plain = [f".{suffix}" for suffix, found in _SUFFIXES.items() if found == name]
    return tuple(suffix + packed for suffix in plain for packed in ("", *(f".{c}" for c in COMPRESSIONS)))


def format_of(path: str) -> FormatName | None:
    """The format a file's name tells (`x.csv.gz` is CSV), or None."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")
    if parts[-1] in COMPRESSIONS:
        parts.pop()
    return _SUFFIXES.get(parts[-1]) if len(parts) > 1 else None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without metadata and dictionary encoding, all columns nullable; what has no single value, a
    column or a part of one, is a string."""
    return pa.schema([pa.field(f.name, _plain_type(f.type)) for f in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else _without_null_types(kind)


def _without_null_types(kind: pa.DataType) -> pa.DataType:
    """Also in structs and lists."""
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
    """How files of one format are read. Stateless; errors are PipelineErrors naming the file."""

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """The plain schema: from the footer, or from the head of a text file; None: it has no record."""

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """The columns of a file, as far as its head tells, to compare with those of another; None: it has no record
        that would tell. CSV: names alone, all as strings."""

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """The first record of a text file that cannot be read with any schema."""

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Rows of each part that can be read by itself; empty: the file is one part of unknown length."""

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        told: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """What follows position `at` (`Chunk.at`, 0: the start) of row groups [first, last) or the whole file, in
        batches of exactly `columns.emitted` and at most `ROWS_PER_PIECE` rows. Columns are taken by name.

        Args:
            told: what the file lacks or has beyond the schema; may raise. Before the chunk in which that shows.
        """


class FieldDifferenceListener(Protocol):
    """Receives the differences between a file and the schema."""

    def __call__(self, path: str, *, missing: Sequence[str] = (), new: Sequence[str] = ()) -> None:
        """Raise where that is not allowed."""


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet."""

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema:
        """From the footer."""
        with with_file_name(path), _parquet(filesystem, path) as file:
            return plain_schema(file.schema_arrow)

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Those of the footer."""
        return self.infer(filesystem, path)

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """None: the schema is in the footer."""
        return None

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Rows of each row group."""
        with with_file_name(path), _parquet(filesystem, path) as file:
            return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        told: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Row groups in order; those before `at`, a number of rows, are not read."""
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
                    "the columns of this file have other types than the schema",
                    where=path,
                    cause=f"column {name!r} is {there} there and {here} here",
                    remedy="Give schema= that fits all files, or read them as two sources",
                )
            if groups is None or groups[0] == 0:  # once a file
                told(path, missing=unlike.missing, new=unlike.new)
            present = [name for name in columns.emitted.names if name in file.schema_arrow.names]
            read = file.iter_batches(MAX_BATCH_ROWS, row_groups=list(range(first, last)), columns=present)
            for batch in read:
                begin = min(batch.num_rows, max(0, at - row))
                rows = batch.num_rows - begin
                row += batch.num_rows
                if rows:
                    wanted = _to_schema(batch.slice(begin), columns.emitted)
                    yield _checked(wanted, row, before + row - rows)
            if row < at:
                raise truncated_file_error(path, row, at)


@dataclass(frozen=True)
class CsvFormat:
    """CSV with a header line."""

    policy: FilePolicy

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """From the head of the file."""
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
        """Those of the header."""
        with with_file_name(path):
            names = self._header(filesystem, path, self.policy.text.to_utf8)[0]
        return pa.schema([pa.field(name, pa.string()) for name in names]) if names else None

    def first_bad(self, filesystem: AbstractFileSystem, path: str) -> BadRecord | None:
        """Of another number of values than the header has names, or no text."""
        decode = self.policy.text.to_utf8
        with with_file_name(path):
            names, begin = self._header(filesystem, path, decode)
            if not names:
                return None
            with open_text(filesystem, path, self.policy.text, begin) as stream:
                return _first_bad(stream, begin, CsvHead(names, self.policy.null_values), decode)

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Unknown."""
        return ()

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        told: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Block by block, from byte `at`."""
        decode = self.policy.text.to_utf8
        with with_file_name(path):
            names, begin = self._header(filesystem, path, decode)
            if not names:
                return
            refuse_doubled(path, names, columns.emitted.names)
            told(
                path,
                missing=[name for name in columns.emitted.names if name not in names],
                new=[name for name in names if name not in columns.known.names],
            )
            at = max(at, begin)
            parser = CsvParser(names, columns.emitted, self.policy.null_values, keeps_digits=columns.inferred)
            with open_text(filesystem, path, self.policy.text, at) as stream:
                yield from text_chunks(stream, parser, at, decode, stop_at_bad=self.policy.stops_at_bad)

    def _header(self, filesystem: AbstractFileSystem, path: str, decode: Decoder) -> tuple[list[str], int]:
        """The names in the first line with something on it, and where the next one begins; no names: there is none."""
        with open_text(filesystem, path, self.policy.text) as stream:
            for block in blocks(*without_bom(stream), csv_ends, HEADER_BLOCK_BYTES):
                for first, last in itertools.pairwise([0, *block.ends.tolist()]):
                    line = block.data[first:last]
                    if not line.strip(b"\r\n"):
                        continue
                    try:
                        return header_names(decode(line)), block.offset + last
                    except UndecodableRecordError as error:
                        raise refused(path, BadRecord(block.offset + first, line, f"its header: {error}")) from None
        return [], 0


@dataclass(frozen=True)
class JsonLinesFormat:
    """One JSON object a line."""

    policy: FilePolicy

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """From the head of the file."""
        return self.fields(filesystem, path)

    def fields(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema | None:
        """Those that any object in the head of the file has."""
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
        """That is no JSON object."""
        with with_file_name(path), open_text(filesystem, path, self.policy.text) as stream:
            rest, begin = without_bom(stream)
            return _first_bad(rest, begin, JsonHead(), self.policy.text.to_utf8)

    def _that_agree(self, text: bytes, path: str, begin: int, error: Exception) -> bytes:
        """The objects before the first that has a member of another type than those before it: that one is bad."""
        row = disagreeing_row(error)
        if row is None:
            raise error
        lines = [line for line in text.splitlines(keepends=True) if line.strip()]
        other = lines[min(row, len(lines) - 1)]
        if self.policy.stops_at_bad:
            why = f"{one_line(error).removeprefix('JSON parse error: ')} of the file; schema= can declare the type"
            raise refused(path, BadRecord(begin + text.index(other), other.strip(), why)) from None
        return b"".join(lines[: min(row, len(lines) - 1)])

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Unknown."""
        return ()

    def chunks(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        columns: FileSchema,
        groups: tuple[int, int] | None,
        at: int,
        told: FieldDifferenceListener,
    ) -> Iterator[Chunk]:
        """Block by block, from byte `at`. New fields are looked for where all are read, or none is allowed."""
        looks = columns.emitted.equals(columns.known) or self.policy.on_new_field == "fail"
        parser = JsonParser(columns, (lambda new: told(path, new=new)) if looks else None)
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
    """The first records that can be read, as UTF-8 text. Raises PipelineError for a bad one with `stop_at_bad`."""
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
    """Rows of a Parquet file from number `first_row` on, without those that hold text that is none: writers other than
    Arrow's do not look."""
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
                bad.append(BadRecord(first_row + begin, _decode_error(part), one_line(error)))
                return
            middle = (begin + end) // 2
            halves(begin, middle)
            halves(middle, end)

    halves(0, batch.num_rows)
    return Chunk(pa.concat_batches(good) if good else batch.slice(0, 0), tuple(bad), at)


def _decode_error(row: pa.RecordBatch) -> bytes:
    """The first value of a row that is no text."""
    for column in row.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            value: bytes = column.cast(pa.binary())[0].as_py() or b""
            try:
                value.decode()
            except UnicodeDecodeError:
                return value
    return b""
