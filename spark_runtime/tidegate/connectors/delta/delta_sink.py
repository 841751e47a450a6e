"""Delta: a sink that appends to a Delta Lake table, or upserts by key, with two-phase commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.change_rows import change_kind_column
from tidegate.connectors.delta.delta_log import DeltaLog, log_options, require_deltalake
from tidegate.connectors.delta.delta_restore import DeltaRestore
from tidegate.connectors.delta.delta_rewind import DeltaRewind
from tidegate.connectors.delta.delta_schema import check_creatable, stored_schema
from tidegate.connectors.delta.delta_upsert_writer import DeltaUpsertWriter
from tidegate.connectors.delta.delta_writer import DeltaWriter
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.files.sink.file_leftovers import FileLeftovers
from tidegate.connectors.files.sink.file_sink import DEFAULT_TARGET_FILE_ROWS, DEFAULT_TARGET_FILE_SIZE, file_cut
from tidegate.connectors.files.sink.hive_partitions import partition_columns
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.files.sink.staged_files import quarantine_files, staged_files
from tidegate.connectors.interface import NO_CHECKPOINT, Sink, SinkWriter
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.storage import absolute_url, check_target_folder, is_local, list_folder, open_filesystem
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.connectors.upserts.upsert_staging import quarantine_keys
from tidegate.connectors.upserts.write_mode import (
    IfRows,
    WriteMode,
    check_if_rows,
    check_key,
    existing_rows_error,
    key_columns,
    refuses_rows,
    rows_schema,
)
from tidegate.errors import PipelineError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity
from tidegate.units import ByteSize


class Delta(Sink):
    """Appends records to a Delta Lake table, or upserts them by key, for Spark, DuckDB, Polars and every other reader
    of Delta.

    Needs the extra `tidegate[delta]`. Guarantee: exactly once, end to end, for readers of the table. Each record before
    a completed checkpoint's barrier is in the table once, whatever fails (S7.4). Each subtask's records of a checkpoint
    appear at one instant, as one version of the table; the versions of several subtasks follow one another. Other
    writers may append to, compact and vacuum the table meanwhile. `DeltaWriter` describes how transactions are staged
    and published. With `upsert`, the records of all subtasks for a checkpoint normally appear as one version;
    `DeltaUpsertWriter` describes it.

    Args:
        path: the table's folder, local or on S3 (`s3://`; the store must support creating an object only if it is
            absent). A missing table is created at the first commit, with the records' columns.
        mode: `append` adds rows. `upsert` adds a row or, if rows with its key exist, replaces them by it. If a
            checkpoint has several rows with a key, the last wins, and a later checkpoint wins over an earlier one. All
            rows of a key must arrive through one subtask, as they do downstream of `group_by(key)`.
        key: with `upsert`: the column or columns of the key, never null. The table need not be unique by it: a row
            replaces all rows of its key. Change rows (`tidegate.change_rows`) need `upsert`: an insert or update_after
            upserts its row, a delete or update_before deletes the rows with its key. The last change of a key in a
            checkpoint wins.
        partition_by: columns of strings, integers, booleans or dates; an existing table must have the same ones.
        storage_options: fsspec options, as for `Parquet`; values may be references to secrets.
        target_file_rows: approximate number of rows at which a file is closed and the next begun.
        target_file_size: approximate size on disk at which a file is closed and the next begun, as text: "256 MiB". A
            subtask writes at least one file per checkpoint and partition that had records.
        if_exists: what happens at a fresh start if the table has rows: "append" keeps them, "error" refuses the start.
            None: "error" for change rows, because rows that were deleted at their source would stay; else "append".

    Raises:
        OptionError: mode and key do not fit, `target_file_rows` or `target_file_size` < 1, or a repeated column.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: WriteMode = "append",
        key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        target_file_rows: int = DEFAULT_TARGET_FILE_ROWS,
        target_file_size: str | ByteSize = DEFAULT_TARGET_FILE_SIZE,
        if_exists: IfRows | None = None,
    ) -> None:
        check_if_rows(if_exists, "Delta")
        self._if_exists = if_exists
        self._url = absolute_url(path)
        self._key = key_columns(mode, key, "Delta")
        self._partition_by = partition_columns(partition_by, "Delta(partition_by=...)")
        self._storage_options = dict(storage_options or {})
        self._cut = file_cut(target_file_rows, target_file_size, "Delta")

    def check(self, schema: pa.Schema) -> None:
        """Check, before anything runs, that Delta has these types and names, and that an existing table accepts such
        files.

        Changes nothing.

        Raises:
            PipelineError: the package is missing; or a column, the folder, or an existing table does not fit.
        """
        require_deltalake(self._url)
        kind = change_kind_column(schema)
        if kind is not None and not self._key:
            raise PipelineError(
                "the Delta sink appends rows, and cannot apply change rows",
                where=self._url,
                cause=f"column {kind!r} holds kinds of change",
                remedy='Use mode="upsert" with key=; or store the changes as rows, with changes_as_rows()',
            )
        check_key(rows_schema(schema), self._key, self._url)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        log, stored = self._log(filesystem, root, schema)
        check_target_folder(filesystem, root, self._url)
        table = log.find()
        if table is None:
            check_creatable(stored, self._url)
        files = [path for path in list_folder(filesystem, root)[0] if path.endswith(".parquet")]
        if table is None and files:
            raise PipelineError(
                "the folder of the Delta sink holds Parquet files, but is not a Delta table",
                where=files[0],
                remedy="Write to another folder, or convert the folder to a Delta table with "
                "deltalake.convert_to_deltalake",
            )

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Check that the table has no rows, if `if_exists` demands it. Raises PipelineError if it has."""
        if not refuses_rows(self._if_exists, ctx.schema):
            return
        filesystem, root = open_filesystem(self._url, self._storage_options)
        table = self._log(filesystem, root, ctx.schema)[0].find()
        if table is not None and table.file_uris():
            raise existing_rows_error(f"sink {ctx.uid!r}, {self._url}")

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer into this subtask's staging folder. The table is not changed before the first commit."""
        require_deltalake(self._url)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        log, stored = self._log(filesystem, root, ctx.schema)
        layout = FileLayout(root, ctx)
        if not self._key:
            return DeltaWriter(filesystem, layout, ctx, self._cut, log, stored, self._partition_by)
        files = LogFiles(self._url, self._storage_options)
        return DeltaUpsertWriter(filesystem, layout, ctx, self._cut, log, stored, self._partition_by, files, self._key)

    def _log(self, filesystem: AbstractFileSystem, root: str, records: pa.Schema) -> tuple[DeltaLog, pa.Schema]:
        """Return the table's log, and the columns that are stored."""
        stored = stored_schema(rows_schema(records), self._partition_by, self._url)
        options = log_options(self._url, self._storage_options)
        location = root if is_local(filesystem) else self._url
        log = DeltaLog(self._url, location, options, stored, self._partition_by, upserts=bool(self._key))
        return log, stored

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Return the function that removes what was committed after the checkpoint from the table, in one version.

        Appended files leave the table, and rows of other writers stay. With `upsert`, the table gets the files of its
        version before; other programs must not have changed rows since. The files themselves stay until VACUUM deletes
        them, for earlier versions.

        Raises:
            SinkConflictError: another program has rewritten files of the sink since, or with `upsert` changed any rows;
                or the table is append-only.
        """
        require_deltalake(self._url)
        filesystem, root = open_filesystem(self._url, self._storage_options)
        log, _ = self._log(filesystem, root, ctx.schema)
        files = LogFiles(self._url, self._storage_options)
        kind = DeltaRestore if self._key else DeltaRewind
        rewind = kind(log, files, filesystem, FileLayout(root, ctx), ctx, checkpoint_id, before)
        rewind.check()

        def take_back() -> None:
            # Before files leave the table, so that a zombie finds no staged file to commit afterwards.
            writer = self.create_writer(ctx)
            writer.recover(checkpoint_id, pending)
            writer.close()
            rewind.take_back()

        return take_back

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move the staged files to quarantine."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        quarantine_files(filesystem, FileLayout(root, ctx), ctx, committables, into)
        quarantine_keys(filesystem, FileLayout(root, ctx), committables, into)

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Remove staged files that nothing needs, and pack commit markers."""
        filesystem, root = open_filesystem(self._url, self._storage_options)
        return FileLeftovers(filesystem, FileLayout(root, ctx), needed).collect(dry_run=dry_run)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the Parquet files in the staging folder."""
        root = open_filesystem(self._url, self._storage_options)[1]
        return staged_files(self._url, FileLayout(root, ctx), ctx.uid, checkpoint_id, handle)

    def identity(self) -> SinkIdentity:
        """Return the path, the partition columns and the key."""
        by = {"partition_by": list(self._partition_by)} if self._partition_by else {}
        key = {"key": list(self._key)} if self._key else {}
        return SinkIdentity("Delta", (self._url,), {**by, **key})
