"""Staging of upserts: the newest rows of each key as data files of the table, and all changed keys in a file beside
them (S7.4).

    .../staging/<job>/<lineage>/<uid>/<subtask>/<name>.parquet.staged        data files, which the commit moves
    .../<name>.keys.parquet.staged                                          keys that the commit removes from the table
    .../<name>.handle.json.staged                                           record of the transaction (`StagedGroups`)

The handle of a transaction holds `files` as other file sinks do, `keys` (the file of keys), `of` (the parallelism), and
`beside`, so that whatever keeps or removes the data files of a transaction does the same with the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.file_writer import FileWriter
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.storage import is_local, sync_to_disk
from tidegate.connectors.transactions import Committable, SinkContext, parse_transaction_id, transaction_id
from tidegate.connectors.upserts.newest_rows import ChangeSpool
from tidegate.connectors.upserts.staged_groups import StagedGroups
from tidegate.errors import TidegateError

KEYS_SUFFIX = ".keys.parquet"
KEYS_FOLDER = "_keys"
"""Folder of a quarantine for the files of keys. Readers of datasets skip names that begin with an underscore."""

Complete = Callable[[Committable], Committable]
"""Adds what the commit of a sink needs to a handle."""


class UpsertStaging:
    """Transactions of one subtask in upsert mode, from the first record to the handle.

    The rows of a transaction wait until its pre-commit, because only then the newest state of each key is known. They
    wait on local disk if they are many; the keys wait in memory.

    Args:
        keys: columns of the key, with the types that the table has.
        appender: makes a writer for the rows of one transaction, which it stages and never commits.
        complete: see `Complete`; its argument has `files`.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        keys: pa.Schema,
        appender: Callable[[], FileWriter],
        complete: Complete = lambda handle: handle,
    ) -> None:
        self._fs = filesystem
        self._layout = layout
        self._ctx = ctx
        self._keys = keys
        self._appender = appender
        self._complete = complete
        # The loop and writer threads draw numbers side by side; `next` of a counter is atomic.
        self._numbers = itertools.count(1)
        self._spool: ChangeSpool | None = None

    def use(self, filesystem: AbstractFileSystem) -> None:
        """Use another file system object, with renewed credentials."""
        self._fs = filesystem

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the running transaction. Raises DataError for a null key or an unknown kind of change."""
        if batch.num_rows == 0:
            return
        if self._spool is None:
            where = f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, subtask {self._ctx.subtask}"
            self._spool = ChangeSpool(self._ctx.schema, self._keys, self._ctx.scratch, where)
        self._spool.append(batch)

    def prepare(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function stages it durably."""
        spool, self._spool = self._spool, None
        if spool is None:
            return tuple
        number = next(self._numbers)
        made = transaction_id(self._ctx, checkpoint_id, number)

        def stage() -> Sequence[Committable]:
            newest = spool.newest()
            files = self.stage_rows(newest.rows(), number, checkpoint_id)
            # After the data files, so that the names differ.
            name = self._layout.staged_name(number, len(files), KEYS_SUFFIX)
            size = self._put_keys(name, newest.keys)
            # Only now: a repeated attempt of the steps before would read the rows again.
            spool.drop()
            record = self.groups.record_name(parse_transaction_id(made))
            data = {
                "files": files,
                "keys": {"staged": name, "rows": newest.keys.num_rows, "bytes": size},
                "beside": [name, record],
                "of": self._ctx.parallelism,
            }
            handle = self._complete(Committable(made, data))
            self.groups.record(handle)
            self._make_durable(self._layout.staged(record))
            return [handle]

        return stage

    @property
    def groups(self) -> StagedGroups:
        """Return the records of the sink's transactions."""
        return StagedGroups(self._fs, self._layout)

    def next_number(self) -> int:
        """Return a number that no transaction of this run has."""
        return next(self._numbers)

    def stage_rows(
        self,
        rows: Any,
        number: int,
        checkpoint_id: int,
        appender: Callable[[], FileWriter] | None = None,
    ) -> Sequence[Mapping[str, Any]]:
        """Write rows to the staging folder durably, and return the entries of their files.

        Args:
            rows: batches, an iterable.
            number: see `next_number`.
            appender: makes the writer; None: as for the rows of transactions.
        """
        with closing((appender or self._appender)()) as writer:
            writer.number_from(number)
            for batch in rows:
                writer.write(batch)
            staged = list(writer.prepare_commit(checkpoint_id)())
        return staged[0].data["files"] if staged else []

    def _put_keys(self, name: str, keys: pa.Table) -> int:
        content = pa.BufferOutputStream()
        pq.write_table(keys, content, compression="zstd")
        buffer = content.getvalue()
        path = self._layout.staged(name)
        if is_local(self._fs):
            with open(path, "wb") as file:
                file.write(buffer)
            self._make_durable(path)
        else:
            self._fs.pipe_file(path, buffer.to_pybytes())
        return int(buffer.size)

    def _make_durable(self, path: str) -> None:
        if is_local(self._fs):
            sync_to_disk(path)
            sync_to_disk(self._layout.staging)

    def keys_of(self, handle: Committable) -> pa.Table:
        """Return the keys of a staged transaction.

        Raises:
            TidegateError: their file is lost.
        """
        made = parse_transaction_id(handle.transaction_id)
        path = self._layout.staged(handle.data["keys"]["staged"], made.subtask)
        try:
            content = self._fs.cat_file(path)
        except FileNotFoundError as e:
            raise TidegateError(
                "the staged keys of a pre-committed transaction are lost",
                where=f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {handle.transaction_id}",
                cause=f"the transaction has no commit marker, and its file {path} does not exist; another process "
                "probably removed it",
                remedy="Put the file back, or restore an earlier snapshot",
            ) from e
        table = pq.read_table(pa.BufferReader(content))
        # The key of the pipeline may have changed since: the names in the file are the ones that count.
        return table.cast(pa.schema([pa.field(f.name, f.type, False) for f in table.schema]))

    def close(self) -> None:
        """Drop the running transaction."""
        if self._spool is not None:
            self._spool.drop()
            self._spool = None


def quarantine_keys(
    filesystem: AbstractFileSystem, layout: FileLayout, committables: Sequence[Committable], into: Quarantine
) -> None:
    """Move the files of keys of transactions to quarantine, beside their rows, and remove the records, for which other
    subtasks would wait. May be repeated.
    """
    groups = StagedGroups(filesystem, layout)
    for handle in committables:
        made = parse_transaction_id(handle.transaction_id)
        if "keys" in handle.data:
            staged = layout.staged(handle.data["keys"]["staged"], made.subtask)
            into.take_file(filesystem, staged, made, f"{KEYS_FOLDER}/keys.parquet")
            groups.forget(made)
