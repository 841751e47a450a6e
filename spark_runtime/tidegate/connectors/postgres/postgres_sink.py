"""Postgres: a table of a PostgreSQL database, written with two-phase commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Literal, get_args

import pyarrow as pa

from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.postgres.connection import Database
from tidegate.connectors.postgres.postgres_writer import PostgresWriter
from tidegate.connectors.postgres.staging_tables import Staging
from tidegate.connectors.postgres.target_check import check_target
from tidegate.connectors.postgres.target_table import TargetTable
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import OptionError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity

WriteMode = Literal["append", "upsert"]
DEFAULT_STAGING_SCHEMA = "tidegate"


class Postgres(Sink):
    """Writes records to a table of a PostgreSQL database (14 or newer), which must exist.

    Guarantee: exactly once, end to end, for whoever queries the table: each record in front of a completed checkpoint's
    barrier is in it once, whatever fails (S7.4). A subtask's records of one checkpoint and the note that they are
    committed become visible in one database transaction; those of several subtasks one after the other. How
    transactions are staged and published: `PostgresWriter`; it keeps tables of its own in `staging_schema`.

    Needs `pip install 'tidegate[postgres]'`, and up to two connections for each subtask.

    Args:
        dsn: libpq's connection string or URL, `host=db dbname=sales user=etl` or `postgresql://etl@db/sales`, without
            password.
        table: `table` (in the schema `public`) or `schema.table`; names are taken as they are, upper and lower case
            too. It needs a column of the same name for every column of the records; others must have a default or be
            nullable.
        mode: `append` inserts rows. `upsert` inserts a row or, where there is one of its key, replaces the record's
            columns in it; of several rows of a key in one transaction the last wins, and a later checkpoint wins over
            an earlier one. All rows of a key must come through one subtask, as they do behind `group_by(key)`.
        key: with `upsert`: the column or columns of the key, which a primary key or unique constraint of the table has
            exactly, and which are NOT NULL.
        password: reference to a secret, `secret:env/NAME` or `secret:file/PATH`, resolved where a connection is made.
            None: as libpq finds it (`PGPASSWORD`, `~/.pgpass`, or none needed).
        staging_schema: schema for the sink's own tables; made when missing. Several jobs and sinks may share it.

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
    ) -> None:
        keys = (key,) if isinstance(key, str) else tuple(key)
        if mode not in get_args(WriteMode):
            raise OptionError(
                f"mode={mode!r} is no way to write", where="Postgres(mode=...)", remedy="Use append or upsert"
            )
        if (mode == "upsert") != bool(keys):
            raise OptionError(
                f"mode={mode!r} with {f'key={list(keys)}' if keys else 'no key'}",
                where="Postgres(key=...)",
                remedy="Name the key's columns with upsert, and none with append",
            )
        if len(set(keys)) != len(keys):
            raise OptionError(
                "A key column is named twice", where=f"Postgres(key={list(keys)})", remedy="Name each once"
            )
        schema, _, name = table.rpartition(".")
        if not name or "." in schema or table.startswith("."):
            raise OptionError(
                f"{table!r} names no table", where="Postgres(table=...)", remedy="Use table or schema.table"
            )
        if not staging_schema:
            raise OptionError("The staging schema has no name", where="Postgres(staging_schema=...)")
        self._database = Database(dsn, password)
        self._target = TargetTable(schema or "public", name, keys)
        self._staging = Staging(staging_schema)

    def check(self, schema: pa.Schema) -> None:
        """Whether the database can be reached and its table takes these records, before anything runs. Changes nothing.

        Raises:
            PipelineError: server, table, columns, types, key or rights; all that is wrong with the table at once.
            OptionError: the password's reference leads nowhere.
        """
        check_target(self._database, self._target, self._staging, schema)

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer; it connects when it first has something to stage, commit or clean up."""
        return PostgresWriter(self._database, self._target, self._staging, ctx)

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Leaves the rows in the staging table, where nothing commits or removes them any more."""
        with closing(PostgresWriter(self._database, self._target, self._staging, ctx)) as writer:
            writer.quarantine(committables, into)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """The rows in the staging table; `tidegate_row` in it numbers them in order."""
        rows, table = int(handle.data["rows"]), handle.data.get("staging")
        if table is None:  # an earlier version staged it
            return StagedData(ctx.uid, checkpoint_id, rows=rows)
        relation, where = self._staging.place_of(table, handle.transaction_id)
        place = self._database.place
        return StagedData(ctx.uid, checkpoint_id, "table", rows, relation=relation, where=where, place=place)

    def identity(self) -> SinkIdentity:
        """Database, table and key."""
        upsert = {"key": list(self._target.key)} if self._target.key else {}
        return SinkIdentity("Postgres", (self._database.place, self._target.name), upsert)
