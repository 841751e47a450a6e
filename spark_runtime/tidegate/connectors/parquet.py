"""Parquet: a folder of Parquet files, written with two-phase commit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.contract import Sink, SinkContext, SinkWriter
from tidegate.connectors.parquet_layout import ParquetLayout
from tidegate.connectors.parquet_writer import ParquetWriter
from tidegate.connectors.storage import absolute, check_target_folder, open_filesystem
from tidegate.contract.errors import OptionError, PipelineError

DEFAULT_TARGET_FILE_ROWS = 1_000_000


class Parquet(Sink):
    """Writes records to `<path>/part-*.parquet`, for pandas, pyarrow, DuckDB (`<path>/*.parquet`) and Spark to read.

    Guarantee: exactly once, end to end, for readers of those files: each record in front of a completed checkpoint's
    barrier is in one published file, once, whatever fails (S7.4). Files appear one by one within a commit, not all at
    one instant. One or more files per subtask and checkpoint that had records. How transactions are staged and
    published: `ParquetWriter`.

    Args:
        path: folder or fsspec URL of one; made when missing. Several jobs may share it, with one schema.
        storage_options: fsspec options; values may be references to secrets.
        target_file_rows: a file is closed, and the next begun, at about this many rows.

    Raises:
        OptionError: `target_file_rows` < 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        target_file_rows: int = DEFAULT_TARGET_FILE_ROWS,
    ) -> None:
        if target_file_rows < 1:
            raise OptionError(
                f"target_file_rows={target_file_rows} is too small",
                where="Parquet(target_file_rows=...)",
                remedy="Use 1 or more",
            )
        self._url = absolute(path)
        self._storage_options = dict(storage_options or {})
        self._target_file_rows = target_file_rows

    def check(self, schema: pa.Schema) -> None:
        """Whether Parquet has these types and the folder can be used, before anything runs.

        Raises:
            PipelineError: a column's type, the folder, or files of another schema in it.
        """
        stored = _stored_schema(schema, self._url)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        found = check_target_folder(filesystem, root, self._url)
        if found:
            _check_same(filesystem, found[0], stored)

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer into this subtask's staging folder."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        return ParquetWriter(filesystem, ParquetLayout(root, ctx), ctx, self._target_file_rows)

    def describe(self) -> str:
        """The path."""
        return f"Parquet({self._url!r})"


def _stored_schema(schema: pa.Schema, url: str) -> pa.Schema:
    if len(set(schema.names)) != len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise PipelineError("Column names repeat", where=url, cause=f"{twice}", remedy="Rename with select()")
    for field in schema:
        try:
            _round_trip(pa.schema([field]))
        except (pa.ArrowException, OSError) as e:
            raise PipelineError(
                f"Column {field.name!r} of type {field.type} cannot be written to Parquet",
                where=url,
                cause=str(e),
                remedy="Cast it with with_columns(), or leave it out with select()",
            ) from e
    return _round_trip(schema)


def _round_trip(schema: pa.Schema) -> pa.Schema:
    out = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), out)
    return pq.read_schema(pa.BufferReader(out.getvalue()))


def _check_same(filesystem: AbstractFileSystem, path: str, stored: pa.Schema) -> None:
    remedy = "Write to another folder, or remove what is there"
    try:
        with filesystem.open(path, "rb") as file:
            there = pq.read_schema(file)
    except (pa.ArrowException, OSError) as e:
        raise PipelineError(
            "A file in the sink's folder is not readable as Parquet", where=path, cause=str(e), remedy=remedy
        ) from e
    ours, theirs = [(f.name, f.type) for f in stored], [(f.name, f.type) for f in there]
    if ours != theirs:
        raise PipelineError(
            "The sink's folder holds files of another schema",
            where=path,
            cause=f"there: {_columns(theirs)}; to be written: {_columns(ours)}",
            remedy=remedy,
        )


def _columns(fields: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in fields)
