"""Writer of the Kafka sink: stages encoded records in files, and commits them in one short transaction (S7.4)."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.hive_partitions import PartitionValues
from tidegate.connectors.files.sink.sink_layout import FileLayout, StagedName, parse_staged_name
from tidegate.connectors.kafka.sink.client_errors import as_tidegate_error, error_of
from tidegate.connectors.kafka.sink.marked_producer import Clients, Committer, MarkedProducer, Marker, closing_error
from tidegate.connectors.kafka.sink.record_columns import RecordsOfRows
from tidegate.connectors.kafka.sink.staged_records import STAGED_SCHEMA, RecordsEncoding, RecordsFile, read_records
from tidegate.connectors.kafka.sink.topics import RecordPlaces
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    TransactionId,
    check_writer,
    file_name_token,
    owns_leftovers_of,
    parse_transaction_id,
)
from tidegate.errors import FencedError, OutageError, SinkConflictError, SnapshotError

COMMIT_ATTEMPTS = 5
"""Attempts to commit one transaction before the run fails, each with a new producer. A broker restarts in less time."""
FIRST_PAUSE_S = 0.5
"""Pause, in seconds, before the second attempt; it doubles with each further one."""
OLDER_TIMEOUT_S = 60.0
"""Longest wait, in seconds, for older records that another subtask must commit after a rescale: they may have the same
keys."""
OLDER_POLL_S = 0.1
"""Interval, in seconds, of the checks during that wait."""
ATTEMPT_SUFFIX = ".attempt"
STAGED_FILE = FileCut(rows=2**31, size_bytes=128 * 2**20)
"""A transaction has one file until it is large: a file of another machine is copied as a whole before it is read."""

logger = logging.getLogger("tidegate.connectors")


class KafkaWriter(FileWriter):
    """Two-phase-commit writer of one subtask. Records are staged as file sinks stage theirs.

    - `write`: encodes rows to keys, values and headers, and these to an Arrow IPC file.
    - pre-commit (asynchronous): makes the files durable in the staging folder. No transaction of the broker is open.
    - `commit`, for each transaction, by the *writer* that staged it, also after a rescale:

      1. If the marker file exists, there is nothing to do.
      2. Open the writer's producer, unless it is open: this fences other producers of the writer and ends their
         transaction. Then read the writer's marker in the broker. It names the transaction that was committed last:
         write its marker file, in case its run died before it did.
      3. If there is no marker in the broker although a transaction has an attempt record, its outcome is unknown:
         `SnapshotError`. Otherwise commit a first marker, so that a marker exists before records do.
      4. If the marker file exists now, there is nothing to do. If a staged file is missing: `SnapshotError`.
      5. Write the attempt record, send the records, commit them with the marker.
      6. Write the marker file, then remove the attempt record and the staged files.

      If an answer is lost, the attempt begins again at step 2, whose marker shows whether the records were committed.
    - `recover`, `abort`: end transactions that dead runs began, and remove staged files.

    Markers in brokers expire (`offsets.retention.minutes`), marker files do not. A marker in the broker decides only
    about the last transaction, between steps 5 and 6. Attempt records are named like staged files, with the checkpoint
    as the number of the file.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        records: RecordsOfRows,
        clients: Clients,
        topic: str,
        limit_s: float,
        places: RecordPlaces,
    ) -> None:
        super().__init__(filesystem, layout, replace(ctx, schema=STAGED_SCHEMA), RecordsEncoding(), STAGED_FILE)
        self._records = records
        self._clients = clients
        self._topic = topic
        self._limit_s = limit_s
        self._places = places
        self._run = Committer(ctx.generation, ctx.run_id)
        self._used = places.empty()
        self._committing = threading.Lock()
        self._producer: tuple[str, MarkedProducer] | None = None
        self._closing = threading.Event()
        self._older_is_committed = not records.keyed

    # ------------------------------------------------------------ staging

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode the batch and add it to the running transaction."""
        made = self._records.encode(batch)
        if made.num_rows:
            self._used.add(made)
            super().write(made)

    def _begin_file(self, values: PartitionValues) -> RecordsFile:
        return RecordsFile(*self._next_file())

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function makes its files durable.

        Before that, it checks that the topics and partitions of the records exist, because after the checkpoint is
        complete nothing can be done about a record that has no place.
        """
        used, self._used = self._used, self._places.empty()
        stage = super().prepare_commit(checkpoint_id)

        def checked() -> Sequence[Committable]:
            self._places.check(used)
            return [replace(handle, data={**handle.data, "topic": self._topic}) for handle in stage()]

        return checked

    # ------------------------------------------------------------ commit

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions, idempotently, in order of their checkpoints.

        Raises:
            FencedError: a later run writes this sink.
            SnapshotError: a transaction is lost or damaged, or it is unknown whether it is committed.
            OutageError: the brokers do not answer. The next start repeats the commit.
            TidegateError: a transaction belongs to another lineage, or the brokers refuse its records.
        """
        for handle in committables:
            check_writer(self._ctx, handle)
        with self._committing:
            try:
                for handle in sorted(committables, key=self._order):
                    if not self._is_marked(handle):
                        self._wait_for_older(handle)
                        self._publish_transaction(handle)
                    self._remove_staged(handle)
            finally:
                # A writer of another index is needed only after a rescale, and in drivers, which commit for all.
                self._keep_producer_of(None if self._closing.is_set() else self._ctx.subtask)

    def _order(self, handle: Committable) -> tuple[int, int]:
        """By checkpoint, so that the newest record of a key comes last; without keys, so that each producer is opened
        once.
        """
        made = parse_transaction_id(handle.transaction_id)
        key = made.checkpoint_id, made.subtask
        return key if self._records.keyed else key[::-1]

    def _publish_transaction(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                self._try_publish(made, handle)
                return
            except self._clients.error as e:
                problem = self._producer[1].problem() if self._producer is not None else None
                self._drop_producer()
                error = as_tidegate_error(
                    "the records of a transaction could not be committed to Kafka",
                    error_of(e),
                    where=self._where(handle),
                    problem=problem,
                )
            except BaseException:
                self._drop_producer()
                raise
            if attempt == COMMIT_ATTEMPTS or not isinstance(error, OutageError):
                raise error from None
            logger.warning("a commit to Kafka failed, and is tried again: %s", error)
            if self._closing.wait(pause_s):
                raise closing_error(self._where(handle))
            pause_s *= 2

    def _try_publish(self, made: TransactionId, handle: Committable) -> None:
        self._check_topic(handle)
        producer = self._producer_of(made)
        # Again, after the marker of the broker was read: another process may have committed this transaction and a
        # later one meanwhile.
        if self._is_marked(handle):
            return
        self._check_staged(made, handle)
        attempt = self._attempt(made)
        if not self._fs.exists(attempt):
            self._write_marker(attempt, {"transaction_id": handle.transaction_id})
        producer.begin()
        try:
            for entry in handle.data["files"]:
                with self._local_copy(entry, made.subtask) as path:
                    for batch in read_records(path, entry, where=f"{self._where(handle)}, {entry['staged']}"):
                        producer.send(batch)
                        if self._closing.is_set():
                            raise closing_error(self._where(handle))
            producer.flush()
        except BaseException:
            # Until it is aborted, an open transaction delays readers of committed records.
            if producer.abort():
                self._remove(attempt)
            raise
        producer.commit(Marker(made.checkpoint_id, self._run))
        self._mark(made.writer, made.checkpoint_id)

    def _check_staged(self, made: TransactionId, handle: Committable) -> None:
        for entry in handle.data["files"]:
            path = self._layout.staged(entry["staged"], made.subtask)
            if not self._fs.exists(path):
                raise SnapshotError(
                    "the staged records of a pre-committed transaction are lost",
                    where=self._where(handle),
                    cause=f"the transaction is not committed, and its staged file {path} does not exist; another "
                    "process probably removed it",
                    remedy="Put the staged file back, or restore an earlier snapshot",
                )

    def _check_topic(self, handle: Committable) -> None:
        if handle.data["topic"] != self._topic:
            raise SinkConflictError(
                f"the staged records are for topic {handle.data['topic']}, but the sink writes to {self._topic}",
                where=self._where(handle),
                cause="the topic of the sink was changed while a transaction was not committed",
                remedy=f"Restore with topic {handle.data['topic']}, let the job commit, then change the topic",
            )

    def _local_copy(self, entry: Mapping[str, Any], subtask: int) -> _LocalCopy:
        return _LocalCopy(self._fs, self._layout.staged(entry["staged"], subtask), self._local, self._ctx.scratch)

    # ------------------------------------------------------------ the producer and its marker

    def _producer_of(self, made: TransactionId) -> MarkedProducer:
        """Return the open producer of a transaction's writer. After it was opened, the last commit has its marker
        file.
        """
        if self._producer is not None and self._producer[0] == made.writer:
            return self._producer[1]
        self._drop_producer()
        producer = MarkedProducer(self._clients, made.writer, self._topic, self._limit_s)
        self._producer = made.writer, producer
        producer.open()
        if producer.marker is None:
            self._refuse_unknown_outcomes(made)
            producer.begin()
            producer.commit(Marker(0, self._run))
        elif producer.marker.by > self._run:
            self._drop_producer()
            raise FencedError(
                "a later run of the job writes to the topic",
                where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, subtask {self._ctx.subtask}",
                remedy="Do nothing: this process belongs to an earlier run and has sent no record",
            )
        elif producer.marker.checkpoint_id:
            self._mark(made.writer, producer.marker.checkpoint_id)
        return producer

    def _refuse_unknown_outcomes(self, made: TransactionId) -> None:
        """Raise if a transaction of the writer was attempted, and nothing says whether it was committed."""
        for name in self._attempts_of(made.subtask):
            checkpoint_id = name.file
            marker = self._marker_of(made.writer, checkpoint_id)
            if self._is_checkpoint_marked(made.writer, made.subtask, checkpoint_id):
                continue
            attempt = self._layout.staged(str(name), made.subtask)
            raise SnapshotError(
                f"it is unknown whether the records of checkpoint {checkpoint_id} are in the topic",
                where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, subtask {made.subtask}, topic {self._topic}",
                cause="a run died during the commit, and its marker in the brokers no longer exists. The job was down "
                "for longer than offsets.retention.minutes, or the topic or the marker's group was deleted",
                remedy=f"Read the topic. If it has these records, create the file {marker}. Otherwise delete the file "
                f"{attempt}, and the records are sent",
            )

    def _drop_producer(self) -> None:
        open_one, self._producer = self._producer, None
        if open_one is not None:
            open_one[1].close()

    def _keep_producer_of(self, subtask: int | None) -> None:
        """Close the producer, unless it belongs to this subtask index."""
        if self._producer is not None and (subtask is None or not self._producer[0].endswith(f",{subtask}")):
            self._drop_producer()

    # ------------------------------------------------------------ marker files and attempt records

    def _marker(self, handle: Committable) -> str:
        made = parse_transaction_id(handle.transaction_id)
        return self._marker_of(made.writer, made.checkpoint_id)

    def _marker_of(self, writer: str, checkpoint_id: int) -> str:
        # In a lineage each checkpoint id is used once, so it identifies the writer's transaction.
        return self._layout.marker(f"{writer},{checkpoint_id}")

    def _is_checkpoint_marked(self, writer: str, subtask: int, checkpoint_id: int) -> bool:
        # In this order, because a marker is packed before it is removed.
        there = self._fs.exists(self._marker_of(writer, checkpoint_id))
        return bool(there) or self._packs.holds(subtask, checkpoint_id)

    def _mark(self, writer: str, checkpoint_id: int) -> None:
        marker = self._marker_of(writer, checkpoint_id)
        if not self._fs.exists(marker):
            self._write_marker(marker, {"writer": writer, "checkpoint_id": checkpoint_id})

    def _attempt(self, made: TransactionId) -> str:
        return self._layout.staged(attempt_name(made), made.subtask)

    def _attempts_of(self, subtask: int) -> Iterator[StagedName]:
        for name in self._names(f"{self._layout.staging_of_all}/{subtask}"):
            found = parse_staged_name(name)
            if found is not None and found.suffix == ATTEMPT_SUFFIX:
                yield found

    # ------------------------------------------------------------ order of keys after a rescale

    def _wait_for_older(self, handle: Committable) -> None:
        """Wait until older records that other subtasks must commit are committed: they may have the same keys.

        After a restore without a gate, they are committed before the run starts (S7.4). With a gate, subtasks commit
        side by side.
        """
        made = parse_transaction_id(handle.transaction_id)
        if self._older_is_committed or Committer(made.generation, made.run_id) != self._run:
            return
        for _ in range(int(OLDER_TIMEOUT_S / OLDER_POLL_S)):
            if not any(self._older_of_others()):
                self._older_is_committed = True
                return
            if self._closing.wait(OLDER_POLL_S):
                raise closing_error(self._where(handle))
        raise OutageError(
            "records of older checkpoints are not committed, so the records of this checkpoint cannot be sent",
            where=self._where(handle),
            cause="other subtasks staged them at another parallelism, and nobody has committed them within "
            f"{OLDER_TIMEOUT_S:.0f} s",
            remedy="Check in the log why the other subtasks do not commit. The next start repeats the commit",
        )

    def _older_of_others(self) -> Iterator[str]:
        for folder in self._names(self._layout.staging_of_all):
            if folder.isdecimal() and not owns_leftovers_of(self._ctx, int(folder)):
                for name in self._names(f"{self._layout.staging_of_all}/{folder}"):
                    found = parse_staged_name(name)
                    if found is not None and self._layout.was_left_by_earlier_run(found):
                        yield name

    # ------------------------------------------------------------ cleaning up

    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove staged files, and end transactions that were begun; committed records stay."""
        for handle in committables:
            check_writer(self._ctx, handle)
            made = parse_transaction_id(handle.transaction_id)
            if self._fs.exists(self._attempt(made)):
                self._fence(made.writer)
            self._remove_staged(handle)

    def _remove_staged(self, handle: Committable) -> None:
        # The attempt record first: without it, the staged files are only leftovers.
        self._remove(self._attempt(parse_transaction_id(handle.transaction_id)))
        super()._remove_staged(handle)

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """End transactions that earlier runs began, and remove their staged files, but no file of `pending`."""
        for folder in self._names(self._layout.staging_of_all):
            if not folder.isdecimal() or not owns_leftovers_of(self._ctx, int(folder)):
                continue
            left = [name for name in self._attempts_of(int(folder)) if self._layout.was_left_by_earlier_run(name)]
            if left:
                # No restored handle names them: such transactions are committed by now. A zombie may still send them.
                self._fence(self._writer_of(int(folder)))
        super().recover(checkpoint_id, pending)

    def _writer_of(self, subtask: int) -> str:
        ctx = self._ctx
        return TransactionId(ctx.job_id, ctx.lineage, ctx.uid, subtask, 0, 0, "", 0).writer

    def _fence(self, writer: str) -> None:
        with self._committing:
            self._drop_producer()
            producer = MarkedProducer(self._clients, writer, self._topic, self._limit_s)
            try:
                producer.fence()
            except self._clients.error as e:
                raise as_tidegate_error(
                    "a transaction that an earlier run began could not be ended",
                    error_of(e),
                    where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, writer {writer}",
                    problem=producer.problem(),
                ) from None
            finally:
                producer.close()

    def close(self) -> None:
        """Drop the running transaction and the producer; staged records stay."""
        self._closing.set()
        # A commit that is under way notices, and then drops the producer itself.
        if self._committing.acquire(blocking=False):
            try:
                self._drop_producer()
            finally:
                self._committing.release()
        super().close()

    def _where(self, handle: Committable) -> str:
        ctx = self._ctx
        return f"job {ctx.job_id}, sink {ctx.uid!r}, topic {self._topic}, transaction {handle.transaction_id}"


class _LocalCopy:
    """A staged file as a local path: itself, or a copy that exists within the context."""

    def __init__(self, filesystem: AbstractFileSystem, path: str, is_local: bool, scratch: str) -> None:
        self._fs = filesystem
        self._path = path
        self._is_local = is_local
        self._scratch = scratch
        self._copy = ""

    def __enter__(self) -> str:
        if self._is_local:
            return self._path
        descriptor, self._copy = tempfile.mkstemp(prefix="staged-", dir=self._scratch or None)
        os.close(descriptor)
        self._fs.get_file(self._path, self._copy)
        return self._copy

    def __exit__(self, *_: object) -> None:
        if self._copy:
            os.remove(self._copy)


def attempt_name(made: TransactionId) -> str:
    """Return the name of a transaction's attempt record in the staging folder."""
    return str(
        StagedName(made.generation, file_name_token(made.run_id), made.number, made.checkpoint_id, ATTEMPT_SUFFIX)
    )
