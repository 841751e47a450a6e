"""Splits of rows that a driver made Spark write to the job directory: Parquet files, each row once (S4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.files.source.file_schema import FilePolicy
from tidegate.connectors.files.source.file_set import FileSet
from tidegate.connectors.files.source.files import Files, FilesReader, file_of
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.errors import PipelineError


def splits_of_files(
    urls: Sequence[str], schema: pa.Schema, storage_options: Mapping[str, Any], parallelism: int
) -> list[Split]:
    """The splits of files that were written, none for none. Each says where it lies: readers know nothing else.

    Args:
        storage_options: of the job directory, with references to secrets.
    """
    if not urls:
        return []
    source = Files(list(urls), format="parquet", schema=schema, storage_options=storage_options)
    # These file names are never reused, and a job directory may be copied: only the size is compared.
    place = {"storage_options": dict(storage_options), "mtime": None, "etag": None}
    return [
        replace(split, data={**split.data, "url": urls[split.data["given"]], **place})
        for split in source.discover(parallelism)
    ]


class MaterialisedReader(SourceReader):
    """Reader of one split after the other, as `FilesReader`."""

    def __init__(self, schema: pa.Schema, columns: Sequence[str] | None = None) -> None:
        """Create the reader. Args: columns: columns of the schema that the job uses; None: all."""
        self._schema = schema
        self._columns = columns
        self._reader: FilesReader | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits; no file is opened yet."""
        if splits:
            files = _file_set(self._schema, splits)
            self._reader = FilesReader(files if self._columns is None else files.reading_only(self._columns))
            self._reader.add_splits(splits)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch."""
        return PollResult(state="end") if self._reader is None else self._reader.poll(now_ms)

    def snapshot(self) -> Sequence[Split]:
        """Return all splits; the split being read has its position."""
        return () if self._reader is None else self._reader.snapshot()

    def progress(self) -> Mapping[str, Any]:
        """See `FilesReader.progress`."""
        return {} if self._reader is None else self._reader.progress()

    def counters(self) -> Mapping[str, int]:
        """See `FilesReader.counters`."""
        return {} if self._reader is None else self._reader.counters()

    def close(self) -> None:
        """Close the open file."""
        if self._reader is not None:
            self._reader.close()


def unavailable_files(schema: pa.Schema, splits: Sequence[Split]) -> list[tuple[str, str]]:
    """Return (split id, reason) of each split whose file is missing or has another size."""
    found = []
    for split in splits:
        found.append((split.split_id, _file_set(schema, [split]).why_unreadable(file_of(split))))
    return [(split_id, why) for split_id, why in found if why]


def as_declared(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return rows of a DataFrame in the schema that its source declares. Raises PipelineError with the column name."""
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise PipelineError(
                f"column {field.name!r} of the DataFrame cannot be converted to {field.type}",
                where=where,
                cause=f"the column of the DataFrame is of type {column.type}: {error}",
                remedy=f"Declare {column.type} for {field.name!r} in schema=, or cast the column in the DataFrame",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _file_set(schema: pa.Schema, splits: Sequence[Split]) -> FileSet:
    data = splits[0].data
    return FileSet(
        [data["url"]],
        format="parquet",
        schema=schema,
        columns=None,
        storage_options=data["storage_options"],
        policy=FilePolicy(on_missing_field="fail"),
    )
