"""The thread of a reader of changes: creates the slot, copies the table, and receives its changes."""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.change_rows import INSERT
from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.change_assembler import Arrived, ChangeAssembler
from tidegate.connectors.postgres.source.change_check import ChangeOptions, check_changes
from tidegate.connectors.postgres.source.handover import ChangePosition, DatabaseState, Piece, lsn_of, lsn_text
from tidegate.connectors.postgres.source.key_ranges import KeyRange, copy_statement
from tidegate.connectors.postgres.source.scan_splits import SHARED_STATE
from tidegate.connectors.postgres.source.slots import (
    SlotOwner,
    ensure_publication,
    find_slot,
    free_slot,
    report_other_slots,
    slot_problem,
)
from tidegate.connectors.postgres.source.source_errors import is_outage, raise_alone, source_error
from tidegate.connectors.postgres.source.source_session import (
    WAIT_S,
    SourceClosedError,
    end_results,
    open_session,
    run_simple,
    wait_for_data,
)
from tidegate.connectors.postgres.source.source_table import SourceTable, TableName, find_table
from tidegate.connectors.postgres.source.table_access import ServerTable
from tidegate.connectors.postgres.source.table_copy import copied_rows
from tidegate.connectors.postgres.source.table_definition import TableDefinition
from tidegate.connectors.postgres.source.table_watch import TableWatch, definition_of, gone
from tidegate.errors import OutageError

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger("tidegate.connectors")

RETRY_S = 0.5
"""Seconds between two attempts to reach the server or to get the slot."""
STATUS_S = 5.0
"""Seconds between two reports to the server, which ends a silent connection after wal_sender_timeout (60 s)."""
LINGER_S = 0.01
"""Wait for further changes before a batch is emitted, seconds: the server sends the rows of a transaction in parts."""
MOST_AGE_S = 0.1
"""Time after which a batch is emitted although further changes arrive, seconds."""
_DATA, _KEEPALIVE = ord("w"), ord("k")
_DATA_HEADER_BYTES = 25
_STATUS = struct.Struct("!cQQQqB")
_STATE = "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"


@dataclass(frozen=True)
class FeedSettings:
    """Settings of a feed.

    Attributes:
        schema: of the batches, with the column of the kind.
        types: types that the user declares.
        outage_s: seconds for which the server may not answer.
    """

    database: Database
    table: TableName
    schema: pa.Schema
    types: Mapping[str, pa.DataType]
    options: ChangeOptions
    outage_s: float

    @property
    def place(self) -> str:
        """The database, for messages."""
        return self.database.place

    @property
    def where(self) -> str:
        """Place for messages."""
        return f"{self.place}, table {self.table}"

    @property
    def table_schema(self) -> pa.Schema:
        """Columns of the table that are read."""
        return pa.schema([field for field in self.schema if field.name != self.options.kind_column])


@dataclass
class _Copy:
    """A transaction that sees one state of the table, with the definition in it.

    Transactions after `end_lsn` are not in it. It has locked the table against everything that replaces its files.
    """

    connection: psycopg.Connection[Any]
    state: DatabaseState
    end_lsn: int
    definition: TableDefinition


class ChangeFeed:
    """Yields batches with positions, on a thread. `confirm` may be called from any thread.

    Attributes:
        server_lsn: end of the WAL, as the server has last reported it; 0: unknown.
    """

    def __init__(
        self,
        settings: FeedSettings,
        owner: SlotOwner,
        position: ChangePosition | None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: position: None: a fresh start."""
        self._settings, self._owner, self._now_s = settings, owner, monotonic_s
        self._position = position
        self._confirmed = self._reported = self.server_lsn = 0
        self._next_status_s = 0.0
        self._answered_s = monotonic_s()
        self._sql: psycopg.Connection[Any] | None = None
        self._stream_connection: psycopg.Connection[Any] | None = None
        self._first_copy: _Copy | None = None
        self._watch: TableWatch | None = None

    def compare_soon(self) -> None:
        """Request a comparison of the table with its definition. May be called from any thread."""
        if (watch := self._watch) is not None:
            watch.soon()

    def confirm(self, lsn: int) -> None:
        """Let the server remove WAL before `lsn`, soon: no restore needs it any more."""
        self._confirmed = max(self._confirmed, lsn)

    def results(self, closed: threading.Event) -> Iterator[Arrived]:
        """Yield what the reader has not yet, until `closed`. Lost connections are made again.

        Raises:
            OutageError: the server has not answered for the time limit.
            TidegateError: the changes cannot be read on.
        """
        try:
            while True:
                try:
                    for arrived in self._attempt(closed):
                        self._position = arrived.position
                        self._answered_s = self._now_s()
                        yield arrived
                except load_psycopg().Error as error:
                    self._failed(error, closed)
                finally:
                    self._disconnect()
        except SourceClosedError:
            return

    def keep_alive(self) -> None:
        """Report to the server while the reader takes no results. Called on the thread."""
        try:
            self._report()
        except load_psycopg().Error:
            return  # the next attempt to receive notices that the connection is lost

    def _failed(self, error: Exception, closed: threading.Event) -> None:
        failed = source_error(
            self._settings.database, error, "the changes cannot be read", f"table {self._settings.table}"
        )
        if not is_outage(error) or self._now_s() - self._answered_s >= self._settings.outage_s:
            raise_alone(failed)
        logger.warning("the stream of changes is resumed: %s", failed)
        if closed.wait(RETRY_S):
            raise SourceClosedError

    def _disconnect(self) -> None:
        self.keep_alive()
        first = self._first_copy.connection if self._first_copy is not None else None
        for connection in (self._stream_connection, self._sql, first):
            if connection is not None:
                connection.close()
        self._stream_connection = self._sql = self._first_copy = self._watch = None

    def _attempt(self, closed: threading.Event) -> Iterator[Arrived]:
        settings = self._settings
        self._sql = sql = open_session(settings.database, self._owner.application)
        table = find_table(sql, settings.table, settings.database.place)
        key = check_changes(sql, table, settings.schema, settings.options, settings.database.place)
        publication = ensure_publication(sql, table, settings.options.publication, settings.where)
        if self._position is None:
            yield Arrived(None, self._create(sql, table, closed))
        else:
            if self._position.table_oid != table.oid:
                raise gone(settings.where, "the table was dropped, and created again")
            self._position = self._taken_over(sql, self._position, closed)
        assert self._position is not None
        # Before the copy, too: a later state does not have the rows that are missing in the earlier one.
        self._watch = watch = TableWatch(sql, table.oid, settings, self._position.definition, self._now_s)
        if watch.compare() is not None or self._position.definition is None:
            yield Arrived(None, replace(self._position, definition=watch.definition))
        if self._position.copying:
            yield from self._copied(self._position, table, key, closed)
        yield from self._streamed(sql, self._position, table, key, publication, watch, closed)

    # ------------------------------------------------------------ the slot

    def _create(self, sql: psycopg.Connection[Any], table: SourceTable, closed: threading.Event) -> ChangePosition:
        """Create the slot, and begin the transaction that sees the state at which its changes begin."""
        settings, slot = self._settings, self._owner.slot
        # Without a copy: what happens to the table from now on is noticed.
        definition = definition_of(sql, table.oid, settings)
        if self._freed(sql, closed):
            # An earlier attempt of this fresh start created it. It has no checkpoint, so no snapshot needs the slot.
            sql.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        report_other_slots(sql, self._owner)
        copies = settings.options.initial_copy
        connection = open_session(settings.database, self._owner.application, replication="database")
        try:
            share = "EXPORT_SNAPSHOT" if copies else "NOEXPORT_SNAPSHOT"
            # It waits for the end of all transactions that run now.
            try:
                created = run_simple(connection, f'CREATE_REPLICATION_SLOT "{slot}" LOGICAL pgoutput {share}', closed)
            except load_psycopg().errors.DuplicateObject as error:
                # Not dropped here: this attempt may be the older one.
                raise OutageError(
                    f"the replication slot {slot!r} exists already",
                    where=settings.where,
                    cause="another attempt of this start has created it at the same time",
                    remedy="The next attempt drops it",
                ) from error
            lsn, exported = lsn_of(created.get_value(0, 1).decode()), created.get_value(0, 2)
            if copies:
                self._first_copy = self._begin_copy(sql, table.oid, exported.decode(), closed)
        finally:
            connection.close()
        logger.info("replication slot %s of table %s begins at %s", slot, settings.table, lsn_text(lsn))
        if self._first_copy is None:
            return ChangePosition(slot, lsn, table_oid=table.oid, definition=definition)
        begun, definition = self._first_copy.state, self._first_copy.definition
        return ChangePosition(slot, lsn, begun=begun, copying=True, table_oid=table.oid, definition=definition)

    def _freed(self, sql: psycopg.Connection[Any], closed: threading.Event) -> bool:
        """Wait until nobody uses the slot. Return whether it exists."""
        since_s = self._now_s()
        while (found := find_slot(sql, self._owner.slot)) is not None:
            if free_slot(sql, self._owner, found, self._settings.where):
                return True
            if self._now_s() - since_s >= self._settings.outage_s:
                raise OutageError(
                    f"the replication slot {found.name!r} is in use",
                    where=self._settings.where,
                    cause=f"process {found.active_pid} of the server, application {found.application!r}, reads it",
                    remedy="End the other reader",
                )
            if closed.wait(WAIT_S):
                raise SourceClosedError
        return False

    def _taken_over(
        self, sql: psycopg.Connection[Any], position: ChangePosition, closed: threading.Event
    ) -> ChangePosition:
        """Return the position with this lineage's own slot, which can be read from there on."""
        slot = self._owner.slot
        if position.slot != slot and find_slot(sql, slot) is None:
            # A fork: the original's slot stays with the original.
            self._check_slot(sql, position.slot, position.lsn)
            sql.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [position.slot, slot])
        self._check_slot(sql, slot, position.lsn)
        self._freed(sql, closed)
        return replace(position, slot=slot)

    def _check_slot(self, sql: psycopg.Connection[Any], slot: str, lsn: int) -> None:
        problem = slot_problem(sql, slot, lsn)
        if problem is not None:
            raise gone(self._settings.where, problem)

    # ------------------------------------------------------------ the copy

    def _begin_copy(
        self, sql: psycopg.Connection[Any], oid: int, exported: str | None, closed: threading.Event
    ) -> _Copy:
        """Begin a transaction that sees one state of the table.

        Args: exported: the state. None: the present one.

        Raises:
            OutageError: files of the table were replaced since that state, so that the state may lack their rows.
        """
        settings = self._settings
        connection = open_session(settings.database, self._owner.application)
        try:
            connection.execute(SHARED_STATE)
            if exported is not None:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
            row = connection.execute(_STATE).fetchone()
            assert row is not None
            # TRUNCATE and forms of ALTER TABLE that rewrite the table hide its rows from earlier states. The lock
            # includes partitions, and ends with the transaction.
            run_simple(
                connection, f"LOCK TABLE {settings.table.sql().as_string(connection)} IN ACCESS SHARE MODE", closed
            )
            definition = definition_of(connection, oid, settings)
            if not definition.has_same_files(definition_of(sql, oid, settings)):
                raise OutageError(
                    "the table cannot be copied now",
                    where=settings.where,
                    cause="a statement such as TRUNCATE or VACUUM FULL has replaced its files at this moment",
                    remedy="The job tries again according to its restart strategy",
                )
            return _Copy(connection, DatabaseState.of(row[0]), lsn_of(row[1]), definition)
        except BaseException:
            connection.close()
            raise

    def _later_copy(self, begun: DatabaseState, oid: int, closed: threading.Event) -> _Copy:
        """Begin a transaction that sees everything that the stream does not send."""
        assert self._sql is not None, "an attempt is connected"
        while True:
            copy = self._begin_copy(self._sql, oid, None, closed)
            if copy.state.contains(begun):
                return copy
            copy.connection.close()
            logger.warning("the copy waits for transactions that wait for a synchronous standby")
            if closed.wait(RETRY_S):
                raise SourceClosedError

    def _copied(
        self, position: ChangePosition, table: SourceTable, key: tuple[str, ...], closed: threading.Event
    ) -> Iterator[Arrived]:
        """Copy the rows after the last one, in one state."""
        assert position.begun is not None
        settings = self._settings
        copy = self._first_copy or self._later_copy(position.begun, table.oid, closed)
        self._first_copy = None
        done, rows, last = position.copied, position.rows, None
        read, schema = KeyRange(table.key_columns(key)), settings.table_schema
        try:
            # The rows of parallel workers have no order.
            copy.connection.execute("SET max_parallel_workers_per_gather = 0")
            statement = copy_statement(copy.connection, settings.table, read, schema.names, position.after, None)
            for copied in copied_rows(copy.connection, statement, len(key), schema, closed, settings.where):
                rows, last = rows + copied.batch.num_rows, copied.last
                pieces = (*done, Piece(last, copy.state, copy.end_lsn))
                yield Arrived(self._inserts(copied.batch), replace(position, copied=pieces, rows=rows))
        finally:
            copy.connection.close()
        pieces = (*done, Piece(None, copy.state, copy.end_lsn))
        self._position = replace(position, copied=pieces, copying=False, rows=rows)
        yield Arrived(None, self._position)

    def _inserts(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        kinds = pa.repeat(pa.scalar(INSERT, pa.string()), batch.num_rows)
        kind_column = self._settings.options.kind_column
        columns = [kinds if name == kind_column else batch.column(name) for name in self._settings.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._settings.schema)

    # ------------------------------------------------------------ the stream

    def _streamed(
        self,
        sql: psycopg.Connection[Any],
        position: ChangePosition,
        table: SourceTable,
        key: tuple[str, ...],
        publication: str,
        watch: TableWatch,
        closed: threading.Event,
    ) -> Iterator[Arrived]:
        settings = self._settings
        access = ServerTable(
            sql,
            watch,
            settings.table,
            table.key_columns(key),
            settings.schema,
            settings.options,
            settings.types,
            list(table.columns),
            settings.database.place,
            logger.warning,
        )
        where = f"{settings.where}, slot {position.slot}"
        assembler = ChangeAssembler(
            position, settings.table, key, settings.schema, settings.options, access, where, logger.warning
        )
        self._stream_connection = open_session(settings.database, self._owner.application, replication="database")
        name = publication.replace('"', '""').replace("'", "''")
        options = f"(proto_version '1', publication_names '\"{name}\"')"
        start = f'START_REPLICATION SLOT "{position.slot}" LOGICAL {lsn_text(position.lsn)} {options}'
        run_simple(self._stream_connection, start, closed)
        self._answered_s = self._now_s()
        yield from self._received(self._stream_connection, assembler, watch, closed)

    def _received(
        self,
        connection: psycopg.Connection[Any],
        assembler: ChangeAssembler,
        watch: TableWatch,
        closed: threading.Event,
    ) -> Iterator[Arrived]:
        libpq = connection.pgconn
        oldest_s = 0.0  # time of the first change that waits
        while True:
            length, data = libpq.get_copy_data(1)
            arrived: Arrived | None = None
            if length > 0 and data[0] == _DATA:
                if not assembler.has_rows:
                    oldest_s = self._now_s()
                arrived = assembler.add(bytes(data[_DATA_HEADER_BYTES:]))
            elif length > 0 and data[0] == _KEEPALIVE:
                self._keepalive(data, assembler)
            elif length == 0:
                arrived = self._waited(connection, assembler, oldest_s, closed)
                watch.check(assembler.position.lsn)
                yield from self._compared(None, assembler, watch)
            elif length < 0:
                end_results(connection, closed)
                raise load_psycopg().OperationalError("the server has ended the stream")
            if arrived is not None:
                yield from self._compared(arrived, assembler, watch)
            if assembler.is_full and (arrived := assembler.flush()) is not None:
                yield from self._compared(arrived, assembler, watch)

    def _waited(
        self, connection: psycopg.Connection[Any], assembler: ChangeAssembler, oldest_s: float, closed: threading.Event
    ) -> Arrived | None:
        """Wait for data, and return the changes before it if they are old enough."""
        more = wait_for_data(connection, LINGER_S if assembler.has_rows else WAIT_S, closed)
        if more:
            connection.pgconn.consume_input()
        self._report()
        return assembler.flush() if not more or self._now_s() - oldest_s >= MOST_AGE_S else None

    def _compared(self, arrived: Arrived | None, assembler: ChangeAssembler, watch: TableWatch) -> Iterator[Arrived]:
        """Yield what has arrived when no hidden change is found; and the new definition, if there is one."""
        definition = watch.compare()
        if arrived is not None:
            yield arrived
        if definition is not None:
            yield assembler.redefined(definition)

    def _keepalive(self, data: Any, assembler: ChangeAssembler) -> None:
        self._answered_s = self._now_s()
        self.server_lsn = int.from_bytes(data[1:9], "big")
        assembler.reached(self.server_lsn)
        if data[17]:
            self._next_status_s = 0.0  # the server wants a report

    def _report(self) -> None:
        """Report to the server which WAL is no longer needed, if that is new, or the last report is old."""
        connection, now_s = self._stream_connection, self._now_s()
        if connection is None or (self._confirmed <= self._reported and now_s < self._next_status_s):
            return
        confirmed = self._confirmed
        received = max(confirmed, self._position.lsn if self._position is not None else 0)
        # The server shows the time of the report, which is left out, to nobody but its administrator.
        connection.pgconn.put_copy_data(_STATUS.pack(b"r", received, confirmed, confirmed, 0, 0))
        connection.pgconn.flush()
        self._reported, self._next_status_s = confirmed, now_s + STATUS_S
