"""Writer of the Postgres sink: stage, pre-commit, publish, clean up (S7.4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.change_rows import CHANGE_KINDS, DELETE, UPDATE_BEFORE, change_kind_column
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.postgres.connection import Connections, Database, is_unreachable, load_psycopg
from tidegate.connectors.postgres.copy_columns import copy_text
from tidegate.connectors.postgres.rewind_records import RewindRecords
from tidegate.connectors.postgres.staging_tables import (
    CHECK_CONSTRAINTS,
    DELETED_COLUMN,
    ROW_COLUMN,
    TRANSACTION_COLUMN,
    Registration,
    StagedRows,
    Staging,
)
from tidegate.connectors.postgres.target_table import TargetTable, columns_of
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.row_spool import RowSpool
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    TransactionId,
    check_writer,
    is_leftover,
    parse_transaction_id,
    transaction_id,
)
from tidegate.errors import DataError, FencedError, OutageError, SinkConflictError, SnapshotError, TidegateError
from tidegate.jobs.client.staged_data import StagedData

if TYPE_CHECKING:
    import psycopg

COMMIT_ORDER_TIMEOUT_S = 60.0
"""Longest wait, in seconds, of an upsert for an older checkpoint that another subtask must commit first."""
COMMIT_ORDER_POLL_S = 0.1
"""Interval, in seconds, of the checks during that wait."""

T = TypeVar("T")


class _ValueTakenError(Exception):
    """A row would get a unique value that another row has."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


class PostgresWriter(SinkWriter):
    """Two-phase-commit writer of one subtask.

    A transaction is what was written between two barriers. Its handle holds the number of its rows and the name of the
    staging table; everything else is in the database.

    - `write`: keeps the records in memory, and on local disk if they are many. No I/O with the server.
    - pre-commit (asynchronous): one database transaction copies the rows into a staging table and registers the
      transaction.
    - `commit`: for each checkpoint, in order, one database transaction unregisters its transactions, inserts their rows
      into the table, deletes them from the staging table and writes the commit markers. With a marker, there is nothing
      to do. A transaction that is neither registered nor marked: `TidegateError`. With `rewindable` it also writes
      `RewindRecords`. If a row of an upsert would get a unique value that another row has, the transactions of all
      subtasks for this checkpoint are published together, because one of them may give the value up.
    - `recover`: removes rows that earlier runs of this subtask, and of the subtask indices it cleans up, left staged;
      never rows that this run or a newer generation stages.

    The first of these steps that needs the server registers the writer. From then on, a writer of an older generation
    for the same subtask stages, commits and aborts nothing more (`FencedError`), and recovers nothing (S9.2). All
    methods except `write` and `prepare_commit` may run on several threads, each with its own connection. An outcome
    that the server left unclear is looked up when the step is repeated.
    """

    def __init__(
        self, database: Database, target: TargetTable, staging: Staging, ctx: SinkContext, *, rewindable: bool = False
    ) -> None:
        self._database = database
        self._target = target
        self._staging = staging
        self._rewind_records = RewindRecords(staging) if rewindable else None
        self._ctx = ctx
        # PostgreSQL cuts application names at 63 bytes.
        self._connections = Connections(database, f"tidegate {ctx.job_id}/{ctx.uid}/{ctx.subtask}"[:63])
        self._kind_column = change_kind_column(ctx.schema)
        self._columns = [name for name in ctx.schema.names if name != self._kind_column]
        self._rows: RowSpool | None = None
        self._registering = threading.Lock()
        self._registration: Registration | None = None
        self._next_number = 1
        self._together = False
        self._closing = threading.Event()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        if batch.num_rows == 0:
            return
        if self._rows is None:
            self._rows = RowSpool(self._ctx.schema, self._ctx.scratch)
        self._rows.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function stages its rows in the database."""
        rows, self._rows = self._rows, None
        if rows is None:
            return tuple

        def stage() -> Sequence[Committable]:
            writer = self._registered().writer
            # The id is fixed before the first attempt, so that a repeated attempt finds what the first one registered.
            made = parse_transaction_id(transaction_id(self._ctx, checkpoint_id, self._number()))
            # In its own transaction, so that the lock for creating tables is not held during the copy.
            table = self.run(lambda connection: self._staging_table(connection, made), "staged", str(made))
            self.run(lambda connection: self._stage(connection, writer, made, table, rows), "staged", str(made))
            # Only after the commit: a repeated attempt reads the rows again.
            rows.drop()
            return [Committable(str(made), {"rows": rows.rows, "staging": table})]

        return stage

    def _staging_table(self, connection: psycopg.Connection[Any], made: TransactionId) -> str:
        """Return the name of the staging table; looked up each time, because the target may have been altered."""
        there = columns_of(connection, self._target)
        names = self._columns
        if missing := [name for name in names if name not in there]:
            raise SinkConflictError(
                "the target table does not exist, or lacks columns of the records",
                where=self._where(str(made)),
                cause=f"missing columns: {', '.join(missing)}",
                remedy="Create the table or the columns again, then restore the job",
            )
        changes_key = self._target.key if self._kind_column is not None else ()
        columns = [there[name] for name in names]
        return self._staging.staging_table(connection, self._target.name, columns, changes_key)

    def _stage(
        self, connection: psycopg.Connection[Any], writer: int, made: TransactionId, table: str, rows: RowSpool
    ) -> None:
        number = self._staging.register_transaction(connection, writer, made, self._target.name, table, rows.rows)
        if number is None:
            return  # An earlier attempt was committed; only its answer was lost.
        first = 0
        with connection.cursor() as cursor:
            changes = self._kind_column is not None
            with cursor.copy(self._staging.copy_statement(table, self._columns, changes=changes)) as copy:
                for chunk in rows.chunks():
                    order = pa.array(np.arange(first, first + chunk.num_rows))
                    same = pa.repeat(pa.scalar(number, pa.int64()), chunk.num_rows)
                    leading = {TRANSACTION_COLUMN: same, ROW_COLUMN: order, **self._deleted(chunk, made)}
                    copy.write(copy_text(chunk.select(self._columns), leading))
                    first += chunk.num_rows
            if cursor.rowcount != rows.rows:
                raise TidegateError(
                    "the database stored another number of rows than the sink sent",
                    where=self._where(str(made)),
                    cause=f"sent {rows.rows} rows, stored {cursor.rowcount}",
                    remedy="Check the staging tables for triggers that drop rows, then restore the job",
                )
        # Last, so that the shared lock is held only briefly: a newer generation need not wait for the copy.
        self._hold_generation(connection)

    def _deleted(self, chunk: pa.RecordBatch, made: TransactionId) -> dict[str, pa.Array]:
        """Return whether each change row deletes its key; empty if the records are no change rows.

        A row before an update deletes its key, too: the row after it inserts it again, or another key.
        """
        if self._kind_column is None:
            return {}
        kinds = chunk.column(self._kind_column)
        unknown = pc.unique(kinds.filter(pc.invert(pc.fill_null(pc.is_in(kinds, pa.array(CHANGE_KINDS)), False))))
        if len(unknown):
            raise DataError(
                f"the kind of change {unknown[0].as_py()!r} is unknown",
                where=self._where(str(made)),
                cause=f"column {self._kind_column!r} must hold {', '.join(CHANGE_KINDS)}",
                remedy="Correct the column in the pipeline",
            )
        return {DELETED_COLUMN: pc.is_in(kinds, pa.array([DELETE, UPDATE_BEFORE]))}

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions, idempotently; one database transaction for each checkpoint, oldest first.

        Raises:
            FencedError: a newer generation writes this subtask.
            SnapshotError: a transaction is lost (no marker, nothing staged), or damaged.
            TidegateError: a transaction belongs to another lineage, or the database refuses its rows; then nothing of
                its checkpoint is visible.
        """
        for handle in committables:
            check_writer(self._ctx, handle)
        made = sorted((parse_transaction_id(h.transaction_id) for h in committables), key=lambda m: m.checkpoint_id)
        for checkpoint_id, group in groupby(made, key=lambda m: m.checkpoint_id):
            self._publish(checkpoint_id, list(group))

    def _publish(self, checkpoint_id: int, transactions: Sequence[TransactionId]) -> None:
        self._registered()
        where = f"checkpoint {checkpoint_id}"
        for _ in range(int(COMMIT_ORDER_TIMEOUT_S / COMMIT_ORDER_POLL_S)):
            together = self._together
            try:
                if self.run(
                    lambda connection: self._try_publish(connection, checkpoint_id, transactions), "committed", where
                ):
                    return
            except _ValueTakenError as e:
                if together or not self._target.key:
                    raise self._refused(e.error, "committed", where) from None
                # The row that has the value may give it up in another subtask's part of the checkpoint.
                self._together = True
                continue
            if self._closing.wait(COMMIT_ORDER_POLL_S):
                break
        raise OutageError(
            "rows of an older checkpoint are not committed, so the upsert of this checkpoint cannot begin",
            where=self._where(where),
            cause=f"other subtasks staged them, and have not committed them within {COMMIT_ORDER_TIMEOUT_S:.0f} s",
            remedy="Check in the log why the other subtasks do not commit. The next start repeats the commit",
        )

    def _try_publish(
        self, connection: psycopg.Connection[Any], checkpoint_id: int, transactions: Sequence[TransactionId]
    ) -> bool:
        try:
            return self._publish_all(connection, checkpoint_id, transactions)
        except load_psycopg().errors.UniqueViolation as e:
            raise _ValueTakenError(e) from None

    def _publish_all(
        self, connection: psycopg.Connection[Any], checkpoint_id: int, transactions: Sequence[TransactionId]
    ) -> bool:
        self._hold_generation(connection)
        # An upsert must not be overwritten by older rows of its key that are committed later.
        if self._target.key and self._staging.is_staged_elsewhere(connection, self._ctx, checkpoint_id):
            return False
        if self._together:
            for made in transactions:
                of_all_subtasks = self._staging.staged_together(connection, self._ctx, made)
                if of_all_subtasks is None:
                    return False
                for one in of_all_subtasks:
                    self._publish_one(connection, parse_transaction_id(one))
        for made in transactions:
            if not self._publish_one(connection, made) and not self._staging.is_marked(connection, made):
                raise SnapshotError(
                    "the rows of a pre-committed transaction are lost",
                    where=self._where(str(made)),
                    cause=f"the transaction has no commit marker, and schema {self._staging.schema!r} holds none of "
                    "its rows; they were removed, or the database was restored from a backup",
                    remedy="Restore the sink's tables from a backup that holds the rows, or restore an "
                    "earlier snapshot",
                )
        # Now, because an error at the end of the database transaction would come after the `except` of the caller.
        connection.execute(CHECK_CONSTRAINTS)
        return True

    def _publish_one(self, connection: psycopg.Connection[Any], made: TransactionId) -> bool:
        """Publish a transaction; False: it is not staged."""
        staged = self._staging.take(connection, str(made))
        if staged is not None:
            self._move(connection, made, staged)
        return staged is not None

    def _move(self, connection: psycopg.Connection[Any], made: TransactionId, staged: StagedRows) -> None:
        if staged.target != self._target.name:
            raise SinkConflictError(
                f"the staged rows are for table {staged.target}, but the sink writes to {self._target.name}",
                where=self._where(str(made)),
                cause="the table of the sink was changed while a transaction was not committed",
                remedy=f"Restore with table {staged.target} in the sink, let the job commit, then change the table",
            )
        if self._rewind_records is None:
            self._staging.publish(connection, staged, self._target)
        else:
            self._rewind_records.publish(connection, made, staged, self._target)
        found = self._staging.remove_rows(connection, staged)
        if found != staged.rows or not self._staging.mark(connection, made, self._rewind_records is not None):
            raise SnapshotError(
                "the staged rows of a transaction are damaged",
                where=self._where(str(made)),
                cause=f"{staged.rows} rows were staged and {found} were found in "
                f"{self._staging.schema}.{staged.staging}",
                remedy="Restore an earlier snapshot; no row of this transaction was published",
            )

    def abort(self, committables: Sequence[Committable]) -> None:
        """Remove staged rows; published rows stay.

        Raises:
            FencedError, TidegateError: as for `commit`.
        """
        for handle in committables:
            check_writer(self._ctx, handle)
        self._registered()

        def remove(connection: psycopg.Connection[Any]) -> None:
            self._hold_generation(connection)
            self._remove(connection, [handle.transaction_id for handle in committables])

        self.run(remove, "removed", f"{len(committables)} transactions")

    def quarantine(self, committables: Sequence[Committable], into: Quarantine) -> None:
        """Leave the rows in the staging table, listed in `quarantined` instead of `transactions`.

        So nothing commits or removes them.

        Raises:
            FencedError, TidegateError: as for `commit`.
        """
        for handle in committables:
            check_writer(self._ctx, handle)
            made = parse_transaction_id(handle.transaction_id)
            n = into.checkpoint_of(made)
            self._registered()

            # Its defaults bind the values of this iteration.
            def put_away(
                connection: psycopg.Connection[Any], made: TransactionId = made, n: int = n
            ) -> StagedData | None:
                self._hold_generation(connection)
                found = self._staging.move_to_quarantine(connection, made, n)
                if found is None:
                    return None
                relation, where = self._staging.rows_of(found)
                place = self._database.place
                return StagedData(made.uid, n, "table", found.rows, relation=relation, where=where, place=place)

            data = self.run(put_away, "put into quarantine", str(made))
            if data is not None:
                into.note(made, data)

    def _remove(self, connection: psycopg.Connection[Any], transactions: Sequence[str]) -> None:
        for transaction in transactions:
            staged = self._staging.take(connection, transaction)
            if staged is not None:
                self._staging.remove_rows(connection, staged)

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Remove rows that earlier runs left staged and `pending` does not name, of all subtask indices this one cleans
        up.

        If a later run has begun, remove nothing.
        """
        registration = self._register()
        if registration is None:
            return
        kept = {handle.transaction_id for handle in pending}

        def clean(connection: psycopg.Connection[Any]) -> None:
            self._staging.lock(connection, self._ctx, alone=False)
            if self._staging.replaced(connection, self._ctx, registration.writer):
                return
            staged = self._staging.staged(connection, self._ctx)
            self._remove(connection, [t for t in staged if t not in kept and is_leftover(self._ctx, t)])
            self._staging.forget_idle_writers(connection, self._ctx, registration.writer)

        self.run(clean, "removed", "what earlier runs left")

    def run(self, work: Callable[[psycopg.Connection[Any]], T], done: str, what: str) -> T:
        """Run `work` in one database transaction, repeatedly after a lost connection.

        Args:
            done, what: for errors: `rows could not be <done>`, and what of the sink they belong to.

        Raises:
            OutageError: the server does not answer.
            TidegateError: the server refuses the work.
        """
        psycopg = load_psycopg()
        try:
            return self._connections.run(work)
        except psycopg.Error as e:
            if is_unreachable(e):
                raise OutageError(
                    "the database cannot be reached",
                    where=self._where(what),
                    cause=self._database.error_text(e),
                    remedy="Check the server and the network. The job tries again according to its restart strategy",
                ) from None
            raise self._refused(e, done, what) from None

    def _refused(self, error: psycopg.Error, done: str, what: str) -> TidegateError:
        """Return the error for work that the server has refused."""
        remedy = "Fix the cause in the database; its server log has the details. The next start tries again"
        if isinstance(error, load_psycopg().errors.UniqueViolation):
            remedy = (
                "If the rows are right at the end of the checkpoint, and a value only moves from one row to another: "
                "replace the constraint by one that is checked at the end of a transaction, ALTER TABLE ... DROP "
                "CONSTRAINT name, ADD CONSTRAINT name UNIQUE (...) DEFERRABLE. Otherwise remove the row that has the "
                "value, or the constraint. The next start tries again"
            )
        # Without its cause, because the server's detail quotes rows, which must not be logged.
        return TidegateError(
            f"rows could not be {done}"
            if done != "begun"
            else "the database refused to register the writer of the sink",
            where=self._where(what),
            cause=self._database.error_text(error),
            remedy=remedy,
        )

    def close(self) -> None:
        """Drop the running transaction; pre-committed rows stay."""
        self._closing.set()
        if self._rows is not None:
            self._rows.drop()
            self._rows = None
        self._connections.close()

    def _number(self) -> int:
        # Writer threads number their transactions concurrently.
        with self._registering:
            number, self._next_number = self._next_number, self._next_number + 1
            return number

    def _registered(self) -> Registration:
        registration = self._register()
        if registration is None:
            raise self._fenced_error()
        return registration

    def _register(self) -> Registration | None:
        """Return this writer's registration, made at the first call; None if a newer generation has registered."""

        def register(connection: psycopg.Connection[Any]) -> Registration | None:
            self._staging.create(connection)
            if self._rewind_records is not None:
                self._rewind_records.create(connection)
            self._staging.lock(connection, self._ctx, alone=True)
            return self._staging.register(connection, self._ctx)

        with self._registering:
            if self._registration is None:
                self._registration = self.run(register, "begun", "registration of the writer")
                if self._registration is not None:
                    self._next_number = self._registration.next_number
            return self._registration

    def _hold_generation(self, connection: psycopg.Connection[Any]) -> None:
        """Raise if a newer generation has registered, and keep one from registering before this transaction ends."""
        self._staging.lock(connection, self._ctx, alone=False)
        if self._staging.superseded(connection, self._ctx) is not None:
            raise self._fenced_error()

    def _fenced_error(self) -> FencedError:
        return FencedError(
            "a newer generation of the job writes to the target table",
            where=self._where(f"generation {self._ctx.generation}"),
            remedy="Do nothing: this process belongs to an earlier generation and has changed no rows",
        )

    def _where(self, what: str) -> str:
        ctx = self._ctx
        return f"job {ctx.job_id}, sink {ctx.uid!r}, subtask {ctx.subtask}, {self._target.name}, {what}"
