"""The Parquet sink's writer: stage, pre-commit, publish, clean up (S7.4)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.contract import Committable, SinkContext, SinkWriter
from tidegate.connectors.parquet_layout import ParquetLayout, parse_staged_name, target_name
from tidegate.connectors.storage import is_local, sync_to_disk
from tidegate.connectors.transactions import check_own, looks_after, parse_transaction_id, transaction_id
from tidegate.contract.errors import TidegateError

ROW_GROUP_ROWS = 131_072
"""Records wait in memory until a row group of this many rows is full ..."""
ROW_GROUP_BYTES = 32 * 2**20
"""... or until they take this many bytes."""
MARKER_VERSION = 1


class EncodedFile:
    """One Parquet file being written to local disk. Records wait until a row group is worth writing.

    Attributes:
        rows: written so far, those that wait included.
        waiting_bytes: of records that wait in memory.
    """

    def __init__(self, path: str, name: str, schema: pa.Schema) -> None:
        self.path = path
        self.name = name
        self.rows = 0
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records."""
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.get_total_buffer_size()
        if self._waiting_rows >= ROW_GROUP_ROWS or self.waiting_bytes >= ROW_GROUP_BYTES:
            self.write_group()

    def write_group(self) -> None:
        """Write what waits as a row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=ROW_GROUP_ROWS)
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def close(self) -> None:
        """Write what waits, and the footer; may be called again."""
        self.write_group()
        self._writer.close()

    def entry(self) -> dict[str, Any]:
        """What the transaction's handle says of the file, after `close`."""
        return {"staged": self.name, "rows": self.rows}

    def drop(self) -> None:
        """Remove the file, whatever state it is in."""
        self._waiting = []
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError):
            os.remove(self.path)


class ParquetWriter(SinkWriter):
    """Two-phase writer of one subtask. A transaction is what was written between two barriers; its handle names its
    files.

    - `write`: encodes to a file that no reader looks at: in the staging folder of a local target, else in scratch
      space.
    - pre-commit (asynchronous): footer, then fsync or upload to the staging folder.
    - `commit`: every file is renamed into place (local: atomic) or copied and its staged copy removed (object stores:
      an object appears whole); the transaction's marker follows. Repeating any part is harmless. With a marker:
      nothing to do, also when readers have moved the files since. Without marker: a staged file is published, a
      published one accepted;
      neither there: `TidegateError`.
    - `recover`: removes what earlier runs of this subtask, and of those of a higher parallelism that it looks after,
      left staged, never what this run or a newer generation stages.

    `commit`, `abort`, `recover` touch no state shared with `write`, so they may run on another thread.
    """

    def __init__(
        self, filesystem: AbstractFileSystem, layout: ParquetLayout, ctx: SinkContext, target_file_rows: int
    ) -> None:
        self._fs = filesystem
        self._local = is_local(filesystem)
        self._layout = layout
        self._ctx = ctx
        self._target_file_rows = target_file_rows
        self._number = 1
        self._files: list[EncodedFile] = []
        self._scratch: str | None = None
        if self._local:
            os.makedirs(layout.staging, exist_ok=True)
            os.makedirs(layout.commits, exist_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        if batch.num_rows == 0:
            return
        if not self._files or self._files[-1].rows >= self._target_file_rows:
            if self._files:
                self._files[-1].close()
            self._files.append(EncodedFile(*self._next_file(), self._ctx.schema))
        self._files[-1].write(batch)

    def _next_file(self) -> tuple[str, str]:
        """Path and name of the running transaction's next file."""
        name = self._layout.staged_name(self._number, len(self._files))
        return self._encoding_path(name), name

    def _encoding_path(self, name: str) -> str:
        if self._local:
            return self._layout.staged(name)
        if self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="parquet-", dir=self._ctx.scratch or None)
        return os.path.join(self._scratch, name)

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction; the returned function makes its files durable in the staging folder."""
        files, self._files = self._files, []
        number, self._number = self._number, self._number + 1
        if not files:
            return tuple
        transaction = transaction_id(self._ctx, checkpoint_id, number)

        def stage() -> Sequence[Committable]:
            entries = []
            for file in files:
                file.close()
                entries.append(file.entry())
                self._make_durable(file)
            if self._local:
                sync_to_disk(self._layout.staging)
            return [Committable(transaction, {"files": entries})]

        return stage

    def _make_durable(self, file: EncodedFile) -> None:
        if self._local:
            sync_to_disk(file.path)
        else:
            self._fs.put_file(file.path, self._layout.staged(file.name))
            os.remove(file.path)

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish, idempotently.

        Raises:
            TidegateError: a transaction is lost (no marker, no staged and no published file), is of another lineage, or
                a file of another origin has its name.
        """
        for handle in committables:
            check_own(self._ctx, handle)
            if not self._fs.exists(self._marker(handle)):
                self._commit(handle)
            self._remove_staged(handle)

    def _marker(self, handle: Committable) -> str:
        return self._layout.marker(handle.transaction_id)

    def _commit(self, handle: Committable) -> None:
        """Publish the transaction, which has no marker, and write its marker."""
        targets = self._publish_files(handle)
        rows = [file["rows"] for file in handle.data["files"]]
        files = [{"path": target, "rows": n} for target, n in zip(targets, rows, strict=True)]
        self._write_marker(self._marker(handle), {"transaction_id": handle.transaction_id, "files": files})

    def _publish_files(self, handle: Committable) -> Sequence[str]:
        """Bring every staged file to its place; the paths there, relative to the sink's folder."""
        made = parse_transaction_id(handle.transaction_id)
        files = handle.data["files"]
        targets = [file.get("folder", "") + target_name(made, number) for number, file in enumerate(files)]
        folders = {os.path.dirname(self._layout.target(target)) for target in targets}
        if self._local:
            for folder in folders:
                os.makedirs(folder, exist_ok=True)
        for file, target in zip(files, targets, strict=True):
            staged = self._layout.staged(file["staged"], made.subtask)
            self._publish(staged, self._layout.target(target), handle.transaction_id)
        if self._local:
            for folder in sorted({*folders, self._layout.root}):
                sync_to_disk(folder)
        return targets

    def _publish(self, staged: str, target: str, transaction: str) -> None:
        # In this order: another run of this subtask, holding the same permit, may publish in between.
        if self._fs.exists(target):
            is_staged = self._fs.exists(staged)
            if is_staged and (self._local or self._fs.size(staged) != self._fs.size(target)):
                raise TidegateError(
                    "A file that this transaction did not write has the name it needs",
                    where=target,
                    cause=f"transaction {transaction} is still staged",
                    remedy="Move that file away; the commit is repeated at the next start",
                )
            return
        try:
            if self._local:
                # Who removes unknown files from a folder goes by their age (Delta's VACUUM).
                os.utime(staged)
                os.replace(staged, target)
            else:
                self._fs.cp_file(staged, target)
        except FileNotFoundError as e:
            # Unless that run was quicker.
            if not self._fs.exists(target):
                raise TidegateError(
                    "A transaction that was to be committed is lost",
                    where=f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {transaction}",
                    cause=f"no commit marker, and neither {staged} nor {target} is there; someone removed staged files",
                    remedy="Bring the staged file back, or restore an earlier snapshot",
                ) from e

    def _write_marker(self, marker: str, what: Mapping[str, Any]) -> None:
        record = {"version": MARKER_VERSION, **what}
        content = json.dumps(record, sort_keys=True).encode()
        if not self._local:
            self._fs.pipe_file(marker, content)
            return
        unfinished = self._layout.unfinished(marker)
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, marker)
        sync_to_disk(self._layout.commits)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove staged files; published ones stay."""
        for handle in committables:
            check_own(self._ctx, handle)
            self._remove_staged(handle)

    def _remove_staged(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        for file in handle.data["files"]:
            self._remove(self._layout.staged(file["staged"], made.subtask))

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Remove what earlier runs of the subtasks this one looks after left staged and `pending` does not name."""
        kept = {
            (parse_transaction_id(handle.transaction_id).subtask, file["staged"])
            for handle in pending
            for file in handle.data["files"]
        }
        for folder in self._names(self._layout.staging_of_all):
            if not folder.isdecimal() or not looks_after(self._ctx, int(folder)):
                continue
            subtask = int(folder)
            for name in self._names(f"{self._layout.staging_of_all}/{folder}"):
                made = parse_staged_name(name)
                if made is None or (subtask, name) in kept or self._layout.own(made):
                    continue
                if made.generation <= self._ctx.generation:
                    self._remove(self._layout.staged(name, subtask))

    def _names(self, folder: str) -> list[str]:
        try:
            paths = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]

    def close(self) -> None:
        """Drop the running transaction; what was pre-committed stays."""
        for file in self._files:
            file.drop()
        self._files = []
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
