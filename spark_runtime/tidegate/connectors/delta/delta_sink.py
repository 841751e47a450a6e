"""Delta: a Delta Lake table, appended to with two-phase commit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.delta.delta_log import DeltaLog, log_options, require_deltalake
from tidegate.connectors.delta.delta_schema import stored_schema
from tidegate.connectors.delta.delta_writer import DeltaWriter
from tidegate.connectors.files.sink.file_leftovers import FileLeftovers
from tidegate.connectors.files.sink.file_sink import DEFAULT_TARGET_FILE_ROWS, DEFAULT_TARGET_FILE_SIZE, file_cut
from tidegate.connectors.files.sink.hive_partitions import partition_columns
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.files.sink.staged_files import quarantine_files, staged_files
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.storage import absolute_url, check_target_folder, is_local, list_folder, open_filesystem
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import PipelineError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity
from tidegate.units import ByteSize


class Delta(Sink):
    """Appends records to a Delta Lake table, for Spark, DuckDB, Polars and every other reader of Delta. Needs the extra
    `tidegate[delta]`.

    Guarantee: exactly once, end to end, for readers of the table: each record in front of a completed checkpoint's
    barrier is in the table once, whatever fails (S7.4). Each subtask's records of a checkpoint appear at one instant,
    as one version of the table; versions of several subtasks follow each other. Others may append to, compact and
    vacuum the table meanwhile. How transactions are staged and published: `DeltaWriter`.

    Args:
        path: the table's folder, local or on S3 (`s3://`, where creating an object only if it is absent must work). A
            missing table is made at the first commit, with the records' columns.
        partition_by: columns of strings, integers, booleans or dates; an existing table's must be the same.
        storage_options: fsspec options, as for `Parquet`; values may be references to secrets.
        target_file_rows: a file is closed, and the next begun, at about this many rows,
        target_file_size: or at about this size on disk, as text: "256 MiB". A subtask writes at least one file per
            checkpoint and partition that had records.

    Raises:
        OptionError: `target_file_rows` or `target_file_size` < 1, or a column twice in `partition_by`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        target_file_rows: int = DEFAULT_TARGET_FILE_ROWS,
        target_file_size: str | ByteSize = DEFAULT_TARGET_FILE_SIZE,
    ) -> None:
        self._url = absolute_url(path)
        self._partition_by = partition_columns(partition_by, "Delta(partition_by=...)")
        self._storage_options = dict(storage_options or {})
        self._cut = file_cut(target_file_rows, target_file_size, "Delta")

    def check(self, schema: pa.Schema) -> None:
        """Whether Delta has these types and names, and the table, if there is one, takes such files, before anything
        runs. Changes nothing.

        Raises:
            PipelineError: the package is missing; a column, the folder, or a table that differs or demands more.
        """
        require_deltalake(self._url)
        stored = stored_schema(schema, self._partition_by, self._url)
        options = log_options(self._url, self._storage_options)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        check_target_folder(filesystem, root, self._url)
        log = DeltaLog(self._url, root if is_local(filesystem) else self._url, options, stored, self._partition_by)
        files = [path for path in list_folder(filesystem, root)[0] if path.endswith(".parquet")]
        if log.find() is None and files:
            raise PipelineError(
                "The folder holds Parquet files and is no Delta table",
                where=files[0],
                remedy="Write to another folder, or turn this one into a table (deltalake.convert_to_deltalake)",
            )

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer into this subtask's staging folder; the table is not touched before the first commit."""
        require_deltalake(self._url)
        stored = stored_schema(ctx.schema, self._partition_by, self._url)
        options = log_options(self._url, self._storage_options)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        location = root if is_local(filesystem) else self._url
        log = DeltaLog(self._url, location, options, stored, self._partition_by)
        return DeltaWriter(filesystem, FileLayout(root, ctx), ctx, self._cut, log, stored, self._partition_by)

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Moves the staged files."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        quarantine_files(filesystem, FileLayout(root, ctx), ctx, committables, into)

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Removes staged files, and packs commit markers."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        return FileLeftovers(filesystem, FileLayout(root, ctx), needed).collect(dry_run=dry_run)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """The Parquet files in the staging folder."""
        root = open_filesystem(self._url, self._storage_options)[1]
        return staged_files(self._url, FileLayout(root, ctx), ctx.uid, checkpoint_id, handle)

    def identity(self) -> SinkIdentity:
        """The path and the partition columns."""
        by = {"partition_by": list(self._partition_by)} if self._partition_by else {}
        return SinkIdentity("Delta", (self._url,), by)
