"""Writer of the Iceberg sink with mode="upsert": one snapshot of the table replaces and removes rows by key (S7.4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.iceberg.catalog import IcebergCatalog
from tidegate.connectors.iceberg.commit_log import CommitAttempt, CommitLog, append_files
from tidegate.connectors.iceberg.copy_on_write import KeyedFiles, Source, key_schema, source_of
from tidegate.connectors.iceberg.data_files import data_file, data_location
from tidegate.connectors.iceberg.iceberg_writer import IcebergWriter
from tidegate.connectors.iceberg.table_columns import refuse_other_columns
from tidegate.connectors.storage import sync_to_disk
from tidegate.connectors.transactions import Committable, SinkContext, TransactionId, parse_transaction_id
from tidegate.connectors.upserts.key_set import KeySet
from tidegate.connectors.upserts.staged_groups import GroupMember, GroupSearch, all_keys
from tidegate.connectors.upserts.upsert_staging import UpsertStaging
from tidegate.connectors.upserts.write_mode import rows_schema
from tidegate.errors import OutageError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table


class _RowWriter(IcebergWriter):
    """Stages files of the table for another writer, which shares its catalog and commits them."""

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        return FileWriter.prepare_commit(self, checkpoint_id)

    def close(self) -> None:
        FileWriter.close(self)


@dataclass
class _Rewrite:
    """Files of one commit, kept between its attempts.

    Attributes:
        keyed: search for the keys of its transactions.
        spec_id: partition spec of all files.
        attempt: the last attempt to commit the files; None: there was none.
        sources: the affected files, each with its delete files, for which `files` are a replacement; None: none were
            written yet.
        files: entries of the files that replace them, with their places.
    """

    keyed: KeyedFiles
    spec_id: int
    attempt: CommitAttempt | None = None
    sources: frozenset[Source] | None = None
    files: Sequence[Mapping[str, Any]] = field(default_factory=list)


class IcebergUpsertWriter(IcebergWriter):
    """Two-phase-commit writer of one subtask of an Iceberg table in upsert mode.

    `UpsertStaging` describes how transactions are staged: the newest rows as data files of the table, and the changed
    keys beside them. A commit differs from the commit of `IcebergWriter` in two steps:

    - Before the group of the transaction is committed, the writer waits until no other subtask has rows of an older
      checkpoint (`GroupSearch`).
    - It finds the files of the branch that hold one of the keys, and writes their other rows to new files. The snapshot
      removes the files found, and adds the files written and staged. It fails if the branch has changed since it was
      searched. So the files found are all files with these keys, whoever writes to the table.

    Memory: the keys of one checkpoint, and some batches of rows.
    """

    def __init__(
        self,
        catalog: IcebergCatalog,
        opened: Catalog,
        table: Table,
        branch: str,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        cut: FileCut,
        key: Sequence[str],
        *,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Create the writer; arguments as for `IcebergWriter`. Args: key: columns of the key."""
        plain = replace(ctx, schema=rows_schema(ctx.schema))
        self._closing = threading.Event()
        super().__init__(
            catalog, opened, table, branch, filesystem, layout, plain, cut, wait=wait or self._closing.wait
        )

        def appender(of: Table = table) -> FileWriter:
            return _RowWriter(catalog, opened, of, branch, self._fs, layout, plain, cut)

        self._appender = appender
        self._staging = UpsertStaging(
            filesystem, layout, ctx, key_schema(table.schema(), key), appender, self._completed
        )
        self._known_columns = [column.name for column in table.schema().columns]
        self._search: GroupSearch | None = None
        self._members: Sequence[GroupMember] = ()
        self._rewrite: _Rewrite | None = None
        self._rewritten: tuple[str, ...] = ()

    # ------------------------------------------------------------ staging

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        self._staging.write(batch)

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function stages the newest row of each key."""
        return self._staging.prepare(checkpoint_id)

    def _completed(self, handle: Committable) -> Committable:
        return replace(handle, data={**handle.data, **self._with_targets(handle).data})

    # ------------------------------------------------------------ commit

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions in the order of their checkpoints, idempotently.

        Raises:
            TidegateError: a transaction is lost (neither committed nor staged), belongs to another lineage, or was
                staged for another table.
            OutageError: the catalog does not answer, other writers win every time, or an older checkpoint is not
                committed by its subtask.
        """
        made = {handle.transaction_id: parse_transaction_id(handle.transaction_id) for handle in committables}
        for handle in sorted(committables, key=lambda one: _order(made[one.transaction_id])):
            # One at a time: with the staged files of one, its record is removed, for which others may wait.
            super().commit([handle])
            self._remove_staged(handle)

    def _commit(self, handle: Committable) -> None:
        if "keys" in handle.data:
            where = self._where(parse_transaction_id(handle.transaction_id))
            self._search = GroupSearch(
                self._staging.groups, self._ctx, handle, where, self._staging.keys_of, self._pause
            )
        self._members, self._rewrite, self._rewritten = (), None, ()
        super()._commit(handle)

    def _refuse_mode(self, handle: Committable) -> None:
        """Refuse nothing: a transaction that was staged with mode="append" is appended."""

    def _pause(self, pause_s: float) -> None:
        self._wait(pause_s)
        if self._closing.is_set():
            where = f"table {self._name}, sink {self._ctx.uid!r}, subtask {self._ctx.subtask}"
            raise OutageError("the commit was given up, because its run ends", where=where)

    def _renew_filesystem(self, table: Table) -> None:
        super()._renew_filesystem(table)
        self._staging.use(self._fs)

    def _mates(self, handle: Committable, log: CommitLog, waits: Iterator[float]) -> Sequence[Committable] | None:
        if "keys" not in handle.data:
            return super()._mates(handle, log, waits)
        assert self._search is not None, "set at the begin of the commit"

        def make_ready(mate: Committable) -> bool:
            specs = {file["spec_id"] for part in (mate, handle) for file in part.data["files"]}
            # A manifest has files of one partitioning.
            if len(specs) > 1 or mate.data["table"] != handle.data["table"]:
                return False
            self._make_ready(mate, log)
            return True

        def is_committed(subtask: int, checkpoint_id: int) -> bool:
            made = parse_transaction_id(handle.transaction_id)
            return self._is_committed(log, replace(made, subtask=subtask, checkpoint_id=checkpoint_id))

        found = self._search.found(is_committed, make_ready)
        if found is None:
            return None
        self._members = found
        return [member.handle for member in found if member.handle is not handle]

    def _is_committed(self, log: CommitLog, made: TransactionId) -> bool:
        if log.last.get(made.subtask) == made.checkpoint_id:
            return True
        marker = self._marker_of(made, made.checkpoint_id)
        return self._fs.exists(marker) or self._packs.holds(made.subtask, made.checkpoint_id)

    def _append(self, table: Table, handles: Sequence[Committable]) -> CommitAttempt:
        if "keys" not in handles[0].data:
            return super()._append(table, handles)
        ids = tuple(member.handle.transaction_id for member in self._members)
        specs = {file["spec_id"] for handle in handles for file in handle.data["files"]}
        if self._rewrite is None or self._rewritten != ids:
            self._discard(self._rewrite, table)
            keys = KeySet(all_keys(self._members))
            where = self._where(self._members[0].made)
            keyed = KeyedFiles(self._catalog, self._name, keys, where)
            self._rewrite = _Rewrite(keyed, next(iter(specs), table.metadata.default_spec_id))
            self._rewritten = ids
        return self._replace(table, self._rewrite, [file for handle in handles for file in handle.data["files"]])

    def _replace(self, table: Table, rewrite: _Rewrite, files: Sequence[Mapping[str, Any]]) -> CommitAttempt:
        """Try once to commit the group."""
        refuse_other_columns(table.schema(), self._known_columns, f"{self._catalog.place}, table {self._name}")
        head = table.metadata.snapshot_by_name(self._branch)
        affected = rewrite.keyed.affected(table, None if head is None else head.snapshot_id)
        # With delete files: if another program deletes rows of a file after the search, these must not come back.
        sources = frozenset(map(source_of, affected))
        if sources != rewrite.sources:
            self._discard(rewrite, table)
            # Only in this object, which is sent nowhere: all files of a manifest have one partitioning.
            table.metadata = table.metadata.model_copy(update={"default_spec_id": rewrite.spec_id})
            rewrite.files = self._write_rest(table, affected, rewrite)
            rewrite.sources = sources
        added = [data_file(file, table.metadata) for file in (*files, *rewrite.files)]
        replaced = [task.file for task in affected]
        made = [member.made for member in self._members]
        rewrite.attempt = append_files(table, self._branch, added, made, rewrite.spec_id, replaced)
        return rewrite.attempt

    def _write_rest(
        self, table: Table, affected: Sequence[FileScanTask], rewrite: _Rewrite
    ) -> Sequence[Mapping[str, Any]]:
        """Write the rows of the affected files that stay to new files, and move these to their places, durably."""
        number = self._staging.next_number()
        made = self._members[0].made
        batches = (batch for task in affected for batch in rewrite.keyed.staying(table, task))
        staged = self._staging.stage_rows(batches, number, made.checkpoint_id, lambda: self._appender(table))
        files = []
        for file in staged:
            name = self._layout.rest(file["staged"])
            target = data_location(table.metadata, name, file["key"], file["spec_id"])
            path = str(self._fs._strip_protocol(target))
            if self._local:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            self._publish_file(self._layout.staged(file["staged"]), path, str(made))
            self._remove(self._layout.staged(file["staged"]))
            files.append({**file, "target": target})
        if self._local:
            for folder in self._with_parents({os.path.dirname(self._path_of(file)) for file in files}):
                sync_to_disk(folder)
        return files

    def _path_of(self, file: Mapping[str, Any]) -> str:
        return str(self._fs._strip_protocol(file["target"]))

    def _discard(self, rewrite: _Rewrite | None, table: Table) -> None:
        """Forget files that replace others than the affected ones, and delete them if no snapshot can refer to them.

        An unclear attempt may still succeed later, and a proxy may have sent a refused one twice.
        """
        if rewrite is None:
            return
        attempt = rewrite.attempt
        if attempt is None or (attempt.refused and table.metadata.snapshot_by_id(attempt.snapshot_id) is None):
            for file in rewrite.files:
                self._remove(self._path_of(file))
        rewrite.attempt, rewrite.sources, rewrite.files = None, None, []

    def close(self) -> None:
        """Drop the running transaction; pre-committed data stays. A commit that waits ends with an error."""
        self._closing.set()
        self._staging.close()
        super().close()


def _order(made: TransactionId) -> tuple[int, int]:
    return made.checkpoint_id, made.subtask
