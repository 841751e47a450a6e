"""Writer of the Delta sink: stages Parquet files as file sinks do, and publishes them by an entry in the table's log
(S7.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from fsspec import AbstractFileSystem

from tidegate.connectors.delta.data_files import DataFile
from tidegate.connectors.delta.delta_log import TRANSACTION, DeltaLog
from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.hive_partitions import PartitionValues
from tidegate.connectors.files.sink.marker_packs import PackListing
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.transactions import Committable, SinkContext, TransactionId, parse_transaction_id
from tidegate.errors import DataError, OutageError, SinkConflictError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

COMMIT_ATTEMPTS = 10
"""Attempts to append before a commit fails; each attempt reads the log first.

delta-rs itself retries 15 times when appends of other writers win.
"""


class DeltaWriter(FileWriter):
    """Two-phase-commit writer of one subtask of a Delta table.

    Staging, pre-commit, abort and recovery work as in file sinks. A file that is in its place but not in the log is
    visible to no reader.

    Commit of one transaction. The log's *application* is the sink's subtask that wrote it; its version is the
    checkpoint id of the application's last entry. The marker records the same durably for every earlier entry.

    1. If the marker exists, there is nothing to do.

    2. Read the log. If the application's version is this checkpoint, the transaction is in the log already, because no
    other transaction of the application has this checkpoint id. Otherwise check for the marker again: other processes
    may have appended this and a later transaction before the log was read. Then write the marker of the application's
    last entry, in case its writer died before it did. If there is neither marker nor version, the log that was read
    does not hold this transaction.

    If a rewind has removed the transaction from the table (S9.3), refuse it. The rewind records this before it removes
    anything, and its log entry sets the version of each application, so an append to an older reading of the log fails.

    3. Move the files to their place. If a file is neither staged nor in its place: `TidegateError`.

    4. Append to the log as it was read in step 2. The append fails if the same application has appended anything since;
    then repeat step 2. So if several processes commit the same transaction at once, one of them appends.

    5. Write the marker.
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
        """Add the batch to the running transaction. Raises DataError for an empty text in a partition column."""
        stored = batch.cast(self._stored)
        refuse_empty_texts(stored, self._partition_by, f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}")
        super().write(stored)

    def _begin_file(self, values: PartitionValues) -> DataFile:
        """Open a file whose entry in the handle holds the fields of the log's add action."""
        return DataFile(*self._next_file(), self._in_files, dict(zip(self._partition_by, values, strict=True)))

    def _marker(self, handle: Committable) -> str:
        made = parse_transaction_id(handle.transaction_id)
        return self._marker_of(made, made.checkpoint_id)

    def _marker_of(self, made: TransactionId, checkpoint_id: int) -> str:
        return self._layout.marker(f"{made.writer},{checkpoint_id}")

    def _mark(self, made: TransactionId, checkpoint_id: int, files: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a marker unless it exists. Args: files: path and rows of each file; none: they are not known here."""
        marker = self._marker_of(made, checkpoint_id)
        if not self._fs.exists(marker):
            record = {"application": application_id(made), "checkpoint_id": checkpoint_id}
            self._write_marker(marker, {**record, "files": list(files)} if files else record)

    def _commit(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        if "keys" in handle.data:
            raise SinkConflictError(
                "the transaction was staged with mode='upsert', but the Delta sink appends now",
                where=self._where(made),
                cause="the mode of the sink was changed while a transaction was not committed",
                remedy="Restore with mode='upsert', let the job commit, then change the mode",
            )
        problem: str | None = None
        for _ in range(COMMIT_ATTEMPTS):
            table, rewound = self._log.find_or_create(), self._packs.listed()
            found = self._looked_up(table, handle, rewound)
            if found == "marked":
                return
            if found == "logged":
                break
            self._mark_last(table, made, rewound)
            problem = self._append(table, made, handle)
            if problem is None:
                break
        else:
            raise self._not_accepted(made, problem)
        self._mark_with_files(handle)

    def _looked_up(
        self, table: DeltaTable, handle: Committable, rewound: PackListing
    ) -> Literal["logged", "marked", "new"]:
        """Look for a transaction in a version of the log, then for its marker.

        Args:
            rewound: read after the log, because a rewind records what it removes before it does so.

        Raises:
            SinkConflictError: a rewind has removed it.
        """
        made = parse_transaction_id(handle.transaction_id)
        if rewound.is_rewound(made.checkpoint_id):
            raise self._rewound(made)
        last = table.transaction_version(application_id(made))
        if last == made.checkpoint_id:
            return "logged"
        # Checked after the log was read: another process may have appended this and a later transaction.
        return "marked" if self._is_marked(handle) else "new"

    def _mark_last(self, table: DeltaTable, made: TransactionId, rewound: PackListing) -> None:
        """Write the marker of the last entry of the transaction's application, which the next entry replaces."""
        last = table.transaction_version(application_id(made))
        if last is not None and not rewound.is_rewound(last):
            self._mark(made, last)

    def _mark_with_files(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        names = self._targets(handle)
        files = [{"path": name, "rows": file["rows"]} for name, file in zip(names, handle.data["files"], strict=True)]
        self._mark(made, made.checkpoint_id, files)

    def _where(self, made: TransactionId) -> str:
        return f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {made}"

    def _not_accepted(self, made: TransactionId, problem: str | None) -> OutageError:
        return OutageError(
            f"the Delta table accepted no log entry in {COMMIT_ATTEMPTS} attempts",
            where=self._where(made),
            cause=problem or "",
            remedy="Check which other processes write to the table. The data stays staged, and the next start repeats "
            "the commit",
        )

    def _rewound(self, made: TransactionId) -> SinkConflictError:
        return SinkConflictError(
            "refused to commit a transaction that a rewind has removed from the Delta table",
            where=self._where(made),
            cause="the job was restored to an earlier snapshot with on_committed_after=rewind",
            remedy="End the process that still runs an older generation of the job",
        )

    def _append(self, table: DeltaTable, made: TransactionId, handle: Committable) -> str | None:
        files = add_actions(handle.data["files"], self._publish_files(handle))
        metadata = {TRANSACTION: handle.transaction_id}
        return self._log.append(table, application_id(made), made.checkpoint_id, files, metadata)


def refuse_empty_texts(batch: pa.RecordBatch, partition_by: Sequence[str], where: str) -> None:
    """Check that no partition column holds an empty text, because the log has the same text for it as for null.

    Raises:
        DataError: a row has one.
    """
    for name in partition_by:
        values = batch.column(name)
        # A dictionary's values may be text; partition columns of other types have no empty values.
        texts = values.cast(pa.string()) if not _is_plain(values.type) else None
        found = 0 if texts is None else pc.sum(pc.equal(pc.binary_length(texts), 0)).as_py() or 0
        if found:
            raise DataError(
                f"{found:,} rows have an empty text in partition column {name!r}",
                where=where,
                cause="a Delta table cannot distinguish it from null, so readers would see null",
                remedy="Filter these rows, write another text or null into the column before the sink, or leave the "
                "column out of partition_by=",
            )


def _is_plain(kind: pa.DataType) -> bool:
    return pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind)


def add_actions(files: Sequence[Mapping[str, Any]], targets: Sequence[str]) -> list[AddAction]:
    """Return the actions that add files to the table. Args: files: entries of a handle; targets: their places."""
    from deltalake.transaction import AddAction

    return [
        AddAction(
            path=target,
            size=file["bytes"],
            partition_values=file["partition"],
            modification_time=file["modified_ms"],
            data_change=True,
            stats=file["stats"],
        )
        for file, target in zip(files, targets, strict=True)
    ]


def application_id(made: TransactionId) -> str:
    """Return the Delta application id of the subtask that wrote a transaction."""
    return f"tidegate:{made.writer}"
