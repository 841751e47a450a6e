"""Leftovers of the Postgres sink: staged rows and rewind records that no snapshot needs (S2.3, S7.4)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tidegate.connectors.leftovers import Leftover, LeftoverReport, NeededTransactions
from tidegate.connectors.postgres.rewind_records import RECORDS_TABLE
from tidegate.connectors.postgres.staging_tables import OF_SINK, REWIND_COLUMN, TRANSACTION_COLUMN, Staging, names_of
from tidegate.connectors.transactions import SinkContext

if TYPE_CHECKING:
    import psycopg

_STAGED = f"""
SELECT transaction, staging, staged_at < %(time)s FROM {{schema}}.transactions JOIN {{schema}}.writers USING (writer)
WHERE {OF_SINK} AND NOT transaction_id = ANY (%(held)s) ORDER BY 1
"""
_RECORDS = f"""
SELECT record, former, recorded_at < %(time)s FROM {{schema}}.rewind_records JOIN {{schema}}.writers USING (writer)
WHERE {OF_SINK} AND checkpoint_id < %(oldest)s ORDER BY 1
"""
# A rewind to an older checkpoint must be refused from now on.
_KEEP = """
UPDATE {schema}.writers w SET kept_until = greatest(w.kept_until, u.newest) FROM (
    SELECT writer, max(checkpoint_id) AS newest FROM {schema}.rewind_records
    WHERE record = ANY (%(numbers)s) GROUP BY writer
) AS u WHERE u.writer = w.writer
"""


class PostgresLeftovers:
    """Data of one sink and lineage that `needed` does not name. Methods run in the caller's database transaction.

    Commit markers stay: they are a row per run and subtask.
    """

    def __init__(self, staging: Staging, ctx: SinkContext, needed: NeededTransactions) -> None:
        self._staging = staging
        self._ctx = ctx
        self._needed = needed

    def collect(self, connection: psycopg.Connection[Any], *, dry_run: bool) -> LeftoverReport:
        """List leftovers, and delete them."""
        if self._staging.lacks(connection, "writers", "transactions"):
            return LeftoverReport()
        if not dry_run:
            self._staging.create(connection)
            # Not in the middle of a rewind, which compares rewind records with the target.
            self._staging.lock(connection, self._ctx, alone=False)
        staged, young = self._of_staging(connection, dry_run)
        records, also_young = self._of_records(connection, dry_run)
        return LeftoverReport((*staged, *records), young + also_young)

    def _of_staging(self, connection: psycopg.Connection[Any], dry_run: bool) -> tuple[list[Leftover], int]:
        if self._needed.handles is None or "staged_at" not in self._staging.columns_of(connection, "transactions"):
            return [], 0
        held = [handle.transaction_id for handle in self._needed.handles]
        tables, numbers, young = self._found(connection, _STAGED, held=held)
        found = [
            self._rows(connection, table, TRANSACTION_COLUMN, of_table, "staged", dry_run)
            for table, of_table in tables.items()
        ]
        if not dry_run and numbers:
            query = "DELETE FROM {schema}.transactions WHERE transaction = ANY (%(numbers)s)"
            connection.execute(self._staging.statement(query), {"numbers": numbers})
        return found, young

    def _of_records(self, connection: psycopg.Connection[Any], dry_run: bool) -> tuple[list[Leftover], int]:
        if self._staging.lacks(connection, RECORDS_TABLE):
            return [], 0
        tables, numbers, young = self._found(connection, _RECORDS, oldest=self._needed.markers_from)
        found = [
            self._rows(connection, table, REWIND_COLUMN, of_table, "rewind", dry_run)
            for table, of_table in tables.items()
            if table
        ]
        if numbers:
            if not dry_run:
                connection.execute(self._staging.statement(_KEEP), {"numbers": numbers})
            found.append(self._rows(connection, RECORDS_TABLE, "record", numbers, "rewind", dry_run))
        return found, young

    def _found(
        self, connection: psycopg.Connection[Any], query: str, **values: Any
    ) -> tuple[dict[str, list[int]], list[int], int]:
        """Return the numbers of old transactions by table, all of them, and how many are too young."""
        values |= {**names_of(self._ctx), "time": self._needed.before}
        tables: dict[str, list[int]] = defaultdict(list)
        young = 0
        for number, table, is_old in connection.execute(self._staging.statement(query), values):
            if is_old:
                tables[table].append(number)
            young += not is_old
        return tables, [number for of_table in tables.values() for number in of_table], young

    def _rows(
        self, connection: psycopg.Connection[Any], table: str, column: str, numbers: list[int], why: Any, dry_run: bool
    ) -> Leftover:
        from psycopg import sql

        parts = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
        where = "FROM {schema}.{table} AS t WHERE {column} = ANY (%(numbers)s)"
        query = self._staging.statement(f"SELECT coalesce(sum(pg_column_size(t.*)), 0)::bigint {where}", **parts)
        row = connection.execute(query, {"numbers": numbers}).fetchone()
        if not dry_run:
            connection.execute(self._staging.statement(f"DELETE {where}", **parts), {"numbers": numbers})
        return Leftover(f"{self._staging.schema}.{table}", why, len(numbers), row[0] if row else 0)
