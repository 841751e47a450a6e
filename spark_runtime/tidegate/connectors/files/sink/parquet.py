"""Parquet: a sink that writes a folder of Parquet files with two-phase commit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.existing_output import IfExists
from tidegate.connectors.files.sink.file_sink import (
    DEFAULT_TARGET_FILE_ROWS,
    DEFAULT_TARGET_FILE_SIZE,
    NOT_COMPACTED,
    OTHER_FOLDER,
    FileSink,
)
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding, extend_parquet
from tidegate.errors import PipelineError
from tidegate.units import ByteSize


class Parquet(FileSink):
    """Writes records to `<path>/part-*.parquet`, for readers such as pandas, pyarrow, DuckDB (`<path>/*.parquet`) and
    Spark.

    Guarantee: exactly once, end to end, for readers of those files. Each record before a completed checkpoint's barrier
    is in one published file, once, whatever fails (S7.4). Files appear one by one within a commit, not all at one
    instant. There are one or more files per subtask, partition and checkpoint that had records. `FileWriter` describes
    how transactions are staged and published.

    Args:
        path: path or fsspec URL of a folder; created when missing. Several jobs may share it, with one schema and
            partitioning and `if_exists="append"`.
        partition_by: columns whose values become folders (`day=2026-11-21/`) and are left out of the files: strings,
            integers, booleans or dates.
        storage_options: fsspec options; values may be references to secrets.
        target_file_rows: approximate number of rows at which a file is closed and the next begun.
        target_file_size: approximate size on disk at which a file is closed and the next begun, as text: "256 MiB".
        compact_below: size up to which files are small, such as "32 MiB"; "0 B": files do not grow. A commit then
            extends the last small file that this subtask has published in a partition, in one step, instead of adding a
            file. It copies that file. Only on file systems with a rename.
        if_exists: what a fresh start does if the folder already holds Parquet files. "error" refuses the start before
            anything runs; "append" keeps the files; "overwrite" removes them with the first commit, so that a start
            that fails removes nothing. A restore or restart keeps what the job itself published. A restore to an
            earlier snapshot does not bring removed files back. With "overwrite", the existing files may have another
            schema or partitioning.

    Raises:
        OptionError: `target_file_rows` or `target_file_size` < 1, a repeated column in `partition_by`, or an unknown
            `if_exists`.
    """

    _format_name = "parquet"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        target_file_rows: int = DEFAULT_TARGET_FILE_ROWS,
        target_file_size: str | ByteSize = DEFAULT_TARGET_FILE_SIZE,
        if_exists: IfExists = "error",
        compact_below: str | ByteSize = NOT_COMPACTED,
    ) -> None:
        super().__init__(
            path,
            ParquetEncoding(),
            partition_by=partition_by,
            storage_options=storage_options,
            target_file_rows=target_file_rows,
            target_file_size=target_file_size,
            if_exists=if_exists,
            compact_below=compact_below,
            extend=extend_parquet,
        )

    @property
    def _suffixes(self) -> tuple[str, ...]:
        return (".parquet",)

    def _check_types(self, schema: pa.Schema) -> None:
        for field in schema:
            try:
                _round_trip(pa.schema([field]))
            except (pa.ArrowException, OSError) as e:
                raise PipelineError(
                    f"column {field.name!r} of type {field.type} cannot be written to Parquet",
                    where=self._url,
                    cause=str(e),
                    remedy="Cast the column with with_columns(), or leave it out with select()",
                ) from e

    def _check_same(self, filesystem: AbstractFileSystem, path: str, schema: pa.Schema) -> None:
        try:
            with filesystem.open(path, "rb") as file:
                there = pq.read_schema(file)
        except (pa.ArrowException, OSError) as e:
            raise PipelineError(
                "an existing file in the sink's folder is not readable as Parquet",
                where=path,
                cause=str(e),
                remedy=OTHER_FOLDER,
            ) from e
        ours, theirs = [(f.name, f.type) for f in _round_trip(schema)], [(f.name, f.type) for f in there]
        if ours != theirs:
            raise PipelineError(
                "an existing file in the sink's folder has another schema than the sink",
                where=path,
                cause=f"the file has {_columns(theirs)}; the sink has {_columns(ours)}",
                remedy=OTHER_FOLDER,
            )


def _round_trip(schema: pa.Schema) -> pa.Schema:
    out = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), out)
    return pq.read_schema(pa.BufferReader(out.getvalue()))


def _columns(fields: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in fields)
