"""Writer of a sink with `writer`: all records of a job are one write of the class, at the end of the data (S7.2, S7.4).

Files of a sink, besides the files of `FileLayout`:

    .../staging/<job>/<lineage>/<uid>/ended/<end>--<partition>.message.json   message of a partition, and its files
    .../staging/<job>/<lineage>/<uid>/ended/<end>.committed.json              the class has committed the files in it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.pyspark.commit_claims import CommitClaims
from tidegate.connectors.pyspark.data_source_writer import WriterCalls
from tidegate.connectors.storage import list_folder, put_durably
from tidegate.connectors.transactions import (
    TOKEN_SEPARATOR,
    Committable,
    SinkContext,
    file_name_token,
    parse_transaction_id,
    transaction_id,
)

ENDED_FOLDER = "ended"
"""No index of a subtask, so that no recovery looks here."""
ENDED_PARENTS = 6
"""Folders between a record of an end and the sink's own folder, which the first record may create."""
RECORD_VERSION = 1
MESSAGE_SUFFIX = ".message.json"
COMMITTED_SUFFIX = ".committed.json"
STAGED_FILE = FileCut(rows=sys.maxsize, size_bytes=256 * 2**20)
"""Files are copied as a whole on an object store, and read one after the other."""
READ_ROWS = 65_536
"""Rows of a staged file that are read at a time."""


class BoundedSinkWriter(FileWriter):
    """Two-phase-commit writer of one subtask. Each subtask is one partition of the class.

    - Records are staged as Parquet files, as file sinks stage theirs. The commit of a checkpoint moves them into the
      folder of the sink's files. The class is not called.
    - The first transaction after the last record has a handle in any case, which names the end: the run.
    - Its commit calls the class's `write` with the records of all files of the partition, and stores the message. So
      partitions are written in parallel, and nothing is written before the last checkpoint is complete, or approved.
    - When the messages of all partitions exist, one subtask calls the class's `commit` with them (`CommitClaims`). Then
      it stores a record of the end, and removes the files.

    After a crash, `write` is repeated for partitions without a stored message, and `commit` with the same messages
    unless the record of the end exists. The class's `abort` is never called, because the job never gives up its rows.
    """

    def __init__(
        self,
        calls: WriterCalls,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        claims: CommitClaims,
        ctx: SinkContext,
    ) -> None:
        super().__init__(filesystem, layout, ctx, ParquetEncoding(), STAGED_FILE)
        self._calls = calls
        self._claims = claims
        self._ends = False

    # ------------------------------------------------------------ staging

    def end_input(self) -> None:
        """Close the files. The next transaction is the last one."""
        super().end_input()
        self._ends = True

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function makes its files durable in the staging folder."""
        transaction = transaction_id(self._ctx, checkpoint_id, self._number)
        stage = super().prepare_commit(checkpoint_id)
        if not self._ends:
            return stage
        self._ends = False
        # In batch mode each attempt of a Spark task is a run of its own, and the only checkpoint is the end.
        end = f"run-{self._ctx.generation}-{self._ctx.run_id}" if self._ctx.staging is None else f"at-{checkpoint_id}"

        def staged() -> Sequence[Committable]:
            handles = stage() or [Committable(transaction, {"files": []})]
            facts = {"end": end, "of": self._ctx.parallelism}
            return [replace(handle, data={**handle.data, **facts}) for handle in handles]

        return staged

    # ------------------------------------------------------------ commit

    def commit(self, committables: Sequence[Committable]) -> None:
        """Keep the records of transactions; at the end of the data, write and commit them. Idempotent.

        Raises:
            TidegateError: a transaction is lost, or belongs to another lineage.
            DataError: a message cannot be stored.
            OutageError: the run ended while another subtask was committing.
            Exception: whatever the class raises. The next start repeats the call.
        """
        # All records of a partition are kept before one of its handles ends it.
        super().commit(committables)
        for handle in committables:
            if "end" in handle.data:
                partition = parse_transaction_id(handle.transaction_id).subtask
                self._end(handle.data["end"], partition, handle.data["of"])

    def _end(self, end: str, partition: int, of: int) -> None:
        # In this order: messages are removed after the record of the end was written.
        is_written = self._fs.exists(self._message_path(end, partition))
        if not self._is_committed(end):
            if not is_written:
                self._write_partition(end, partition, of)
            if all(self._fs.exists(self._message_path(end, n)) for n in range(of)):
                with self._claims.turn(0, lambda: self._is_committed(end)) as mine:
                    if mine:
                        self._commit_end(end, of)
        if self._is_committed(end):
            self._clean(end)

    def _write_partition(self, end: str, partition: int, of: int) -> None:
        files = self._files_of(partition, of)
        message = self._calls.write(self._rows(files), partition)
        self._put(self._message_path(end, partition), {"message": message, "files": files})

    def _files_of(self, partition: int, of: int) -> list[str]:
        """Return the names of the files of a partition, oldest first: also of subtask indices that no longer exist."""
        before = {name for path in self._records(COMMITTED_SUFFIX) for name in self._read(path)["files"]}
        found = []
        for path in list_folder(self._fs, self._layout.root)[0]:
            name = path.rsplit("/", 1)[-1]
            made = self._layout.published_by(name)
            if made is not None and made[0] % of == partition and name not in before:
                found.append((made[1], made[0], name))
        return [name for *_, name in sorted(found)]

    def _rows(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in files:
            with self._fs.open(self._layout.target(name), "rb") as file:
                for batch in pq.ParquetFile(file).iter_batches(READ_ROWS):
                    # Parquet does not distinguish all of Arrow's types.
                    yield batch.cast(self._ctx.schema)

    def _commit_end(self, end: str, of: int) -> None:
        records = [self._read(self._message_path(end, n)) for n in range(of)]
        self._calls.commit([record["message"] for record in records], 0)
        self._put(self._committed_path(end), {"files": [name for record in records for name in record["files"]]})

    def _clean(self, end: str) -> None:
        """Remove the files and messages of an end whose record exists."""
        with suppress(FileNotFoundError):
            for name in self._read(self._committed_path(end))["files"]:
                self._remove(self._layout.target(name))
        begin = f"{file_name_token(end)}{TOKEN_SEPARATOR}"
        for path in self._records(MESSAGE_SUFFIX):
            if path.rsplit("/", 1)[-1].startswith(begin):
                self._remove(path)

    def _is_committed(self, end: str) -> bool:
        return bool(self._fs.exists(self._committed_path(end)))

    # ------------------------------------------------------------ records of an end

    def _message_path(self, end: str, partition: int) -> str:
        return f"{self._ended_folder}/{file_name_token(end)}{TOKEN_SEPARATOR}{partition}{MESSAGE_SUFFIX}"

    def _committed_path(self, end: str) -> str:
        return f"{self._ended_folder}/{file_name_token(end)}{COMMITTED_SUFFIX}"

    @property
    def _ended_folder(self) -> str:
        return f"{self._layout.staging_of_all}/{ENDED_FOLDER}"

    def _records(self, suffix: str) -> list[str]:
        return [path for path in list_folder(self._fs, self._ended_folder)[0] if path.endswith(suffix)]

    def _read(self, path: str) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(self._fs.cat_file(path))
        return document

    def _put(self, path: str, document: Mapping[str, Any]) -> None:
        content = json.dumps({"version": RECORD_VERSION, **document}).encode()
        put_durably(self._fs, path, content, parents=ENDED_PARENTS)

    def close(self) -> None:
        """Drop the running transaction; pre-committed data stays. End waits for other subtasks."""
        self._claims.close()
        super().close()
