"""The writer of all file sinks: stage, pre-commit, publish, clean up (S7.4)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.encoded_file import EncodedFile, FileEncoding
from tidegate.connectors.files.sink.existing_output import ExistingOutput
from tidegate.connectors.files.sink.growing_files import GrowingFiles, Growth
from tidegate.connectors.files.sink.hive_partitions import PartitionValues, by_partition, hive_folder
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.sink_layout import FileLayout, parse_staged_name, staged_names, target_name
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.storage import is_local, sync_to_disk
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    check_writer,
    owns_leftovers_of,
    parse_transaction_id,
    transaction_id,
)
from tidegate.errors import SinkConflictError, TidegateError

MARKER_VERSION = 1
GROWN_MARKER_VERSION = 2
"""Version of markers that name extended files: an earlier version of tidegate could not rewind them."""
OPEN_FILES = 64
"""Most partitions that are written at a time; beyond it, the file that has been without new rows longest is closed."""
WAITING_BYTES = 128 * 2**20
"""Most bytes that wait in all open files together before they are encoded."""


@dataclass(frozen=True)
class FileCut:
    """Limits at which a file is closed and the next begun: approximate rows or bytes on disk, whichever comes first."""

    rows: int
    size_bytes: int

    def reached(self, file: EncodedFile) -> bool:
        """Return whether the file has reached a limit."""
        return file.rows >= self.rows or file.size_bytes() >= self.size_bytes


class FileWriter(SinkWriter):
    """Two-phase-commit writer of one subtask. A transaction is what was written between two barriers; its handle lists
    its files.

    - `write`: encodes to a file that no reader reads: in the staging folder of a local target, else in scratch space.
      One file is open for each partition.
    - pre-commit (asynchronous): closes the files, then syncs or uploads them to the staging folder. After the last
      record, the files are closed at once: slots have nothing else to do while the job completes its last snapshot.
    - `commit`: renames every file into place (local: atomic), or copies it and removes the staged copy (object stores:
      an object appears whole), then writes the transaction's marker. Every step may be repeated. With a marker, packed
      or not, `commit` does nothing, also when readers have moved the files since. Without a marker, it publishes a
      staged file and accepts a published one; if a file is at neither place, it raises `TidegateError`. Small files may
      instead extend earlier ones (`GrowingFiles`).
    - `recover`: removes files that earlier runs of this subtask, and of the subtask indices it cleans up, left staged;
      never files that this run or a newer generation stages.

    `commit`, `abort`, `recover` share no state with `write`, so they may run on another thread.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        encoding: FileEncoding,
        cut: FileCut,
        partition_by: Sequence[str] = (),
        existing: ExistingOutput | None = None,
        growing: GrowingFiles | None = None,
    ) -> None:
        """Create the writer.

        Args:
            existing: files that the first commit replaces; None: no files are replaced.
            growing: extends small files; None: each file of a transaction is published.
        """
        self._growing = growing
        self._fs = filesystem
        self._existing = existing
        self._local = is_local(filesystem)
        self._layout = layout
        self._ctx = ctx
        self._encoding = encoding
        self._cut = cut
        self._partition_by = tuple(partition_by)
        in_files = [field for field in ctx.schema if field.name not in self._partition_by]
        self._in_files = pa.schema(in_files, ctx.schema.metadata)
        self._number = 1
        self._files: list[EncodedFile] = []
        self._open: dict[PartitionValues, EncodedFile] = {}
        self._scratch: str | None = None
        self._packs = MarkerPacks(filesystem, layout.committed)
        if self._local:
            os.makedirs(layout.staging, exist_ok=True)
            os.makedirs(layout.commits, exist_ok=True)

    def number_from(self, number: int) -> None:
        """Give the running transaction a number: no other writer of this subtask and run may use it."""
        self._number = number

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        if batch.num_rows == 0:
            return
        for values, rows in self._parts(batch):
            self._file_of(values).write(rows)
        if sum(file.waiting_bytes for file in self._open.values()) > WAITING_BYTES:
            for file in self._open.values():
                file.write_group()

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
        """Yield the rows of each partition."""
        return by_partition(batch, self._partition_by)

    def _file_of(self, values: PartitionValues) -> EncodedFile:
        """Return the open file of a partition, and make it the last one to be closed."""
        # Removed here and added again below: a dict keeps the order of insertion, so its first entry is the least used.
        file = self._open.pop(values, None)
        if file is not None and self._cut.reached(file):
            file.close()
            file = None
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            file = self._begin_file(values)
            self._files.append(file)
        self._open[values] = file
        return file

    def _begin_file(self, values: PartitionValues) -> EncodedFile:
        folder = hive_folder(self._partition_by, values)
        return EncodedFile(*self._next_file(), self._in_files, self._encoding, folder)

    def _next_file(self) -> tuple[str, str]:
        """Return path and name of the running transaction's next file."""
        name = self._layout.staged_name(self._number, len(self._files), self._encoding.suffix)
        return self._encoding_path(name), name

    def _encoding_path(self, name: str) -> str:
        if self._local:
            return self._layout.staged(name)
        if self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="files-", dir=self._ctx.scratch or None)
        return os.path.join(self._scratch, name)

    def end_input(self) -> None:
        """Close the files on the encoder thread, ahead of the pre-commit."""
        self._open = {}
        for file in self._files:
            file.start_closing()

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function makes its files durable in the staging folder."""
        files, self._files, self._open = self._files, [], {}
        number, self._number = self._number, self._number + 1
        # Also without rows: the first commit removes existing files even if the job has no results.
        replaces = self._existing is not None and self._existing.is_due
        if not files and not replaces:
            return tuple
        transaction = transaction_id(self._ctx, checkpoint_id, number)

        def stage() -> Sequence[Committable]:
            entries = []
            for file in files:
                file.start_closing()
            # All closes begin first: the encoder thread then works while this thread syncs or uploads the files before.
            for file in files:
                file.finish_closing()
                entries.append(file.entry())
                self._make_durable(file)
            if self._local:
                # The snapshot names the files, so their folder entries must survive a crash before it completes (S7.4).
                sync_to_disk(self._layout.staging)
            return [Committable(transaction, {"files": entries, **({"replaces": True} if replaces else {})})]

        return stage

    def _make_durable(self, file: EncodedFile) -> None:
        if self._local:
            sync_to_disk(file.path)
        else:
            self._fs.put_file(file.path, self._layout.staged(file.name))
            os.remove(file.path)

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions, idempotently.

        Raises:
            TidegateError: a transaction is lost (no marker, no staged and no published file), belongs to another
                lineage, or a file of another origin has its name.
        """
        for handle in committables:
            check_writer(self._ctx, handle)
            if not self._is_marked(handle):
                grown = self._commit(handle)
                if self._local and not grown:
                    continue  # a rename removed the staged file
            # Also with a marker, because a crash may have come between the marker and this removal.
            self._remove_staged(handle)

    def _is_marked(self, handle: Committable) -> bool:
        # In this order, because a marker is packed before it is removed.
        made = parse_transaction_id(handle.transaction_id)
        return self._fs.exists(self._marker(handle)) or self._packs.holds(made.subtask, made.checkpoint_id)

    def _marker(self, handle: Committable) -> str:
        return self._layout.marker(handle.transaction_id)

    def _commit(self, handle: Committable) -> bool | None:
        """Publish a transaction that has no marker, and write its marker.

        Returns:
            True: it has extended files, so that staged files are left.
        """
        if self._growing is None:
            self._publish_and_mark(handle, {})
            return False
        try:
            grown = self._growing.grown_before(handle, replaces=bool(handle.data.get("replaces")))
            targets = self._publish_and_mark(handle, grown)
        except BaseException:
            self._growing.failed()
            raise
        self._growing.committed(handle, grown, targets)
        return bool(grown)

    def _publish_and_mark(self, handle: Committable, grown: Mapping[int, Growth]) -> Sequence[str]:
        targets = self._move_files(handle, grown)
        if handle.data.get("replaces") and self._existing is not None:
            # The new files must be durable before the existing ones are removed.
            if self._local:
                for folder in self._layout.folders_of(targets):
                    sync_to_disk(folder)
            self._existing.replace(self._write_marker)
        rows = [file["rows"] for file in handle.data["files"]]
        files: list[dict[str, Any]] = [{"path": target, "rows": n} for target, n in zip(targets, rows, strict=True)]
        for n, growth in grown.items():
            files[n] = growth.to_json(rows[n])
        record: dict[str, Any] = {"transaction_id": handle.transaction_id, "files": files}
        if grown:
            record["version"] = GROWN_MARKER_VERSION
        self._write_marker(self._marker(handle), record, self._layout.folders_of(targets))
        return targets

    def _publish_files(self, handle: Committable) -> Sequence[str]:
        """Move every staged file to its place, durably. Returns the paths there, relative to the sink's folder."""
        targets = self._move_files(handle)
        if self._local:
            for folder in self._layout.folders_of(targets):
                sync_to_disk(folder)
        return targets

    def _move_files(self, handle: Committable, grown: Mapping[int, Growth] | None = None) -> Sequence[str]:
        """Move the files as `_publish_files` does; durable only after the folders have been synchronised.

        Args:
            grown: files whose rows are in earlier files already.
        """
        made = parse_transaction_id(handle.transaction_id)
        files, targets = handle.data["files"], list(self._targets(handle))
        for n, growth in (grown or {}).items():
            targets[n] = growth.target
        if self._local:
            for target in targets:
                os.makedirs(os.path.dirname(self._layout.target(target)), exist_ok=True)
        for n, (file, target) in enumerate(zip(files, targets, strict=True)):
            if grown and n in grown:
                continue
            staged = self._layout.staged(file["staged"], made.subtask)
            self._publish_file(staged, self._layout.target(target), handle.transaction_id)
        return targets

    @staticmethod
    def _targets(handle: Committable) -> Sequence[str]:
        """Return the places of the files of a transaction, relative to the sink's folder."""
        made = parse_transaction_id(handle.transaction_id)
        files = handle.data["files"]
        return [file.get("folder", "") + target_name(made, n, file["staged"]) for n, file in enumerate(files)]

    def _publish_file(self, staged: str, target: str, transaction: str) -> None:
        # In this order, because another run of this subtask with the same permit may publish in between.
        if self._fs.exists(target):
            is_staged = self._fs.exists(staged)
            if is_staged and (self._local or self._fs.size(staged) != self._fs.size(target)):
                raise SinkConflictError(
                    "the transaction cannot publish a file, because another file with this name exists",
                    where=target,
                    cause=f"transaction {transaction} did not write the existing file",
                    remedy="Move the existing file to another folder, then restore the job, which repeats the commit",
                )
            return
        try:
            if self._local:
                # Tools such as Delta's VACUUM remove unknown files by age, so the file must look new.
                os.utime(staged)
                os.replace(staged, target)
            else:
                self._fs.cp_file(staged, target)
        except FileNotFoundError as e:
            # An error only if no other run has published the file.
            if not self._fs.exists(target):
                raise TidegateError(
                    "the staged file of a pre-committed transaction is lost",
                    where=f"sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {transaction}",
                    cause=f"the transaction has no commit marker, and neither its staged file {staged} nor its "
                    f"published file {target} exists; another process probably removed it",
                    remedy="Put the staged file back, or restore an earlier snapshot",
                ) from e

    def _write_marker(self, marker: str, what: Mapping[str, Any], published: Sequence[str] = ()) -> None:
        """Write the marker durably, after the entries of the folders `published`.

        The folders are synchronised after the marker's bytes: with these bytes, a journaling file system has already
        written the renames, so that the folders cost nothing more.
        """
        record = {"version": MARKER_VERSION, **what}
        content = json.dumps(record, sort_keys=True).encode()
        if not self._local:
            self._fs.pipe_file(marker, content)
            return
        unfinished = self._layout.unfinished_marker(marker)
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        for folder in published:
            sync_to_disk(folder)
        os.replace(unfinished, marker)
        sync_to_disk(os.path.dirname(marker))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove staged files; published files stay."""
        for handle in committables:
            check_writer(self._ctx, handle)
            self._remove_staged(handle)

    def _remove_staged(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        for name in staged_names(handle):
            self._remove(self._layout.staged(name, made.subtask))

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Remove staged files that earlier runs left and `pending` does not name, of all subtask indices this one
        cleans up.
        """
        kept = {
            (parse_transaction_id(handle.transaction_id).subtask, name)
            for handle in pending
            for name in staged_names(handle)
        }
        if self._growing is not None:
            self._finish_growths()
        for folder in self._names(self._layout.staging_of_all):
            if not folder.isdecimal() or not owns_leftovers_of(self._ctx, int(folder)):
                continue
            subtask = int(folder)
            for name in self._names(f"{self._layout.staging_of_all}/{folder}"):
                made = parse_staged_name(name)
                if made is not None and (subtask, name) not in kept and self._layout.was_left_by_earlier_run(made):
                    self._remove(self._layout.staged(name, subtask))

    def _finish_growths(self) -> None:
        """Write the markers of transactions that have extended files, and that nobody commits again.

        The rows are published, so the marker is true. A rewind needs it to remove them.
        """
        assert self._growing is not None
        for made, growths in self._growing.unfinished():
            marker = self._layout.marker(str(made))
            if self._fs.exists(marker) or self._packs.holds(made.subtask, made.checkpoint_id):
                continue
            record = {"transaction_id": str(made), "files": [growth.to_json(0) for growth in growths]}
            folders = self._layout.folders_of([growth.target for growth in growths])
            self._write_marker(marker, {"version": GROWN_MARKER_VERSION, **record}, folders)
        self._growing.clean()

    def _names(self, folder: str) -> list[str]:
        try:
            paths = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]

    def close(self) -> None:
        """Drop the running transaction; pre-committed data stays."""
        for file in self._files:
            file.drop()
        self._files, self._open = [], {}
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
