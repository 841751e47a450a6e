"""Writer of the Delta sink with mode="upsert": one entry of the log replaces and removes rows by key (S7.4)."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem

from tidegate.change_rows import DELETE, UPDATE_BEFORE, change_kind_column
from tidegate.clock import utc_now
from tidegate.connectors.delta.copy_on_write import KeyedFiles, TableFile
from tidegate.connectors.delta.delta_log import TRANSACTIONS, UPSERTED, DeltaLog
from tidegate.connectors.delta.delta_writer import (
    COMMIT_ATTEMPTS,
    DeltaWriter,
    add_actions,
    application_id,
    refuse_empty_texts,
)
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.files.sink.file_writer import FileCut
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.storage import sync_to_disk
from tidegate.connectors.transactions import Committable, SinkContext, TransactionId, parse_transaction_id
from tidegate.connectors.upserts.key_set import KeySet
from tidegate.connectors.upserts.staged_groups import GroupMember, GroupSearch, all_keys
from tidegate.connectors.upserts.upsert_staging import UpsertStaging
from tidegate.connectors.upserts.write_mode import rows_schema
from tidegate.errors import OutageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0
"""Wait after a failed attempt, seconds: doubled each time, and random, so that writers in conflict part."""


@dataclass
class _Rewrite:
    """Files of one commit, kept between its attempts.

    Attributes:
        members: ids of the transactions.
        keyed: search for their keys.
        version: version of the table at the last attempt.
        paths: the affected files for which `files` are a replacement; None: none were written yet.
        files, targets: entries and places of the files that replace them.
    """

    members: tuple[str, ...]
    keyed: KeyedFiles
    version: int
    paths: frozenset[str] | None = None
    files: Sequence[Mapping[str, Any]] = field(default_factory=list)
    targets: Sequence[str] = field(default_factory=list)


class DeltaUpsertWriter(DeltaWriter):
    """Two-phase-commit writer of one subtask of a Delta table in upsert mode.

    `UpsertStaging` describes how transactions are staged: the newest rows as data files of the table, and the changed
    keys beside them.

    Commit of one transaction; `DeltaWriter` describes markers and the log's applications.

    1. Read the log, and look for the transaction there and for its marker, as `DeltaWriter` does.

    2. Find the group of the transaction (`GroupSearch`): the transactions that other subtasks staged for the same
    checkpoint. Wait if another subtask leads the group, or has older rows. After each wait go to step 1.

    3. Move the data files of the group to their places. Find the files of the table that hold one of the keys, and
    write their other rows to new files.

    4. Append one entry to the log as it was read in step 1: it removes the files found, adds the files written and
    moved, and sets the version of each member's application. It fails if anything was appended since; then go to step
    1. So the files found are all files with these keys, whoever writes to the table, and if several processes commit
    the same transaction at once, one of them succeeds.

    5. Write the marker.

    Memory: the keys of one checkpoint, and some batches of rows.
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
        files: LogFiles,
        key: Sequence[str],
        *,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Create the writer.

        Args:
            files: the log's files, for the places of data files.
            key: columns of the key.
            wait: waits for a time in seconds.
        """
        plain = replace(ctx, schema=rows_schema(ctx.schema))
        super().__init__(filesystem, layout, plain, cut, log, stored, partition_by)
        self._log_files = files
        self._kind = change_kind_column(ctx.schema)
        self._key_partitions = [name for name in self._partition_by if name in key]
        self._needed = [*self._partition_by, *([] if self._kind is None else [self._kind])]
        self._closing = threading.Event()
        self._wait = wait or self._closing.wait

        def appender(columns: pa.Schema = stored) -> DeltaWriter:
            return DeltaWriter(filesystem, layout, plain, cut, log, columns, partition_by)

        self._appender = appender
        keys = pa.schema([stored.field(name).with_nullable(False) for name in key])
        self._staging = UpsertStaging(filesystem, layout, ctx, keys, appender)

    # ------------------------------------------------------------ staging

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction.

        Raises:
            DataError: null in a key column, an unknown kind of change, or an empty text in a partition column.
        """
        if self._partition_by:
            where = f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}"
            # A deletion of such a key would find no row, so it is refused as well.
            refuse_empty_texts(batch, self._key_partitions, where)
            refuse_empty_texts(self._stored_rows(batch.select(self._needed)), self._partition_by, where)
        self._staging.write(batch)

    def _stored_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that do not only delete their key."""
        if self._kind is None:
            return batch
        deletes = pc.is_in(batch.column(self._kind), pa.array([DELETE, UPDATE_BEFORE]))
        return batch.filter(pc.invert(deletes))

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function stages the newest row of each key."""
        return self._staging.prepare(checkpoint_id)

    # ------------------------------------------------------------ commit

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions in the order of their checkpoints, idempotently.

        Raises:
            TidegateError: a transaction is lost (neither committed nor staged), or belongs to another lineage.
            OutageError: other writers win every time, or an older checkpoint is not committed by its subtask.
        """
        ordered = sorted(committables, key=lambda handle: _order(parse_transaction_id(handle.transaction_id)))
        for handle in ordered:
            # One at a time: with the staged files of one, its record is removed, for which others may wait.
            super().commit([handle])
            self._remove_staged(handle)

    def _commit(self, handle: Committable) -> None:
        if "keys" not in handle.data:  # staged with mode="append"
            super()._commit(handle)
            return
        made = parse_transaction_id(handle.transaction_id)
        search = GroupSearch(
            self._staging.groups, self._ctx, handle, self._where(made), self._staging.keys_of, self._pause
        )
        failures = 0
        problem: str | None = None
        rewrite: _Rewrite | None = None
        while failures < COMMIT_ATTEMPTS:
            table, rewound = self._log.find_or_create(), self._packs.listed()
            found = self._looked_up(table, handle, rewound)
            if found == "marked":
                return
            if found == "logged":
                break

            def is_committed(subtask: int, checkpoint_id: int, table: DeltaTable = table) -> bool:
                return self._is_committed(table, replace(made, subtask=subtask, checkpoint_id=checkpoint_id))

            group = search.found(is_committed, self._make_ready)
            if group is None:
                continue
            if rewrite is None or rewrite.members != tuple(member.handle.transaction_id for member in group):
                self._discard(rewrite, table)
                rewrite = self._begin_rewrite(table, group)
            for member in group:
                self._mark_last(table, member.made, rewound)
            problem = self._replace(table, [member.handle for member in group], rewrite)
            if problem is None:
                break
            failures += 1
            # Random, but not for security.
            self._pause(random.uniform(0.5, 1) * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**failures))
        else:
            raise self._not_accepted(made, problem)
        self._mark_with_files(handle)

    def _pause(self, pause_s: float) -> None:
        self._wait(pause_s)
        if self._closing.is_set():
            where = f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}"
            raise OutageError("the commit was given up, because its run ends", where=where)

    def _is_committed(self, table: DeltaTable, made: TransactionId) -> bool:
        if table.transaction_version(application_id(made)) == made.checkpoint_id:
            return True
        marker = self._marker_of(made, made.checkpoint_id)
        return self._fs.exists(marker) or self._packs.holds(made.subtask, made.checkpoint_id)

    def _make_ready(self, mate: Committable) -> bool:
        self._publish_files(mate)
        return True

    def _begin_rewrite(self, table: DeltaTable, group: Sequence[GroupMember]) -> _Rewrite:
        # Files of other writers may hold nulls in columns that the records never have as null.
        nullable = {column.name: column.nullable for column in table.schema().fields}
        rows = pa.schema([column.with_nullable(nullable[column.name]) for column in self._stored])
        keys = KeySet(all_keys(group))
        keyed = KeyedFiles(self._log_files, rows, self._partition_by, keys, self._where(group[0].made))
        return _Rewrite(tuple(member.handle.transaction_id for member in group), keyed, table.version())

    def _replace(self, table: DeltaTable, group: Sequence[Committable], rewrite: _Rewrite) -> str | None:
        """Try once to commit a group. Returns None or the problem, as `DeltaLog.change`."""
        from deltalake.transaction import RemoveAction

        added = []
        for handle in group:
            added += add_actions(handle.data["files"], self._publish_files(handle))
        affected = rewrite.keyed.affected(table)
        paths = frozenset(file.path for file in affected)
        if paths != rewrite.paths:
            self._discard(rewrite, table)
            self._write_rest(affected, rewrite, parse_transaction_id(group[0].transaction_id))
        rewrite.version = table.version()
        added += add_actions(rewrite.files, rewrite.targets)
        now_ms = int(utc_now().timestamp() * 1000)  # VACUUM counts the age of removed files from it
        removed = [RemoveAction(f.path, True, now_ms, f.size_bytes, f.partition_texts) for f in affected]
        made = [parse_transaction_id(handle.transaction_id) for handle in group]
        applications = {application_id(one): one.checkpoint_id for one in made}
        applications[f"{UPSERTED}{self._layout.markers_begin}"] = made[0].checkpoint_id
        return self._log.change(table, [*removed, *added], applications, {TRANSACTIONS: " ".join(map(str, made))})

    def _write_rest(self, affected: Sequence[TableFile], rewrite: _Rewrite, made: TransactionId) -> None:
        """Write the rows of the affected files that stay to new files, and move these to their places, durably."""
        number = self._staging.next_number()
        rows = rewrite.keyed.rows
        batches = (batch for file in affected for batch in rewrite.keyed.staying(file))
        files = self._staging.stage_rows(batches, number, made.checkpoint_id, lambda: self._appender(rows))
        targets = [f"{file.get('folder', '')}{self._layout.rest(file['staged'])}" for file in files]
        for file, target in zip(files, targets, strict=True):
            path = self._layout.target(target)
            if self._local:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            self._publish_file(self._layout.staged(file["staged"]), path, str(made))
            self._remove(self._layout.staged(file["staged"]))
        if self._local:
            for folder in self._layout.folders_of(targets):
                sync_to_disk(folder)
        rewrite.paths = frozenset(file.path for file in affected)
        rewrite.files, rewrite.targets = files, targets

    def _discard(self, rewrite: _Rewrite | None, table: DeltaTable) -> None:
        """Forget files that replace others than the affected ones, and delete them if no entry can refer to them.

        The entry of an unclear attempt may still appear in the log, unless another entry has its place since. Then
        VACUUM deletes the files.
        """
        if rewrite is None:
            return
        if table.version() > rewrite.version:
            for target in rewrite.targets:
                self._remove(self._layout.target(target))
        rewrite.paths, rewrite.files, rewrite.targets = None, [], []

    def close(self) -> None:
        """Drop the running transaction; pre-committed data stays. A commit that waits ends with an error."""
        self._closing.set()
        self._staging.close()
        super().close()


def _order(made: TransactionId) -> tuple[int, int]:
    return made.checkpoint_id, made.subtask
