"""Checks of the table while its changes are read, for all that the stream does not show. Calls block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.connectors.postgres.source.change_check import ChangeOptions, check_changes
from tidegate.connectors.postgres.source.handover import lsn_of
from tidegate.connectors.postgres.source.slots import default_publication
from tidegate.connectors.postgres.source.source_table import TableName, find_table
from tidegate.connectors.postgres.source.table_definition import TableDefinition, hidden_changes, read_definition
from tidegate.errors import PipelineError, SnapshotError, TidegateError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

logger = logging.getLogger("tidegate.connectors")

CHECK_S = 10.0
"""Seconds between two checks that nobody requests: without them, a stream that lacks changes is only silent."""
_PUBLISHED_TABLE = """
SELECT t.schemaname || '.' || t.tablename FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relname = t.tablename AND c.relnamespace = n.oid
WHERE t.pubname = %s AND c.oid = %s
"""


class WatchedTable(Protocol):
    """Description of the table that is read. `FeedSettings` implements it."""

    @property
    def table(self) -> TableName:
        """Its name."""

    @property
    def schema(self) -> pa.Schema:
        """Columns that are read, with the column of the kind."""

    @property
    def table_schema(self) -> pa.Schema:
        """Columns that are read."""

    @property
    def options(self) -> ChangeOptions:
        """How changes are read."""

    @property
    def place(self) -> str:
        """The database, for messages."""


def gone(where: str, cause: str) -> SnapshotError:
    """Return the error for changes that cannot be read any more."""
    return SnapshotError(
        "the changes after the position do not exist any more",
        where=where,
        cause=cause,
        remedy="Restore a later snapshot; or start the job afresh with an empty target, so that the table is copied "
        "again",
    )


def publication_of(table: WatchedTable) -> str:
    """Return the name of the publication that is read."""
    return table.options.publication or default_publication(table.table)


def definition_of(connection: psycopg.Connection[Any], oid: int, table: WatchedTable) -> TableDefinition:
    """Return the definition of the table in the state that the connection sees."""
    return read_definition(connection, oid, table.table_schema.names, publication_of(table))


def hidden_error(where: str, changes: Sequence[str]) -> PipelineError:
    """Return the error for statements whose effect on rows is not in the stream."""
    return PipelineError(
        "rows of the table were changed by statements that logical replication does not report",
        where=where,
        cause="; ".join(changes),
        remedy="Start the job afresh with an empty target, so that the table is copied again; or, if the target is to "
        'stay as it is, set on_hidden_change="ignore", and restore the job',
    )


class TableWatch:
    """Compares the table with its description at the position, and notices that it is gone or not published any more.

    Attributes:
        definition: of the table, as the last comparison has accepted it.
    """

    def __init__(
        self,
        sql: psycopg.Connection[Any],
        oid: int,
        table: WatchedTable,
        definition: TableDefinition | None,
        monotonic_s: Callable[[], float],
    ) -> None:
        """Args: definition: at the position; None: the position is from an earlier version of tidegate."""
        self._sql, self._oid, self._table, self._now_s = sql, oid, table, monotonic_s
        self._next_s = monotonic_s() + CHECK_S
        self._is_due = True
        self._problem: tuple[int, TidegateError] | None = None
        self.definition = definition_of(sql, oid, table) if definition is None else definition

    def soon(self) -> None:
        """Request a comparison before the next rows are emitted. May be called from any thread."""
        self._is_due = True

    def compare(self) -> TableDefinition | None:
        """Compare if it was requested. Returns the new definition if the table has changed, without hidden changes.

        Raises:
            PipelineError: statements have changed rows without changes in the stream. It is raised at once, although
                the stream may not have reached them yet: what is committed until then does not become better.
        """
        if not self._is_due:
            return None
        # Cleared before the catalog is read, because a request may come meanwhile.
        self._is_due = False
        now = definition_of(self._sql, self._oid, self._table)
        if self._oid not in now.parts:
            self._next_s = self._now_s()  # it was dropped, which the next check reports
            return None
        if now == self.definition:
            return None
        changes = hidden_changes(self._sql, self.definition, now)
        where = f"{self._table.place}, table {self._table.table}"
        if changes and self._table.options.on_hidden_change == "fail":
            raise hidden_error(where, changes)
        if changes:
            logger.warning(
                "rows of table %s have changed, and are not changed downstream: %s", where, "; ".join(changes)
            )
        self.definition = now
        return now

    def is_part(self, oid: int, name: str) -> bool:
        """Return whether changes of this relation are changes of the table.

        Raises:
            PipelineError: it may have been a partition, and is none now.
        """
        if oid == self._oid or oid in self.definition.parts:
            return True
        self._is_due = True
        self.compare()
        if oid in self.definition.parts:
            return True
        is_partitioned = find_table(self._sql, self._table.table, self._table.place).kind == "p"
        published = self._sql.execute(_PUBLISHED_TABLE, [publication_of(self._table), oid]).fetchone()
        if not is_partitioned or published is not None:
            return False
        options = self._table.options
        if options.on_hidden_change == "ignore" and options.publication is None:
            return True  # the publication has only this table, so it was a partition
        cause = f"the changes of {name} may be changes of a partition that does not exist any more"
        raise hidden_error(f"{self._table.place}, table {self._table.table}", [cause])

    def check(self, lsn: int) -> None:
        """Check once in a while whether the table is there and published.

        Fails when `lsn` has passed all changes from before the problem was noticed.
        """
        if self._problem is not None:
            end_lsn, error = self._problem
            if lsn >= end_lsn:
                raise error
        elif self._now_s() >= self._next_s:
            self._next_s = self._now_s() + CHECK_S
            self._is_due = True
            try:
                self._check()
            except TidegateError as error:
                row = self._sql.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
                self._problem = lsn_of(row[0] if row else "0/0"), error

    def _check(self) -> None:
        table = find_table(self._sql, self._table.table, self._table.place)
        if table.oid != self._oid:
            raise gone(f"{self._table.place}, table {self._table.table}", "the table was dropped, and created again")
        check_changes(self._sql, table, self._table.schema, self._table.options, self._table.place)
