"""Csv and JsonLines: sinks that write folders of text files with two-phase commit."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pa_csv
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.existing_output import IfExists
from tidegate.connectors.files.sink.file_sink import (
    DEFAULT_TARGET_FILE_ROWS,
    DEFAULT_TARGET_FILE_SIZE,
    NOT_COMPACTED,
    OTHER_FOLDER,
    FileSink,
)
from tidegate.connectors.files.sink.json_text import is_text_type, json_type_problem
from tidegate.connectors.files.sink.text_encodings import (
    COMPRESSION_SUFFIXES,
    Compression,
    CsvEncoding,
    JsonLinesEncoding,
    compression_of,
    extend_lines,
)
from tidegate.errors import OptionError, PipelineError
from tidegate.units import ByteSize


class TextSink(FileSink):
    """Base of the two text sinks. Raises OptionError as `Parquet`, and for an unknown compression."""

    _suffix: ClassVar[str]
    _format: ClassVar[type[CsvEncoding | JsonLinesEncoding]]
    _is_extended_by_lines: ClassVar[bool] = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] = (),
        compression: Compression | None = None,
        storage_options: Mapping[str, Any] | None = None,
        target_file_rows: int = DEFAULT_TARGET_FILE_ROWS,
        target_file_size: str | ByteSize = DEFAULT_TARGET_FILE_SIZE,
        if_exists: IfExists = "error",
        compact_below: str | ByteSize = NOT_COMPACTED,
    ) -> None:
        if compression not in COMPRESSION_SUFFIXES:
            raise OptionError(
                f"compression={compression!r} is unknown",
                where=f"{type(self).__name__}(compression=...)",
                remedy='Use "gzip", "zstd" or None',
            )
        super().__init__(
            path,
            self._format(compression),
            partition_by=partition_by,
            storage_options=storage_options,
            target_file_rows=target_file_rows,
            target_file_size=target_file_size,
            if_exists=if_exists,
            compact_below=compact_below,
            extend=extend_lines if self._is_extended_by_lines else None,
        )
        if self._compact_below and not self._is_extended_by_lines:
            raise OptionError(
                f"{type(self).__name__} has no compact_below",
                where=f"{type(self).__name__}(compact_below=...)",
                cause="each file begins with a header line",
                remedy="Leave it out, or write JsonLines or Parquet",
            )

    @property
    def _suffixes(self) -> tuple[str, ...]:
        return tuple(f"{self._suffix}{compression}" for compression in COMPRESSION_SUFFIXES.values())

    @abstractmethod
    def _problem(self, kind: pa.DataType) -> str:
        """Return why a column of this type cannot be written, or an empty string."""

    def _check_types(self, schema: pa.Schema) -> None:
        for field in schema:
            if problem := self._problem(field.type):
                raise PipelineError(
                    f"{type(self).__name__} cannot write column {field.name!r} of type {field.type}",
                    where=self._url,
                    cause=problem,
                    remedy="Convert the column to a string with map_in_arrow(), cast it, or leave it out with select()",
                )


class Csv(TextSink):
    """Writes records to `<path>/part-*.csv`, each file with a header line.

    Guarantee, files, `path`, `partition_by`, `storage_options`, `target_file_rows`, `target_file_size`, `if_exists`:
    see `Parquet`.

    Values (RFC 4180, UTF-8, lines end with a line feed): strings, dates and times in quotes, `""` for a quotation mark
    in a string. Null is an empty field without quotes, an empty string is `""`; in a file of one column both are `""`.
    Timestamps are ISO 8601; timestamps with a zone are in UTC with a `Z`. Floats have all significant digits; `nan`,
    `inf`, `-inf`. Binary, durations, lists and structs are refused.

    Args:
        compression: None, "gzip" or "zstd"; file names then end with `.gz` or `.zst`.

    Raises:
        OptionError: as `Parquet`; an unknown compression; `compact_below`, which this sink does not have.
    """

    _suffix = ".csv"
    _format_name = "csv"
    _format = CsvEncoding

    def _problem(self, kind: pa.DataType) -> str:
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        return "" if is_text_type(plain) else f"CSV has no type for {kind}"

    def _check_same(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema) -> None:
        """Compare by the header of the file."""
        try:
            with filesystem.open(path, "rb") as file:
                stream = pa.input_stream(file, compression=compression_of(path))
                there = pa_csv.open_csv(stream).schema.names
        except (pa.ArrowException, OSError) as e:
            raise PipelineError(
                "an existing file in the sink's folder is not readable as CSV",
                where=path,
                cause=str(e),
                remedy=OTHER_FOLDER,
            ) from e
        if there != schema.names:
            raise PipelineError(
                "an existing file in the sink's folder has other columns than the sink",
                where=path,
                cause=f"the file has {', '.join(there)}; the sink has {', '.join(schema.names)}",
                remedy=OTHER_FOLDER,
            )


class JsonLines(TextSink):
    """Writes records to `<path>/part-*.jsonl`, one JSON object per line, members in the order of the columns.

    Guarantee, files, `path`, `partition_by`, `storage_options`, `target_file_rows`, `target_file_size`, `if_exists`,
    `compact_below`: see `Parquet`.

    Values (RFC 8259, UTF-8): null is written, not left out. Lists and structs are arrays and objects. Integers and
    decimals are numbers with all their digits, also where the numbers of a reader hold fewer. Floats have all
    significant digits, whole ones with `.0`; **NaN and infinities, which JSON lacks, are null**. Dates, times and
    timestamps are ISO 8601 strings; timestamps with a zone are in UTC with a `Z`. Binary, durations and maps are
    refused.

    Args:
        compression: None, "gzip" or "zstd"; file names then end with `.gz` or `.zst`.

    Raises:
        OptionError: as `Parquet`; an unknown compression.
    """

    _suffix = ".jsonl"
    _format_name = "json"
    _format = JsonLinesEncoding
    _is_extended_by_lines = True

    def _problem(self, kind: pa.DataType) -> str:
        return json_type_problem(kind)
