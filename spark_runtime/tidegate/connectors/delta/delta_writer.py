"""The Delta sink's writer: Parquet files staged as file sinks do, published by an entry in the table's log
(S7.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.delta.data_files import DataFile
from tidegate.connectors.delta.delta_log import DeltaLog
from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.hive_partitions import PartitionValues
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.transactions import Committable, SinkContext, TransactionId, parse_transaction_id
from tidegate.errors import OutageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMIT_ATTEMPTS = 10
"""Looks at the log, each followed by an attempt to append, before a commit is given up. delta-rs itself tries 15 times
to get past appends of others."""


class DeltaWriter(FileWriter):
    """Two-phase writer of one subtask of a Delta table. Staging, pre-commit, abort and recovery are those of
    file sinks; a file that is in its place but not in the log is seen by no reader.

    Commit of one transaction. The log's *application* is the sink's subtask that wrote it; its version is the
    checkpoint id of the application's last entry. The marker says the same durably of every earlier one.

    1. With a marker: nothing to do.
    2. Read the log. The application's version is this checkpoint: it is in the log already, as nobody else has this
       checkpoint id. Else its marker is looked for again, since rivals may have appended this and a later transaction
       before the reading; and the last entry's marker is written, should its writer have died before that: so that,
       with neither marker nor version, this transaction is in no entry of that reading.
    3. Files move to their place; neither staged nor there: `TidegateError`.
    4. Append to *that* reading of the log. Anything of the same application that came in between makes the append fail:
       back to 2. So of several who commit the same transaction at once, one appends.
    5. Marker.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        cut: FileCut,
        log: DeltaLog,
        stored: pa.Schema,
        partition_by: Sequence[str],
    ) -> None:
        super().__init__(filesystem, layout, ctx, ParquetEncoding(), cut, partition_by)
        self._log = log
        self._stored = stored
        self._in_files = pa.schema([field for field in stored if field.name not in self._partition_by])

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        super().write(batch.cast(self._stored))

    def _begin_file(self, values: PartitionValues) -> DataFile:
        """The handle will hold what the log's add action says of it."""
        return DataFile(*self._next_file(), self._in_files, dict(zip(self._partition_by, values, strict=True)))

    def _marker(self, handle: Committable) -> str:
        made = parse_transaction_id(handle.transaction_id)
        return self._marker_of(made, made.checkpoint_id)

    def _marker_of(self, made: TransactionId, checkpoint_id: int) -> str:
        return self._layout.marker(f"{made.writer},{checkpoint_id}")

    def _mark(self, made: TransactionId, checkpoint_id: int) -> None:
        marker = self._marker_of(made, checkpoint_id)
        if not self._fs.exists(marker):
            self._write_marker(marker, {"application": application_id(made), "checkpoint_id": checkpoint_id})

    def _commit(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        problem: str | None = None
        for _ in range(COMMIT_ATTEMPTS):
            table = self._log.find_or_create()
            last = table.transaction_version(application_id(made))
            if last == made.checkpoint_id:
                break
            if self._is_marked(handle):  # asked after the reading: somebody was quicker by two
                return
            if last is not None:
                self._mark(made, last)
            problem = self._append(table, made, handle)
            if problem is None:
                break
        else:
            raise OutageError(
                f"The Delta table took no entry in {COMMIT_ATTEMPTS} attempts",
                where=f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {handle.transaction_id}",
                cause=problem or "",
                remedy="Look who else writes the table; the data is staged, and the next start repeats the commit",
            )
        self._mark(made, made.checkpoint_id)

    def _append(self, table: DeltaTable, made: TransactionId, handle: Committable) -> str | None:
        from deltalake.transaction import AddAction

        files = [
            AddAction(
                path=target,
                size=file["bytes"],
                partition_values=file["partition"],
                modification_time=file["modified_ms"],
                data_change=True,
                stats=file["stats"],
            )
            for file, target in zip(handle.data["files"], self._publish_files(handle), strict=True)
        ]
        told = {"tidegateTransaction": handle.transaction_id}
        return self._log.append(table, application_id(made), made.checkpoint_id, files, told)


def application_id(made: TransactionId) -> str:
    """The Delta application id of the subtask that wrote a transaction."""
    return f"tidegate:{made.writer}"
