"""Postgres: a sink that writes a table of a PostgreSQL database with two-phase commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import pyarrow as pa

from tidegate.connectors.interface import NO_CHECKPOINT, Sink, SinkWriter
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.postgres.connection import Database
from tidegate.connectors.postgres.postgres_leftovers import PostgresLeftovers
from tidegate.connectors.postgres.postgres_rewind import PostgresRewind
from tidegate.connectors.postgres.postgres_writer import PostgresWriter
from tidegate.connectors.postgres.staging_tables import Staging
from tidegate.connectors.postgres.target_check import check_target, has_rows
from tidegate.connectors.postgres.target_table import TargetTable
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.connectors.upserts.write_mode import (
    IfRows,
    WriteMode,
    check_if_rows,
    existing_rows_error,
    key_columns,
    refuses_rows,
)
from tidegate.errors import OptionError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity

DEFAULT_STAGING_SCHEMA = "tidegate"


class Postgres(Sink):
    """Writes records to an existing table of a PostgreSQL database (14 or newer).

    Guarantee: exactly once, end to end, for every query of the table. Each record before a completed checkpoint's
    barrier is in the table once, whatever fails (S7.4). The records of a subtask and checkpoint become visible in one
    database transaction, together with the record that they are committed; several subtasks commit one after the other.
    `PostgresWriter` describes how transactions are staged and published; it keeps its own tables in `staging_schema`.

    Needs `pip install 'tidegate[postgres]'`, and up to two connections for each subtask.

    Args:
        dsn: libpq's connection string or URL, `host=db dbname=sales user=etl` or `postgresql://etl@db/sales`, without
            password.
        table: `table` (in the schema `public`) or `schema.table`; names are case-sensitive. The table needs a column of
            the same name for every column of the records; other columns must have a default or be nullable.
        mode: `append` inserts rows. `upsert` inserts a row or, if a row with its key exists, replaces the record's
            columns in it. If a transaction has several rows with a key, the last wins, and a later checkpoint wins
            over an earlier one. All rows of a key must arrive through one subtask, as they do downstream of
            `group_by(key)`.
        key: with `upsert`: the column or columns of the key. The table needs a primary key or unique constraint on
            exactly these columns, and they must be NOT NULL.
            Change rows (`tidegate.change_rows`) need `upsert`: an insert or update_after upserts its row, a delete or
            update_before deletes the row with its key. The last change of a key in a transaction wins.
        password: reference to a secret, `secret:env/NAME` or `secret:file/PATH`, resolved where a connection is made.
            None: libpq finds it (`PGPASSWORD`, `~/.pgpass`, or none needed).
        staging_schema: schema for the sink's own tables; created when missing. Several jobs and sinks may share it.
        rewind: commits also store what `on_committed_after="rewind"` needs (S9.3). None: with `append`, where it costs
            one row for each commit. With `upsert` it costs a copy of each row that is replaced or deleted. It is kept
            until `tidegate gc --sinks` finds that no snapshot needs it. The rewind itself needs SELECT and DELETE.
        if_exists: what happens at a fresh start if the table has rows: "append" keeps them, "error" refuses the start.
            None: "error" for change rows, because rows that were deleted at their source would stay; else "append".

    Raises:
        OptionError: an option is wrong, or a password is in plain text.
        EnvironmentProblemError: psycopg is not installed.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        mode: WriteMode = "append",
        key: str | Sequence[str] = (),
        password: str | None = None,
        staging_schema: str = DEFAULT_STAGING_SCHEMA,
        rewind: bool | None = None,
        if_exists: IfRows | None = None,
    ) -> None:
        check_if_rows(if_exists, "Postgres")
        keys = key_columns(mode, key, "Postgres")
        schema, _, name = table.rpartition(".")
        if not name or "." in schema or table.startswith("."):
            raise OptionError(
                f"the table name {table!r} is invalid",
                where="Postgres(table=...)",
                remedy='Use "table" or "schema.table"',
            )
        if not staging_schema:
            raise OptionError(
                "staging_schema is empty",
                where="Postgres(staging_schema=...)",
                remedy="Pass the name of a schema for the staging tables, or omit staging_schema",
            )
        self._database = Database(dsn, password)
        self._target = TargetTable(schema or "public", name, keys)
        self._staging = Staging(staging_schema)
        self._rewind = rewind
        self._if_exists = if_exists

    def check(self, schema: pa.Schema) -> None:
        """Check, before anything runs, that the database can be reached and its table accepts these records. Changes
        nothing.

        Raises:
            PipelineError: server, table, columns, types, key or rights; one error lists all problems of the table.
            OptionError: the password's reference cannot be resolved.
        """
        check_target(self._database, self._target, self._staging, schema, rewindable=self._rewind is True)

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Check that the table has no rows, if `if_exists` demands it.

        Raises:
            PipelineError: it has rows, or cannot be read.
        """
        if refuses_rows(self._if_exists, ctx.schema) and has_rows(self._database, self._target):
            raise existing_rows_error(f"sink {ctx.uid!r}, {self._database.place}, table {self._target.name}")

    @property
    def _rewindable(self) -> bool:
        return not self._target.key if self._rewind is None else self._rewind

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer. It connects when it first has something to stage, commit or clean up."""
        return self._writer(ctx)

    def _writer(self, ctx: SinkContext) -> PostgresWriter:
        return PostgresWriter(self._database, self._target, self._staging, ctx, rewindable=self._rewindable)

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Return the function that takes back what was committed after the snapshot, in one database transaction.

        Raises:
            SinkConflictError: transactions were committed without rewind records, or another program has changed rows.
        """
        place = self._database.place
        rewind = PostgresRewind(self._staging, self._target, ctx, place, checkpoint_id, before)
        what = f"rewind to checkpoint {checkpoint_id}"
        with closing(self._writer(ctx)) as checking:
            checking.run(rewind.check, "compared with rewind records", what)

        def take_back() -> None:
            with closing(self._writer(ctx)) as writer:
                # Before the rows, so that a zombie finds nothing staged that it could publish afterwards. It also
                # registers the generation, which fences zombies (S9.2).
                writer.recover(checkpoint_id, pending)
                writer.run(rewind.take_back, "restored", what)

        return take_back

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Delete staged rows and rewind records that nothing needs."""
        leftovers = PostgresLeftovers(self._staging, ctx, needed)
        with closing(self._writer(ctx)) as writer:
            return writer.run(lambda connection: leftovers.collect(connection, dry_run=dry_run), "deleted", "leftovers")

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Leave the rows in the staging table, where nothing commits or removes them."""
        with closing(self._writer(ctx)) as writer:
            writer.quarantine(committables, into)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the rows in the staging table; its column `tidegate_row` numbers them in order."""
        rows, table = int(handle.data["rows"]), handle.data.get("staging")
        if table is None:  # staged by an earlier version of tidegate
            return StagedData(ctx.uid, checkpoint_id, rows=rows)
        relation, where = self._staging.place_of(table, handle.transaction_id)
        place = self._database.place
        return StagedData(ctx.uid, checkpoint_id, "table", rows, relation=relation, where=where, place=place)

    def identity(self) -> SinkIdentity:
        """Return database, table and key."""
        upsert = {"key": list(self._target.key)} if self._target.key else {}
        return SinkIdentity("Postgres", (self._database.place, self._target.name), upsert)
