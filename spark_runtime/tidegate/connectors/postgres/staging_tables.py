"""Tables of the Postgres sink itself, and every statement on them.

They are in the schema `tidegate`, or in the schema of the option `staging_schema`:

    writers        a row per run and subtask that wrote: its identity, and `committed`, the numbers of its transactions
                 that are in the target table. These are the commit markers, stored as ranges, so that they need a row
                 per run and not one per checkpoint. `kept_until` is the newest checkpoint of a committed transaction
                 that no rewind can take back
    transactions   a row per transaction that is staged and not committed: its writer, checkpoint and target, the
                 number of its rows, and its staging table
    quarantined    a row per transaction that was rejected and kept for inspection (S7.8), created with the first one
    rows_...       a staging table per target table and set of columns: the rows of transactions, numbered in order
    rewind_records, former_...  data for rewinds (S9.3), see the module `rewind_records`

A row in `transactions` represents a staged transaction. The database transaction that deletes this row publishes or
removes the staged rows, which decides the outcome. An advisory lock per sink orders this against the registration of
newer writers, which fences older ones (S9.2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.copy_columns import TargetColumn
from tidegate.connectors.postgres.target_table import TargetTable
from tidegate.connectors.transactions import SinkContext, TransactionId

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

TRANSACTION_COLUMN = "tidegate_transaction"
ROW_COLUMN = "tidegate_row"
DELETED_COLUMN = "tidegate_deleted"
"""In staging tables of change rows: the row's key is deleted, its other columns mean nothing."""
ORDER_COLUMNS = (TRANSACTION_COLUMN, ROW_COLUMN)
REWIND_COLUMN = "tidegate_rewind"
XID_COLUMN = "tidegate_xid"
"""Columns of `rewind_records`."""
RESERVED_COLUMNS = (*ORDER_COLUMNS, DELETED_COLUMN, REWIND_COLUMN, XID_COLUMN)

_SHARED_TABLES = ("writers", "transactions")
_CREATE = """
CREATE TABLE IF NOT EXISTS {schema}.writers (
    writer bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id text NOT NULL, lineage text NOT NULL, uid text NOT NULL, subtask integer NOT NULL,
    generation bigint NOT NULL, run_id text NOT NULL, parallelism integer NOT NULL,
    committed int8multirange NOT NULL DEFAULT '{{}}', kept_until bigint NOT NULL DEFAULT 0,
    UNIQUE (job_id, lineage, uid, subtask, generation, run_id)
);
CREATE TABLE IF NOT EXISTS {schema}.transactions (
    transaction_id text PRIMARY KEY,
    transaction bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    writer bigint NOT NULL REFERENCES {schema}.writers, number bigint NOT NULL,
    checkpoint_id bigint NOT NULL, target text NOT NULL, staging text NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (writer, number)
);
"""
# Tables of earlier versions lack these columns. Transactions that such a version committed cannot be rewound.
_ALTER = """
ALTER TABLE {schema}.writers ADD COLUMN kept_until bigint NOT NULL DEFAULT 9223372036854775807;
ALTER TABLE {schema}.writers ALTER COLUMN kept_until SET DEFAULT 0;
UPDATE {schema}.writers SET kept_until = 0 WHERE isempty(committed);
ALTER TABLE {schema}.transactions ADD COLUMN IF NOT EXISTS staged_at timestamptz NOT NULL DEFAULT now();
"""
_CREATE_QUARANTINED = """
CREATE TABLE IF NOT EXISTS {schema}.quarantined (
    transaction_id text PRIMARY KEY,
    transaction bigint NOT NULL, checkpoint_id bigint NOT NULL, target text NOT NULL, staging text NOT NULL,
    rows bigint NOT NULL
);
"""
# Advisory locks have 64-bit keys. If two texts have the same hash, their holders only wait for each other.
_LOCK = "SELECT pg_advisory_xact_lock{shared}(hashtextextended(%s, 0))"
_IN_TRANSACTION = f"{TRANSACTION_COLUMN} = %s"
LAST_CHANGES = (
    f"SELECT DISTINCT ON ({{key}}) * FROM {{schema}}.{{staging}} WHERE {_IN_TRANSACTION}"
    f" ORDER BY {{key}}, {ROW_COLUMN} DESC"
)
"""The last staged row of each key in a transaction."""
DEFER_CONSTRAINTS = "SET CONSTRAINTS ALL DEFERRED"
CHECK_CONSTRAINTS = "SET CONSTRAINTS ALL IMMEDIATE"
"""Constraints that are DEFERRABLE are checked at the end of the transaction; checked now."""
OF_SINK = "job_id = %(job_id)s AND lineage = %(lineage)s AND uid = %(uid)s"
OF_WRITER = f"{OF_SINK} AND subtask = %(subtask)s AND generation = %(generation)s AND run_id = %(run_id)s"
"""Conditions for rows in `writers`, with the values of `names_of`."""


@dataclass(frozen=True)
class Registration:
    """Row of a writer.

    Attributes:
        writer: number of the writer; a writer that registers later has a higher one.
        next_number: number of its next transaction.
    """

    writer: int
    next_number: int


@dataclass(frozen=True)
class StagedRows:
    """Rows of an unregistered transaction, to be published or removed.

    Attributes:
        transaction: number of the transaction in the staging table.
        target: table that the rows are for.
    """

    transaction: int
    target: str
    staging: str
    rows: int


class Staging:
    """Statements on the tables. Methods run in the caller's database transaction, and quote names.

    Args:
        schema: name of the schema that holds the tables.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def statement(self, text: str, **names: Any) -> Composed:
        from psycopg import sql

        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **names)

    def problems(self, connection: psycopg.Connection[Any]) -> Sequence[str]:
        """Return the rights that this user lacks to use or create the tables."""
        there = "SELECT oid, has_schema_privilege(oid, 'USAGE'), has_schema_privilege(oid, 'CREATE') FROM pg_namespace"
        row = connection.execute(f"{there} WHERE nspname = %s", [self.schema]).fetchone()
        if row is None:
            may = connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
            if may and may[0]:
                return []
            return [
                f"the staging schema {self.schema!r} does not exist, and the database user lacks CREATE on the database"
            ]
        schema, *rights = row
        if not all(rights):
            return [f"the database user lacks USAGE or CREATE on the staging schema {self.schema!r}"]
        lacking = connection.execute(
            "SELECT relname::text FROM pg_class WHERE relnamespace = %s AND relname = ANY (%s)"
            " AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')"
            " AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))",
            [schema, list(_SHARED_TABLES)],
        )
        return [
            f"the database user lacks rights on table {self.schema}.{name}, which belongs to another user"
            for (name,) in lacking
        ]

    def lock(self, connection: psycopg.Connection[Any], ctx: SinkContext, *, alone: bool) -> None:
        """Hold the sink's lock until the transaction ends: shared, or exclusive with `alone`."""
        key = "\x1f".join(["tidegate", self.schema, ctx.job_id, ctx.lineage, ctx.uid])
        connection.execute(_LOCK.format(shared="" if alone else "_shared"), [key])

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the schema and the shared tables if they are missing."""
        if self.lacks(connection, *_SHARED_TABLES):
            self.take_turns(connection)
            if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone() is None:
                connection.execute(self.statement("CREATE SCHEMA {schema}"))
            connection.execute(self.statement(_CREATE))
        if "kept_until" not in self.columns_of(connection, "writers"):
            self.take_turns(connection)
            if "kept_until" not in self.columns_of(connection, "writers"):
                connection.execute(self.statement(_ALTER))

    def take_turns(self, connection: psycopg.Connection[Any]) -> None:
        """Hold the lock for creating tables until the transaction ends.

        Two CREATE ... IF NOT EXISTS at once can fail in PostgreSQL.
        """
        connection.execute(_LOCK.format(shared=""), ["tidegate tables"])

    def lacks(self, connection: psycopg.Connection[Any], *tables: str) -> bool:
        """Return whether one of these tables does not exist."""
        query = (
            "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = ANY (%s) AND c.relkind = 'r'"
        )
        return len(connection.execute(query, [self.schema, list(tables)]).fetchall()) < len(tables)

    def register(self, connection: psycopg.Connection[Any], ctx: SinkContext) -> Registration | None:
        """Register the writer, which fences writers of older generations. Needs the exclusive lock.

        Returns None if the writer itself is fenced by a newer generation.
        """
        if self.superseded(connection, ctx) is not None:
            return None
        row = connection.execute(
            self.statement(
                "INSERT INTO {schema}.writers (job_id, lineage, uid, subtask, generation, run_id, parallelism) VALUES"
                " (%(job_id)s, %(lineage)s, %(uid)s, %(subtask)s, %(generation)s, %(run_id)s, %(parallelism)s)"
                " ON CONFLICT (job_id, lineage, uid, subtask, generation, run_id)"
                # GREATEST ignores nulls, such as the bound of an empty range. The upper bound is exclusive, so it is a
                # free number.
                " DO UPDATE SET parallelism = EXCLUDED.parallelism RETURNING writer, greatest(1, upper(committed),"
                " (SELECT max(number) + 1 FROM {schema}.transactions t WHERE t.writer = writers.writer))"
            ),
            names_of(ctx),
        ).fetchone()
        assert row is not None
        return Registration(*row)

    def superseded(self, connection: psycopg.Connection[Any], ctx: SinkContext) -> int | None:
        """Return the newest generation above its own whose writer is responsible for this subtask; None: there is none
        (S9.2).
        """
        row = connection.execute(
            self.statement(
                f"SELECT max(generation) FROM {{schema}}.writers WHERE {OF_SINK}"
                " AND generation > %(generation)s AND %(subtask)s %% parallelism = subtask"
            ),
            names_of(ctx),
        ).fetchone()
        return row[0] if row else None

    def replaced(self, connection: psycopg.Connection[Any], ctx: SinkContext, writer: int) -> bool:
        """Return whether a later run of any generation has a writer that is responsible for this subtask."""
        query = (
            f"SELECT FROM {{schema}}.writers WHERE {OF_SINK}"
            " AND writer > %(writer)s AND %(subtask)s %% parallelism = subtask LIMIT 1"
        )
        return connection.execute(self.statement(query), {**names_of(ctx), "writer": writer}).fetchone() is not None

    def staging_table(
        self,
        connection: psycopg.Connection[Any],
        target: str,
        columns: Sequence[TargetColumn],
        changes_key: Sequence[str] = (),
    ) -> str:
        """Return the name of the staging table for these columns of the target, created if missing.

        Its columns have the target's types, and NOT NULL where the target has it. So values that the target cannot
        store are refused before the checkpoint completes, and not at its commit.

        Args:
            changes_key: for change rows: the columns that a deleted row has. (): the records are no change rows.
        """
        from psycopg import sql

        # An altered target gives another name, so rows that were staged before keep the table they fit.
        shape = repr([target, [(c.name, c.sql_type, c.collation, c.required) for c in columns], *changes_key])
        name = f"rows_{hashlib.sha256(shape.encode()).hexdigest()[:16]}"
        if not self.lacks(connection, name):
            return name
        self.take_turns(connection)
        defined = [sql.SQL("{} bigint NOT NULL").format(sql.Identifier(column)) for column in ORDER_COLUMNS]
        if changes_key:
            defined.append(sql.SQL("{} boolean NOT NULL").format(sql.Identifier(DELETED_COLUMN)))
        for column in columns:
            collation = f" COLLATE {column.collation}" if column.collation else ""
            always = column.required and (not changes_key or column.name in changes_key)
            required = " NOT NULL" if always else ""
            definition = sql.SQL(f"{column.sql_type}{collation}{required}")
            defined.append(sql.Identifier(column.name) + sql.SQL(" ") + definition)
            if column.required and not always:
                parts = sql.Identifier(DELETED_COLUMN), sql.Identifier(column.name)
                defined.append(sql.SQL("CHECK ({} OR {} IS NOT NULL)").format(*parts))
        table, columns_sql = sql.Identifier(name), sql.SQL(", ").join(defined)
        connection.execute(
            self.statement("CREATE TABLE IF NOT EXISTS {schema}.{table} ({columns})", table=table, columns=columns_sql)
        )
        order = sql.SQL(", ").join(sql.Identifier(column) for column in ORDER_COLUMNS)
        index = sql.Identifier(f"{name}_order")
        connection.execute(
            self.statement(
                "CREATE INDEX IF NOT EXISTS {index} ON {schema}.{table} ({order})",
                index=index,
                table=table,
                order=order,
            )
        )
        said = sql.Literal(
            f"Rows that tidegate staged for {target}; in use while transactions or quarantined names this table"
        )
        connection.execute(self.statement("COMMENT ON TABLE {schema}.{table} IS {said}", table=table, said=said))
        return name

    def register_transaction(
        self,
        connection: psycopg.Connection[Any],
        writer: int,
        made: TransactionId,
        target: str,
        staging: str,
        rows: int,
    ) -> int | None:
        """Register a transaction before it is staged.

        Returns its number in the staging table, or None if it is registered already.
        """
        row = connection.execute(
            self.statement(
                "INSERT INTO {schema}.transactions"
                " (transaction_id, writer, number, checkpoint_id, target, staging, rows)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (transaction_id) DO NOTHING RETURNING transaction"
            ),
            [str(made), writer, made.number, made.checkpoint_id, target, staging, rows],
        ).fetchone()
        return row[0] if row else None

    def copy_statement(self, staging: str, columns: Sequence[str], *, changes: bool = False) -> Composed:
        """Return the COPY statement for a staging table. Args: changes: the records are change rows."""
        from psycopg import sql

        own = (*ORDER_COLUMNS, DELETED_COLUMN) if changes else ORDER_COLUMNS
        names = sql.SQL(", ").join(sql.Identifier(name) for name in (*own, *columns))
        statement = "COPY {schema}.{table} ({names}) FROM STDIN (FORMAT text)"
        return self.statement(statement, table=sql.Identifier(staging), names=names)

    def place_of(self, staging: str, transaction_id: str) -> tuple[str, str]:
        """Return where a transaction's rows are: the staging table and the condition, as SQL.

        It needs no server: the SQL looks the number of the transaction up by its id.
        """
        schema, table = quoted(self.schema), quoted(staging)
        escaped = transaction_id.replace("'", "''")
        number = f"SELECT transaction FROM {schema}.transactions WHERE transaction_id = '{escaped}'"
        return f"{schema}.{table}", f"{TRANSACTION_COLUMN} IN ({number})"

    def take(self, connection: psycopg.Connection[Any], transaction_id: str) -> StagedRows | None:
        """Unregister a staged transaction, to publish or remove its rows; None if it is not registered."""
        query = "DELETE FROM {schema}.transactions WHERE transaction_id = %s"
        returned = "RETURNING transaction, target, staging, rows"
        row = connection.execute(self.statement(f"{query} {returned}"), [transaction_id]).fetchone()
        return StagedRows(*row) if row else None

    def move_to_quarantine(
        self, connection: psycopg.Connection[Any], made: TransactionId, checkpoint_id: int
    ) -> StagedRows | None:
        """Move a transaction's row from `transactions` to `quarantined`; its rows stay in place. None if it is in
        neither.
        """
        if self.lacks(connection, "quarantined"):
            self.take_turns(connection)
            connection.execute(self.statement(_CREATE_QUARANTINED))
        staged = self.take(connection, str(made))
        if staged is not None:
            query = "INSERT INTO {schema}.quarantined VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
            values = [str(made), staged.transaction, checkpoint_id, staged.target, staged.staging, staged.rows]
            connection.execute(self.statement(query), values)
        query = "SELECT transaction, target, staging, rows FROM {schema}.quarantined WHERE transaction_id = %s"
        row = connection.execute(self.statement(query), [str(made)]).fetchone()
        return StagedRows(*row) if row else None

    def rows_of(self, staged: StagedRows) -> tuple[str, str]:
        """Return where the rows of a transaction are: the staging table and the condition by its number."""
        where = f"{TRANSACTION_COLUMN} = {staged.transaction}"
        return f"{quoted(self.schema)}.{quoted(staged.staging)}", where

    def publish(
        self,
        connection: psycopg.Connection[Any],
        staged: StagedRows,
        target: TargetTable,
        saved: Composed | None = None,
    ) -> int:
        """Insert an unregistered transaction's rows into the target. Return how many were inserted or updated.

        With a key, the last of several rows with one key is inserted. Rows are inserted in order of the key, so that
        writers of the same keys cannot deadlock. Change rows also delete the keys whose last row is a deletion.

        Args:
            saved: with a key: query for the keys of the rows that may be changed or deleted, because a rewind can
                restore them.

        Raises:
            psycopg.errors.SerializationFailure: another program inserted a row that is not saved. Repeat the whole
                database transaction.
        """
        from psycopg import sql

        if target.key:
            # Within a checkpoint, a row may give up a unique value that another row takes.
            connection.execute(DEFER_CONSTRAINTS)
        present = self.columns_of(connection, staged.staging)
        changes = DELETED_COLUMN in present
        columns = [name for name in present if name not in RESERVED_COLUMNS]
        replaced = [name for name in columns if name not in target.key]
        new = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in replaced)
        query = (
            f"INSERT INTO {{target}} ({{names}}) SELECT {{names}} FROM {{schema}}.{{staging}} WHERE {_IN_TRANSACTION}"
        )
        if target.key:
            # PostgreSQL refuses an upsert that changes one row twice, so only the last row of each key is selected.
            last = f"ORDER BY {{key}}, {ROW_COLUMN} DESC"
            query = query.replace("SELECT {names}", "SELECT DISTINCT ON ({key}) {names}")
            if changes:
                query = f"INSERT INTO {{target}} ({{names}}) SELECT {{names}} FROM ({LAST_CHANGES}) AS changed"
                last = f"WHERE NOT {DELETED_COLUMN} ORDER BY {{key}}"
            query += f" {last} ON CONFLICT ({{key}}) DO "
            query += (
                ("UPDATE SET {new}" + (" WHERE {excluded} IN ({saved})" if saved else "")) if replaced else "NOTHING"
            )
        parts = {
            "names": joined(columns),
            "key": joined(target.key),
            "new": new,
            "excluded": row_of("excluded", target.key),
            "saved": saved or sql.SQL(""),
            "staging": sql.Identifier(staged.staging),
            "target": sql.Identifier(target.schema, target.table),
            "same": same_key("t", "changed", target.key),
            "of_target": row_of("t", target.key),
        }
        if changes:
            # First, because an inserted row may take the unique value of a deleted one.
            delete = (
                f"DELETE FROM {{target}} AS t USING ({LAST_CHANGES}) AS changed"
                f" WHERE changed.{DELETED_COLUMN} AND {{same}}"
            )
            if saved:
                delete += " AND {of_target} IN ({saved})"
            connection.execute(self.statement(delete, **parts), [staged.transaction])
        written = connection.execute(self.statement(query, **parts), [staged.transaction]).rowcount
        if saved and replaced:
            keys = f"SELECT DISTINCT {{key}} FROM {{schema}}.{{staging}} WHERE {_IN_TRANSACTION}"
            keys = f"SELECT FROM ({LAST_CHANGES}) AS changed WHERE NOT {DELETED_COLUMN}" if changes else keys
            counted = self.statement(f"SELECT count(*) FROM ({keys}) AS wanted", **parts)
            _check_all_written(connection.execute(counted, [staged.transaction]).fetchone(), written, target)
        return written

    def columns_of(self, connection: psycopg.Connection[Any], table: str) -> Sequence[str]:
        """Return all columns of a table of the schema.

        An earlier version of the pipeline may have chosen the columns of a staging table.
        """
        rows = connection.execute(
            "SELECT a.attname::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
            " AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            [self.schema, table],
        )
        return [name for (name,) in rows]

    def remove_rows(self, connection: psycopg.Connection[Any], staged: StagedRows) -> int:
        """Delete a transaction's staged rows, and return how many there were."""
        from psycopg import sql

        query = f"DELETE FROM {{schema}}.{{table}} WHERE {_IN_TRANSACTION}"
        statement = self.statement(query, table=sql.Identifier(staged.staging))
        return connection.execute(statement, [staged.transaction]).rowcount

    def mark(self, connection: psycopg.Connection[Any], made: TransactionId, rewindable: bool = False) -> bool:
        """Write the commit marker. Returns False if the writer is unknown.

        Args:
            rewindable: `rewind_records` has what a rewind needs.
        """
        query = (
            "UPDATE {schema}.writers SET committed = committed"
            " + int8multirange(int8range(%(number)s, %(number)s, '[]')), kept_until = greatest(kept_until, %(kept)s)"
            f" WHERE {OF_WRITER}"
        )
        values = {**names_of(made), "number": made.number, "kept": 0 if rewindable else made.checkpoint_id}
        return connection.execute(self.statement(query), values).rowcount == 1

    def is_marked(self, connection: psycopg.Connection[Any], made: TransactionId) -> bool:
        """Return whether the transaction is committed."""
        query = f"SELECT FROM {{schema}}.writers WHERE {OF_WRITER} AND committed @> %(number)s::bigint"
        row = connection.execute(self.statement(query), {**names_of(made), "number": made.number}).fetchone()
        return row is not None

    def staged_together(
        self, connection: psycopg.Connection[Any], ctx: SinkContext, made: TransactionId
    ) -> Sequence[str] | None:
        """Return the ids of all transactions that the run which made this one staged for its checkpoint, and lock them.

        All of them are to be committed, because the commit of a checkpoint is decided for all subtasks at once (S7.4).
        Transactions that a newer generation is responsible for are left out (S9.2).

        Returns:
            None: a subtask has rows of an older checkpoint, which it must first commit, or put into quarantine if they
            were rejected (S7.8).
        """
        query = (
            "SELECT transaction_id, t.checkpoint_id FROM {schema}.transactions AS t"
            f" JOIN {{schema}}.writers AS w USING (writer) WHERE {OF_SINK} AND w.generation = %(of_generation)s"
            " AND w.run_id = %(of_run)s AND t.checkpoint_id <= %(checkpoint_id)s"
            " AND NOT EXISTS (SELECT FROM {schema}.writers AS newer"
            " WHERE newer.job_id = w.job_id AND newer.lineage = w.lineage AND newer.uid = w.uid"
            " AND newer.generation > %(generation)s AND w.subtask %% newer.parallelism = newer.subtask)"
            " ORDER BY t.transaction FOR UPDATE OF t"
        )
        values = {"of_generation": made.generation, "of_run": made.run_id, "checkpoint_id": made.checkpoint_id}
        rows = connection.execute(self.statement(query), {**names_of(ctx), **values}).fetchall()
        return None if any(checkpoint < made.checkpoint_id for _, checkpoint in rows) else [row[0] for row in rows]

    def staged(self, connection: psycopg.Connection[Any], ctx: SinkContext) -> Sequence[str]:
        """Return the ids of all staged transactions of the sink, in order of id."""
        query = (
            "SELECT transaction_id FROM {schema}.transactions JOIN {schema}.writers USING (writer)"
            f" WHERE {OF_SINK} ORDER BY 1"
        )
        return [row[0] for row in connection.execute(self.statement(query), names_of(ctx))]

    def is_staged_elsewhere(self, connection: psycopg.Connection[Any], ctx: SinkContext, checkpoint_id: int) -> bool:
        """Return whether a run of another parallelism left a transaction staged that another subtask must commit or
        remove.

        Only transactions for checkpoints older than `checkpoint_id` count.
        """
        query = (
            f"SELECT FROM {{schema}}.transactions JOIN {{schema}}.writers USING (writer) WHERE {OF_SINK}"
            " AND parallelism <> %(parallelism)s AND subtask %% %(parallelism)s <> %(subtask)s"
            " AND checkpoint_id < %(checkpoint_id)s LIMIT 1"
        )
        row = connection.execute(self.statement(query), {**names_of(ctx), "checkpoint_id": checkpoint_id}).fetchone()
        return row is not None

    def forget_idle_writers(self, connection: psycopg.Connection[Any], ctx: SinkContext, writer: int) -> None:
        """Delete rows of earlier runs' writers that have committed and staged nothing.

        It concerns the subtask indices that this writer cleans up. No handle can name a transaction of these writers
        that still exists, and this writer's row fences as theirs did.
        """
        query = (
            f"DELETE FROM {{schema}}.writers w WHERE {OF_SINK} AND writer < %(writer)s AND isempty(committed)"
            " AND subtask %% %(parallelism)s = %(subtask)s"
            " AND NOT EXISTS (SELECT FROM {schema}.transactions t WHERE t.writer = w.writer)"
        )
        connection.execute(self.statement(query), {**names_of(ctx), "writer": writer})


def joined(columns: Sequence[str]) -> Composed:
    """Return names of columns as SQL, separated by commas."""
    from psycopg import sql

    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)


def row_of(table: str, columns: Sequence[str]) -> Composed:
    """Return columns of a table as a row value."""
    from psycopg import sql

    return sql.SQL("({})").format(sql.SQL(", ").join(sql.Identifier(table, name) for name in columns))


def same_key(one: str, other: str, key: Sequence[str]) -> Composed:
    """Return the condition that rows of two tables have one key."""
    from psycopg import sql

    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name)) for name in key
    )


def _check_all_written(wanted: Any, written: int, target: TargetTable) -> None:
    if wanted[0] == written:
        return
    from psycopg.errors import SerializationFailure

    # The caller's connection repeats the transaction, which then saves the new rows first.
    raise SerializationFailure(
        f"{wanted[0] - written} rows were not written to {target.name}: another program inserts rows with the same "
        "keys, or a trigger drops rows, which rewind=True does not allow"
    )


def quoted(name: str) -> str:
    """Return a name as SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def names_of(of: SinkContext | TransactionId) -> Mapping[str, Any]:
    """Return the values that `OF_SINK` and `OF_WRITER` refer to."""
    return {
        "job_id": of.job_id,
        "lineage": of.lineage,
        "uid": of.uid,
        "subtask": of.subtask,
        "generation": of.generation,
        "run_id": of.run_id,
        "parallelism": of.parallelism if isinstance(of, SinkContext) else None,
    }
