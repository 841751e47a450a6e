"""CSV and JSON lines as encodings of file sinks, plain or compressed."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.types as pt

from tidegate.connectors.files.sink.json_text import json_lines, time_texts

Compression = Literal["gzip", "zstd"]

COMPRESSION_SUFFIXES: dict[str | None, str] = {None: "", "gzip": ".gz", "zstd": ".zst"}
GROUP_ROWS = 16_384
"""Small enough that one group occupies the slot's loop for about ten milliseconds."""
GROUP_BYTES = 2**20
GZIP_LEVEL = 1
"""Three times as fast as gzip's default level, for about 17 % more bytes. Users who want small files choose zstd."""


def compression_of(path: str) -> str | None:
    """Return the compression by a file's name."""
    return {".gz": "gzip", ".zst": "zstd"}.get(os.path.splitext(path)[1])


@dataclass(frozen=True)
class TextEncoding:
    """Common part of the two text encodings."""

    compression: Compression | None = None

    group_rows = GROUP_ROWS
    group_bytes = GROUP_BYTES


@dataclass(frozen=True)
class CsvEncoding(TextEncoding):
    """CSV with a header line in every file."""

    @property
    def suffix(self) -> str:
        """Return `.csv`, `.csv.gz` or `.csv.zst`."""
        return f".csv{COMPRESSION_SUFFIXES[self.compression]}"

    def open(self, path: str, schema: pa.Schema) -> OpenCsv:
        """Begin a file."""
        return OpenCsv(CompressedFile(path, self.compression), schema)


@dataclass(frozen=True)
class JsonLinesEncoding(TextEncoding):
    """One JSON object per line."""

    @property
    def suffix(self) -> str:
        """Return `.jsonl`, `.jsonl.gz` or `.jsonl.zst`."""
        return f".jsonl{COMPRESSION_SUFFIXES[self.compression]}"

    def open(self, path: str, schema: pa.Schema) -> OpenJsonLines:
        """Begin a file."""
        return OpenJsonLines(CompressedFile(path, self.compression))


def extend_lines(old: str, staged: str, new: str) -> None:
    """Write a file with the lines of two files. Compressed files that follow each other are one compressed file."""
    with open(new, "wb") as file:
        for path in (old, staged):
            with open(path, "rb") as source:
                while block := source.read(2**20):
                    file.write(block)


class CompressedFile:
    """A local file that compresses the bytes written to `stream`."""

    def __init__(self, path: str, compression: Compression | None) -> None:
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self.stream: Any = self._file
        if compression == "gzip":
            # The header holds neither a file name nor a time, so that equal records give equal bytes.
            self.stream = gzip.GzipFile("", "wb", GZIP_LEVEL, self._file, mtime=0)
        elif compression == "zstd":
            self.stream = pa.CompressedOutputStream(pa.PythonFile(self._file, mode="w"), "zstd")

    def size_bytes(self) -> int:
        """Return the compressed bytes written so far."""
        return self._file.tell()

    def close(self) -> None:
        """End the compressed stream; may be called again."""
        if not self._file.closed:
            self.stream.close()
            self._file.close()


class OpenJsonLines:
    """A file of JSON lines."""

    def __init__(self, file: CompressedFile) -> None:
        self._file = file
        self.size_bytes = file.size_bytes
        self.close = file.close

    def write(self, table: pa.Table) -> None:
        """Append lines."""
        for batch in table.combine_chunks().to_batches():
            for lines in json_lines(batch):
                self._file.stream.write(lines)


class OpenCsv:
    """A CSV file. Strings are in quotes; null is an empty field without quotes.

    In a file with one column, null is `""`, because readers skip an empty line.
    """

    def __init__(self, file: CompressedFile, schema: pa.Schema) -> None:
        self._file = file
        self._alone = len(schema) == 1
        self._schema = pa.schema([(field.name, self._written(field.type)) for field in schema])
        options = pa_csv.WriteOptions(batch_size=GROUP_ROWS)
        self._writer = pa_csv.CSVWriter(file.stream, self._schema, write_options=options)
        self.size_bytes = file.size_bytes

    def _written(self, kind: pa.DataType) -> pa.DataType:
        if pt.is_dictionary(kind):
            return self._written(kind.value_type)
        as_it_is = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_decimal(kind)
        # Arrow's CSV writer puts only strings in quotes, and a file with one column needs `""` for null.
        return kind if as_it_is and not self._alone else pa.string()

    def write(self, table: pa.Table) -> None:
        """Append lines."""
        for batch in table.combine_chunks().to_batches():
            columns = [self._column(column, field.type) for column, field in zip(batch.columns, self._schema)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _column(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        if pt.is_dictionary(column.type):
            column = column.dictionary_decode()
        texts = time_texts(column) if pt.is_timestamp(column.type) else column.cast(kind)
        return texts.fill_null("") if self._alone else texts

    def close(self) -> None:
        """Close the file; may be called again."""
        self._writer.close()
        self._file.close()
