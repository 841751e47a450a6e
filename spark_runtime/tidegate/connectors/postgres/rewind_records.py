"""Data for rewinds of the Postgres sink, written with each commit, and every statement on it (S9.3).

In the schema of the staging tables:

    rewind_records a row per committed transaction: its writer, number and checkpoint, the id of the database
                   transaction that committed it, and how many rows it inserted or updated. Rewinds have rows, too
    former_...     a table per target table and its columns: the rows that upserts and deletes have replaced

PostgreSQL stores with each version of a row which database transaction wrote it (`xmin`). So no copy of an
inserted row is needed: it is found by `xmin`, and if another program has changed it, it has another one. `VACUUM`, also
`FULL` and `FREEZE`, and `CLUSTER` keep it. A dump and restore, and an `ALTER TABLE` that writes all rows again, do not:
then a rewind is refused.

A version that the sink wrote and replaced later is in `former_...`, with its `xmin`. So each row that a transaction has
written is either in the target or there, unless another program has changed or deleted it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.copy_columns import TargetColumn
from tidegate.connectors.postgres.staging_tables import (
    DELETED_COLUMN,
    LAST_CHANGES,
    OF_WRITER,
    RESERVED_COLUMNS,
    REWIND_COLUMN,
    XID_COLUMN,
    StagedRows,
    Staging,
    joined,
    names_of,
    quoted,
    same_key,
)
from tidegate.connectors.postgres.target_table import TargetTable, columns_of
from tidegate.connectors.transactions import TransactionId

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

RECORDS_TABLE = "rewind_records"
_CREATE = """
CREATE SEQUENCE IF NOT EXISTS {schema}.rewind_numbers;
CREATE TABLE IF NOT EXISTS {schema}.rewind_records (
    record bigint PRIMARY KEY,
    writer bigint NOT NULL REFERENCES {schema}.writers, number bigint NOT NULL, checkpoint_id bigint NOT NULL,
    target text NOT NULL, former text NOT NULL, xid xid NOT NULL, written bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (writer, number)
);
"""
_RECORD = f"""
INSERT INTO {{schema}}.rewind_records (record, writer, number, checkpoint_id, target, former, xid, written)
SELECT %(record)s, writer, %(number)s, %(checkpoint_id)s, %(target)s, %(former)s, pg_current_xact_id()::xid, %(written)s
FROM {{schema}}.writers WHERE {OF_WRITER}
"""


class RewindRecords:
    """Publishes transactions so that a rewind can take them back. Methods run in the caller's database transaction."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the table `rewind_records` if it is missing."""
        if self._staging.lacks(connection, RECORDS_TABLE):
            self._staging.take_turns(connection)
            connection.execute(self._staging.statement(_CREATE))

    def publish(
        self, connection: psycopg.Connection[Any], made: TransactionId, staged: StagedRows, target: TargetTable
    ) -> None:
        """Save the rows that an unregistered transaction replaces, publish it, and record what it wrote.

        Raises:
            psycopg.errors.SerializationFailure: see `Staging.publish`.
        """
        number = self.next_number(connection)
        former = self._save(connection, number, staged, target) if target.key else ""
        saved = self._saved(former, number, target) if former else None
        written = self._staging.publish(connection, staged, target, saved)
        values: dict[str, Any] = {
            "record": number,
            "number": made.number,
            "checkpoint_id": made.checkpoint_id,
            "written": written,
        }
        values |= {"target": target.name, "former": former}
        connection.execute(self._staging.statement(_RECORD), {**names_of(made), **values})

    def next_number(self, connection: psycopg.Connection[Any]) -> int:
        """Return a number for a row of `rewind_records`.

        Numbers are in the order of the commits that change the same key, because these wait for each other.
        """
        row = connection.execute(
            "SELECT nextval(%s::regclass)", [f"{quoted(self._staging.schema)}.rewind_numbers"]
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _saved(self, former: str, record: int, target: TargetTable) -> Composed:
        from psycopg import sql

        query = f"SELECT {{key}} FROM {{schema}}.{{former}} WHERE {REWIND_COLUMN} = {{record}}"
        return self._staging.statement(
            query, key=joined(target.key), former=sql.Identifier(former), record=sql.Literal(record)
        )

    def _save(self, connection: psycopg.Connection[Any], record: int, staged: StagedRows, target: TargetTable) -> str:
        """Copy the rows that the transaction will replace or delete, and lock them.

        Returns:
            The name of the table with them; "": the transaction replaces no row, as there are only key columns.
        """
        from psycopg import sql

        present = self._staging.columns_of(connection, staged.staging)
        changes = DELETED_COLUMN in present
        replaces = bool(set(present) - {*RESERVED_COLUMNS, *target.key})
        if not changes and not replaces:
            return ""
        columns = list(columns_of(connection, target).values())
        former = self.former_table(connection, target, columns)
        # Without columns to replace, rows of existing keys stay as they are, unless they are deleted.
        which = "" if replaces else f" WHERE last.{DELETED_COLUMN}"
        query = (
            f"INSERT INTO {{schema}}.{{former}} ({REWIND_COLUMN}, {XID_COLUMN}, {{names}})"
            f" SELECT {{record}}, t.xmin, {{own}} FROM {{target}} AS t JOIN ({LAST_CHANGES}) AS last ON {{same}}{which}"
            # A row that is changed now is saved when that transaction has ended, with its new version.
            " ORDER BY {order} FOR UPDATE OF t"
        )
        statement = self._staging.statement(
            query,
            former=sql.Identifier(former),
            record=sql.Literal(record),
            target=sql.Identifier(target.schema, target.table),
            staging=sql.Identifier(staged.staging),
            names=joined([column.name for column in columns]),
            own=sql.SQL(", ").join(sql.Identifier("t", column.name) for column in columns),
            key=joined(target.key),
            same=same_key("t", "last", target.key),
            order=sql.SQL(", ").join(sql.Identifier("t", name) for name in target.key),
        )
        connection.execute(statement, [staged.transaction])
        return former

    def former_name(self, target: TargetTable, columns: Sequence[TargetColumn]) -> str:
        """Return the name of the table for former rows of a target with these columns."""
        shape = repr([target.name, target.key, [(c.name, c.sql_type, c.collation) for c in columns]])
        return f"former_{hashlib.sha256(shape.encode()).hexdigest()[:16]}"

    def former_table(
        self, connection: psycopg.Connection[Any], target: TargetTable, columns: Sequence[TargetColumn]
    ) -> str:
        """Return the name of the table for former rows, created if it is missing."""
        from psycopg import sql
        from psycopg.sql import Composable

        name = self.former_name(target, columns)
        if not self._staging.lacks(connection, name):
            return name
        self._staging.take_turns(connection)
        defined: list[Composable] = [sql.SQL(f"{REWIND_COLUMN} bigint NOT NULL"), sql.SQL(f"{XID_COLUMN} xid NOT NULL")]
        for column in columns:
            collation = f" COLLATE {column.collation}" if column.collation else ""
            defined.append(sql.Identifier(column.name) + sql.SQL(f" {column.sql_type}{collation}"))
        create = "CREATE TABLE IF NOT EXISTS {schema}.{table} ({columns})"
        table = sql.Identifier(name)
        connection.execute(self._staging.statement(create, table=table, columns=sql.SQL(", ").join(defined)))
        index = f"CREATE INDEX IF NOT EXISTS {{index}} ON {{schema}}.{{table}} ({REWIND_COLUMN})"
        connection.execute(self._staging.statement(index, index=sql.Identifier(f"{name}_record"), table=table))
        said = sql.Literal(
            f"Rows of {target.name} that tidegate has replaced; in use while rewind_records names this table"
        )
        connection.execute(
            self._staging.statement("COMMENT ON TABLE {schema}.{table} IS {said}", table=table, said=said)
        )
        return name
