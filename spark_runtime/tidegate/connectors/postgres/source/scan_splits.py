"""Search for the ranges of a table, and the state of the table that all readers see (S4.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.connectors.interface import Discovery, Split, SplitEnumerator
from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.key_ranges import KeyRange, ranges_of
from tidegate.connectors.postgres.source.source_errors import is_outage, raise_alone, source_error
from tidegate.connectors.postgres.source.source_session import open_session
from tidegate.connectors.postgres.source.source_table import TableName, find_table
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger("tidegate.connectors")

SHARED_STATE = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""Begins a transaction that sees one state of the database."""
NO_IDLE_LIMIT = "SET idle_in_transaction_session_timeout = 0"
"""The transaction that holds the state open is idle until all readers have read it."""


class ScanSplits:
    """Finds the ranges of one table. Calls block."""

    def __init__(self, database: Database, table: TableName, split_by: str | None, splits: int | None) -> None:
        self._database, self._table, self._split_by, self._splits = database, table, split_by, splits

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection, which the caller closes.

        Raises:
            OutageError, PipelineError: the server cannot be reached, or refuses the user.
        """
        try:
            return open_session(self._database, "tidegate scan")
        except load_psycopg().Error as error:
            raise_alone(self._failed(error))

    def find(self, connection: psycopg.Connection[Any], *, share: bool) -> list[Split]:
        """Return a split for each range.

        Args:
            share: the transaction of the connection stays open. Readers that begin before it ends see its state.
        """
        try:
            snapshot = self._begin_shared(connection) if share else None
            table = find_table(connection, self._table, self._database.place)
            found = ranges_of(connection, table, self._split_by, self._splits, self._database.place)
        except load_psycopg().Error as error:
            raise_alone(self._failed(error))
        return _splits(found, snapshot)

    @staticmethod
    def _begin_shared(connection: psycopg.Connection[Any]) -> str:
        connection.execute(NO_IDLE_LIMIT)
        connection.execute(SHARED_STATE)
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        return str(row[0])

    def _failed(self, error: Exception) -> TidegateError:
        return source_error(self._database, error, "the table cannot be divided into ranges", f"table {self._table}")


def _splits(ranges: Sequence[KeyRange], snapshot: str | None) -> list[Split]:
    return [Split(f"range-{n}", {**read.to_json(), "snapshot": snapshot}) for n, read in enumerate(ranges)]


class ScanEnumerator(SplitEnumerator):
    """Finds the ranges of a table once, and keeps their common state open until all of them have been read.

    Its state only records that it has searched: a restored job has the ranges, and its readers see newer states.
    """

    def __init__(self, ranges: ScanSplits, state: Any) -> None:
        """Args: state: see `Source.create_enumerator`."""
        self._ranges = ranges
        self._searched = state is not None
        self._shared: psycopg.Connection[Any] | None = None

    def discover(self) -> Discovery:
        """Return all ranges. The second search ends the common state; the runtime calls it when all ranges are read.

        Raises:
            OutageError: the server does not answer.
            PipelineError: the table does not exist, or cannot be divided as requested.
        """
        if self._searched:
            self.close()
            return Discovery((), {"searched": True}, complete=True)
        self.close()
        self._shared = self._ranges.connect()
        splits = self._ranges.find(self._shared, share=True)
        self._searched = True
        return Discovery(splits, {"searched": True})

    def close(self) -> None:
        """End the common state."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def begin_reading(connection: psycopg.Connection[Any], snapshot: str | None) -> bool:
    """Begin a transaction in the common state. Return False if that is over, so that it sees the present state."""
    if snapshot is not None:
        try:
            connection.execute(SHARED_STATE)
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            return True
        except load_psycopg().Error as error:
            if is_outage(error):
                raise
            connection.execute("ROLLBACK")
    connection.execute(SHARED_STATE)
    return False
