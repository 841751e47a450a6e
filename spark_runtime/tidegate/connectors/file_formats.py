"""Reading one file as record batches: Parquet, CSV, JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.storage import is_local
from tidegate.contract.errors import PipelineError

FormatName = Literal["parquet", "csv", "json"]

MAX_BATCH_ROWS = 65_536
READ_BLOCK_BYTES = 2**20
"""Text is parsed in blocks of this size, so that one poll takes a few milliseconds."""
INFER_BLOCK_BYTES = 4 * 2**20
"""Column types of text are found in the first block of this size."""

_SUFFIXES: dict[str, FormatName] = {
    "parquet": "parquet",
    "pq": "parquet",
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "xz": "xz", "zip": "zip", "zst": "zstd"}


def format_of(path: str) -> FormatName | None:
    """The format a file's name tells (`x.csv.gz` is CSV), or None."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")
    if parts[-1] in _COMPRESSIONS:
        parts.pop()
    return _SUFFIXES.get(parts[-1]) if len(parts) > 1 else None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without metadata and dictionary encoding, all columns nullable; a column without a single value is a string."""
    return pa.schema([pa.field(f.name, _plain_type(f.type)) for f in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    return kind.value_type if pa.types.is_dictionary(kind) else kind


class FileFormat(Protocol):
    """How files of one format are read. Stateless; errors are PipelineErrors naming the file."""

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema:
        """The plain schema: from the footer, or from the head of a text file."""

    def differs(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema, exact: bool) -> str:
        """Why the file does not have `schema` (as far as its head tells), or an empty string. `exact`: a column more
        is a difference too."""

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Rows of each part that can be read by itself; empty: the file is one part of unknown length."""

    def batches(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        schema: pa.Schema,
        groups: tuple[int, int] | None,
        skip_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """The records from number `skip_rows` on, of row groups [first, last) or the whole file, in batches of exactly
        `schema` and at most `MAX_BATCH_ROWS` rows. The columns of `schema` are taken by name; others are passed
        over."""


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet."""

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema:
        """From the footer."""
        with _naming(path, all_errors=True), _parquet(filesystem, path) as file:
            return plain_schema(file.schema_arrow)

    def differs(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema, exact: bool) -> str:
        """Columns missing or of another type."""
        there = self.infer(filesystem, path)
        missing = [f.name for f in schema if f.name not in there.names]
        if missing:
            return f"it has no column {missing[0]!r}"
        extra = [name for name in there.names if name not in schema.names]
        if exact and extra:
            return f"it has a column {extra[0]!r} more"
        for f in schema:
            kind = there.field(f.name).type
            if kind != f.type:
                return f"column {f.name!r} is {kind} there and {f.type} here"
        return ""

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Rows of each row group."""
        with _naming(path, all_errors=True), _parquet(filesystem, path) as file:
            return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]

    def batches(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        schema: pa.Schema,
        groups: tuple[int, int] | None,
        skip_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Row groups in order; those wholly skipped are not read."""
        with _naming(path, all_errors=True), _parquet(filesystem, path) as file:
            first, last = groups if groups is not None else (0, file.metadata.num_row_groups)
            while first < last and file.metadata.row_group(first).num_rows <= skip_rows:
                skip_rows -= file.metadata.row_group(first).num_rows
                first += 1
            missing = [name for name in schema.names if name not in file.schema_arrow.names]
            if missing:
                raise _lacks(path, missing, file.schema_arrow.names)
            read = file.iter_batches(MAX_BATCH_ROWS, row_groups=list(range(first, last)), columns=schema.names)
            yield from _skipping(read, schema, skip_rows, path, _RowCount())


@dataclass(frozen=True)
class CsvFormat:
    """CSV with a header line. `null_values`: texts that mean null, in every type."""

    null_values: tuple[str, ...]

    def _open(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema | None, block_bytes: int) -> Any:
        convert = pa_csv.ConvertOptions(null_values=list(self.null_values), strings_can_be_null=True)
        if schema is not None:
            convert.column_types = schema
            convert.include_columns = schema.names
        return pa_csv.open_csv(
            _text(filesystem, path),
            read_options=pa_csv.ReadOptions(block_size=block_bytes, use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=convert,
        )

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema:
        """From the first block."""
        with _naming(path, all_errors=True), self._open(filesystem, path, None, INFER_BLOCK_BYTES) as reader:
            return plain_schema(reader.schema)

    def differs(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema, exact: bool) -> str:
        """Columns missing in the header; wrong values show when they are read."""
        names = self.infer(filesystem, path).names
        missing = [name for name in schema.names if name not in names]
        if missing:
            return f"it has no column {missing[0]!r}"
        extra = [name for name in names if name not in schema.names]
        return f"it has a column {extra[0]!r} more" if exact and extra else ""

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Unknown."""
        return ()

    def batches(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        schema: pa.Schema,
        groups: tuple[int, int] | None,
        skip_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Read block by block; skipped rows are read and dropped."""
        count = _RowCount()
        try:
            with _naming(path), self._open(filesystem, path, schema, READ_BLOCK_BYTES) as reader:
                yield from _skipping(reader, schema, skip_rows, path, count)
        except pa.ArrowInvalid as e:
            names = self.infer(filesystem, path).names
            raise _bad_value(path, count.rows, _NUMBERED_COLUMN.sub(lambda m: _name_of(m, names), str(e))) from e


@dataclass(frozen=True)
class JsonLinesFormat:
    """One JSON object a line. `strict`: an unknown member is an error instead of being passed over."""

    strict: bool

    def _open(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema | None, block_bytes: int) -> Any:
        unexpected = "infer" if schema is None else "error" if self.strict else "ignore"
        return pa_json.open_json(
            _text(filesystem, path),
            read_options=pa_json.ReadOptions(block_size=block_bytes, use_threads=False),
            parse_options=pa_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=unexpected
            ),
        )

    def infer(self, filesystem: AbstractFileSystem, path: str) -> pa.Schema:
        """From the first block."""
        with _naming(path, all_errors=True), self._open(filesystem, path, None, INFER_BLOCK_BYTES) as reader:
            return plain_schema(reader.schema)

    def differs(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema, exact: bool) -> str:
        """Nothing: any member may be missing from an object."""
        return ""

    def row_groups(self, filesystem: AbstractFileSystem, path: str) -> Sequence[int]:
        """Unknown."""
        return ()

    def batches(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        schema: pa.Schema,
        groups: tuple[int, int] | None,
        skip_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Read block by block; skipped rows are read and dropped."""
        count = _RowCount()
        try:
            with _naming(path), self._open(filesystem, path, schema, READ_BLOCK_BYTES) as reader:
                yield from _skipping(reader, schema, skip_rows, path, count)
        except pa.ArrowInvalid as e:
            raise _bad_value(path, count.rows, str(e)) from e


@contextmanager
def _parquet(filesystem: AbstractFileSystem, path: str) -> Iterator[pq.ParquetFile]:
    if is_local(filesystem):
        with pq.ParquetFile(path) as file:
            yield file
        return
    with filesystem.open(path, "rb") as handle, pq.ParquetFile(handle) as file:
        yield file


def _text(filesystem: AbstractFileSystem, path: str) -> Any:
    """An Arrow stream over the file's text; closing the reader closes it."""
    suffix = path.rsplit(".", 1)[-1].lower()
    if suffix == "zst":
        # fsspec needs a package of its own for it.
        return pa.CompressedInputStream(pa.PythonFile(filesystem.open(path, "rb"), mode="r"), "zstd")
    return pa.PythonFile(filesystem.open(path, "rb", compression=_COMPRESSIONS.get(suffix)), mode="r")


@dataclass
class _RowCount:
    """Rows of the file decoded so far, for messages."""

    rows: int = 0


def _skipping(
    read: Iterator[pa.RecordBatch], schema: pa.Schema, skip_rows: int, path: str, count: _RowCount
) -> Iterator[pa.RecordBatch]:
    for batch in read:
        begin = min(batch.num_rows, max(0, skip_rows - count.rows))
        count.rows += batch.num_rows
        if begin < batch.num_rows:
            batch = _conform(batch, schema)
        for start in range(begin, batch.num_rows, MAX_BATCH_ROWS):
            yield batch.slice(start, MAX_BATCH_ROWS)
    if count.rows < skip_rows:
        raise PipelineError(
            f"The file has {count.rows:,} rows where {skip_rows:,} had been read",
            where=path,
            cause="it was changed since",
            remedy="Bring the file back, or start without the snapshot",
        )


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _naming(path: str, *, all_errors: bool = False) -> Iterator[None]:
    """Turns errors of opening and reading into ones that name the file; ArrowInvalid (wrong values) only with
    `all_errors`, for the text readers know the row and the column."""
    try:
        yield
    except (pa.ArrowException, KeyError) as e:
        if isinstance(e, pa.ArrowInvalid) and not all_errors:
            raise
        raise PipelineError(
            "Cannot read this file", where=path, cause=_line(e), remedy="Check format=, schema= and columns="
        ) from e
    except OSError as e:
        raise PipelineError(
            "Cannot open this file", where=path, cause=_line(e), remedy="Check that it is there and readable"
        ) from e


def _lacks(path: str, missing: Sequence[str], there: Sequence[str]) -> PipelineError:
    return PipelineError(
        f"The file has no column {missing[0]!r}",
        where=path,
        cause=f"its columns are {', '.join(there)}",
        remedy="Check columns= and schema=",
    )


def _bad_value(path: str, rows: int, cause: str) -> PipelineError:
    return PipelineError(
        "A value in this file does not fit its column's type",
        where=f"{path}, rows from {rows + 1:,} on",
        cause=cause,
        remedy="Give the right types with schema=, or mend the file",
    )


_NUMBERED_COLUMN = re.compile(r"In CSV column #(\d+)")
"""How Arrow names a column of the file."""


def _name_of(match: re.Match[str], names: Sequence[str]) -> str:
    number = int(match[1])
    return f"column {names[number]!r}" if number < len(names) else match[0]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
