"""Writer of a sink with `streamWriter`: one batch for each checkpoint, committed as a whole (S7.4)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.commit_group import RECORD_SUFFIX, CommitGroups, record_name
from tidegate.connectors.files.sink.sink_layout import FileLayout, parse_staged_name
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.pyspark.batch_records import BatchRecords
from tidegate.connectors.pyspark.commit_claims import CommitClaims
from tidegate.connectors.pyspark.data_source_writer import Message, WriterCalls
from tidegate.connectors.row_spool import RowSpool
from tidegate.connectors.storage import is_local, list_folder
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    TransactionId,
    check_writer,
    owns_leftovers_of,
    parse_transaction_id,
    transaction_id,
)
from tidegate.errors import SinkConflictError, SnapshotError

logger = logging.getLogger("tidegate.connectors")


class StreamSinkWriter(SinkWriter):
    """Two-phase-commit writer of one subtask. The records of all subtasks for one checkpoint are one batch of the
    class, whose number is the checkpoint's id.

    - `write`: keeps the records in memory, and on local disk if they are many. The class is not called.
    - pre-commit (asynchronous): calls the class's `write` with the records, then writes its message to a record in the
      staging folder, durably (`CommitGroups`). If `write` fails, the class's `abort` gets None in place of a message.
    - `commit`, for each checkpoint, oldest first:

      1. Wait for the turn to commit the batch (`CommitClaims`). If it has a marker, there is nothing to do.
      2. If a subtask of the same run has a record of an earlier batch, commit the earlier batch first, in the same way.
         The permit covers it, too.
      3. Read the messages of all subtasks. If the own record is missing: `SnapshotError`.
      4. Call the class's `commit` with all messages, ordered by subtask, and the number.
      5. Write the marker, which names the transactions, then remove the records.

      If the process dies between steps 4 and 5, the next run repeats the commit with the same messages and number. If
      it restores an earlier snapshot instead, it calls `abort` for the batch, because it cannot know of the commit.
    - `abort` and `recover`: call the class's `abort` with the message, then remove the record.

    A run that restores batches that wait for a verdict notes them as adopted, so that step 2 finds them, too (S7.8).
    """

    def __init__(
        self,
        calls: WriterCalls,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        claims: CommitClaims,
        ctx: SinkContext,
    ) -> None:
        self._calls = calls
        self._fs = filesystem
        self._layout = layout
        self._claims = claims
        self._ctx = ctx
        self._groups = CommitGroups(filesystem, layout)
        self._records = BatchRecords(filesystem, layout, ctx)
        self._rows: RowSpool | None = None
        self._number = 1
        self._committing = threading.Lock()
        if is_local(filesystem):
            os.makedirs(layout.staging, exist_ok=True)

    # ------------------------------------------------------------ staging

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        if batch.num_rows == 0:
            return
        if self._rows is None:
            self._rows = RowSpool(self._ctx.schema, self._ctx.scratch)
        self._rows.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function passes its rows to the class, and stores the message."""
        rows, self._rows = self._rows, None
        if rows is None:
            return tuple
        made = parse_transaction_id(transaction_id(self._ctx, checkpoint_id, self._number))
        self._number += 1

        def stage() -> Sequence[Committable]:
            try:
                message = self._calls.write(rows.chunks(), self._ctx.subtask)
            except BaseException:  # also if the class ends the process, by SystemExit
                self._report_failed_write(made)
                raise
            size_bytes = self._groups.record(Committable(str(made), {"message": message}), durable=True)
            rows.drop()
            file = {"staged": record_name(made), "rows": rows.rows, "bytes": size_bytes}
            return [Committable(str(made), {"files": [file]})]

        return stage

    def _report_failed_write(self, made: TransactionId) -> None:
        try:
            self._calls.abort([None], made.checkpoint_id)
        except Exception as error:  # of the class; the failed write is what the user must see
            logger.warning("abort() after a failed write() failed, too: %s: %s", type(error).__name__, error)

    # ------------------------------------------------------------ commit

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions, idempotently, in order of their checkpoints.

        Raises:
            SnapshotError: a transaction is lost (no marker, no record), or its message cannot be read.
            SinkConflictError: a transaction belongs to another lineage.
            OutageError: the run ended while another subtask was committing.
            Exception: whatever the class raises. The next start repeats the commit.
        """
        for handle in committables:
            check_writer(self._ctx, handle)
        made = sorted((parse_transaction_id(h.transaction_id) for h in committables), key=_in_order)
        with self._committing:
            for batch, transactions in groupby(made, key=lambda one: one.checkpoint_id):
                own = list(transactions)
                self._commit_batch(batch, own)
                for one in own:
                    self._groups.forget(one)

    def _commit_batch(self, batch: int, own: Sequence[TransactionId]) -> None:
        with self._claims.turn(batch, lambda: self._records.is_committed(batch)) as mine:
            if mine:
                for earlier, transactions in sorted(self._earlier(batch, own).items()):
                    self._commit_batch(earlier, transactions)
                self._publish(batch, own)
        self._check_member(batch, own)

    def _earlier(self, batch: int, own: Sequence[TransactionId]) -> dict[int, list[TransactionId]]:
        """Return the open transactions of earlier batches that the permit for `batch` covers, too.

        The records of one run up to a completed checkpoint are all part of it. Records of other runs may be leftovers,
        unless the run has adopted them.
        """
        found: dict[int, list[TransactionId]] = {}
        for one in own:
            paths = [path for n, group in self._groups.of_run(one).items() if n < batch for path in group.values()]
            records = [self._groups.read(path) for path in paths]
            open_now = [parse_transaction_id(record.transaction_id) for record in records if record is not None]
            open_now += [made for made in self._records.adopted(one) if made.checkpoint_id < batch]
            for made in open_now:
                found.setdefault(made.checkpoint_id, []).append(made)
        return {n: made for n, made in found.items() if not self._records.is_committed(n)}

    def _publish(self, batch: int, own: Sequence[TransactionId]) -> None:
        messages: dict[TransactionId, Message] = {}
        for one in own:
            for path in self._groups.members(one).values():
                record = self._groups.read(path)
                if record is not None:
                    messages[parse_transaction_id(record.transaction_id)] = record.data["message"]
        if lost := [one for one in own if one not in messages]:
            raise SnapshotError(
                "the commit message of a pre-committed transaction is lost",
                where=self._where(lost[0]),
                cause=f"the batch has no commit marker, and the record {record_name(lost[0])} does not exist below "
                f"{self._layout.staging_of_all}; another process probably removed it",
                remedy="Put the record back, or restore an earlier snapshot",
            )
        ordered = sorted(messages, key=_in_order)
        self._calls.commit([messages[one] for one in ordered], batch)
        self._records.mark(batch, ordered)
        for one in ordered:
            self._groups.forget(one)
        self._records.forget_adopted(batch)

    def _check_member(self, batch: int, own: Sequence[TransactionId]) -> None:
        """Raise if the marker of a batch does not name the transactions. A pack names none."""
        named = self._records.marked(batch)
        if named is not None and (lost := [one for one in own if str(one) not in named]):
            raise SinkConflictError(
                f"batch {batch} was committed without a transaction of the snapshot",
                where=self._where(lost[0]),
                cause="the record of the transaction was missing when the batch was committed",
                remedy="Restore an earlier snapshot. The rows of the transaction are where write() put them",
            )

    # ------------------------------------------------------------ giving up

    def abort(self, committables: Sequence[Committable]) -> None:
        """Let the class give up transactions, and remove their records. Committed batches stay."""
        for handle in committables:
            check_writer(self._ctx, handle)
        for handle in committables:
            made = parse_transaction_id(handle.transaction_id)
            self._give_up(self._layout.staged(record_name(made), made.subtask))

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Give up transactions that earlier runs left and `pending` does not name, of all subtask indices this one
        cleans up. Adopt the pending ones.
        """
        waiting = [parse_transaction_id(handle.transaction_id) for handle in pending]
        kept = {(made.subtask, record_name(made)) for made in waiting}
        batches = {made.checkpoint_id for made in waiting}
        for made in waiting:
            self._records.adopt(made)
        for folder in list_folder(self._fs, self._layout.staging_of_all)[1]:
            index = folder.rsplit("/", 1)[-1]
            if not index.isdecimal() or not owns_leftovers_of(self._ctx, int(index)):
                continue
            for path in list_folder(self._fs, folder)[0]:
                name = parse_staged_name(path.rsplit("/", 1)[-1])
                if name is None or not self._layout.was_left_by_earlier_run(name):
                    continue
                if name.suffix != RECORD_SUFFIX:
                    self._remove(path)  # a claim
                elif (int(index), str(name)) not in kept:
                    self._give_up(path, batches)

    def _give_up(self, path: str, kept: Container[int] = ()) -> None:
        record = self._groups.read(path)
        # In batch mode, a duplicate attempt of a task belongs to the batch that is kept.
        if record is not None and parse_transaction_id(record.transaction_id).checkpoint_id not in kept:
            give_up(self._calls, record, self._records.is_committed)
        self._remove(path)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def close(self) -> None:
        """Drop the running transaction; pre-committed data stays. End waits for other subtasks."""
        self._claims.close()
        if self._rows is not None:
            self._rows.drop()
            self._rows = None

    def _where(self, made: TransactionId) -> str:
        return f"{self._calls.source.name}, sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {made}"


def give_up(calls: WriterCalls, record: Committable, is_committed: Callable[[int], bool]) -> None:
    """Call the class's `abort` for the message in a record, unless its batch is committed.

    An error of the class is only logged: its data is not part of any batch, and the job goes on.
    """
    data: Mapping[str, Any] = record.data
    batch = parse_transaction_id(record.transaction_id).checkpoint_id
    if is_committed(batch):
        return
    try:
        calls.abort([data["message"]], batch)
    except Exception as error:
        where = calls.source.where("abort")
        logger.warning("abort() of batch %d failed [%s]: %s: %s", batch, where, type(error).__name__, error)


def _in_order(made: TransactionId) -> tuple[int, int, int]:
    return made.checkpoint_id, made.subtask, made.number
