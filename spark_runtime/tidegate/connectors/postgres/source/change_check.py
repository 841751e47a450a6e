"""Check that a table and its changes can be read, and that a job may create what its changes need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.slots import (
    default_publication,
    publication_problems,
    publication_statement,
)
from tidegate.connectors.postgres.source.source_errors import lacks_replication, raise_alone, source_error
from tidegate.connectors.postgres.source.source_session import open_session
from tidegate.connectors.postgres.source.source_table import SourceTable
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

_GENERATED = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attgenerated <> '' AND NOT attisdropped"

_OTHER_STORAGE = """
WITH RECURSIVE tree(oid) AS (
    SELECT %s::oid UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT c.oid::regclass::text, c.relkind = 'f' OR c.relpersistence <> 'p' FROM tree JOIN pg_class c ON c.oid = tree.oid
WHERE c.oid <> %s
"""

_READS = """
SELECT has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT') OR (
    SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'SELECT')) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attname = ANY (%s))
FROM pg_class c WHERE c.oid = %s
"""
_CREATES = """
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %s),
    has_database_privilege(current_database(), 'CREATE') AND pg_has_role(c.relowner, 'USAGE')
FROM pg_class c WHERE c.oid = %s
"""
# An unused slot of tidegate may be the job's own, from an attempt before.
_FREE_SLOTS = """
SELECT current_setting('max_replication_slots')::int > count(*)
    OR bool_or(starts_with(slot_name::text, 'tidegate_') AND active_pid IS NULL)
FROM pg_replication_slots
"""

OnTruncate = Literal["fail", "ignore"]
OnAddedColumn = Literal["ignore", "fail"]
OnHiddenChange = Literal["fail", "ignore"]
MissingValues = Literal["fail", "fetch"]
OldRows = Literal["key", "complete"]


@dataclass(frozen=True)
class ChangeOptions:
    """How changes are read. See `PostgresTable`.

    Attributes:
        publication: name; None: the source's own.
        keep_wal_s: seconds for which changes stay readable after a checkpoint has covered them.
    """

    initial_copy: bool = True
    publication: str | None = None
    kind_column: str = "change_kind"
    on_truncate: OnTruncate = "fail"
    on_added_column: OnAddedColumn = "ignore"
    on_hidden_change: OnHiddenChange = "fail"
    missing_values: MissingValues = "fail"
    old_rows: OldRows = "key"
    keep_wal_s: float = 0.0


def check_changes(
    connection: psycopg.Connection[Any], table: SourceTable, schema: pa.Schema, options: ChangeOptions, place: str
) -> tuple[str, ...]:
    """Check server, table and publication, and return the columns that identify a row; () if there are none.

    Raises:
        PipelineError: changes cannot be read; one error lists all problems.
    """
    names = [name for name in schema.names if name != options.kind_column]
    problems = [*_server_problems(connection), *_table_problems(table, names, options)]
    problems += _problems_of_parts(connection, table)
    generated = [name for (name,) in connection.execute(_GENERATED, [table.oid]) if name in names]
    if generated:
        problems.append(f"generated columns are not in the WAL: {', '.join(generated)}; leave them out with columns=")
    publication = options.publication or default_publication(table.name)
    needs_truncates = options.on_truncate == "fail"
    problems += publication_problems(connection, table, publication, names, needs_truncates=needs_truncates)
    if problems:
        raise PipelineError(
            "the changes of the table cannot be read",
            where=f"{place}, table {table.name}",
            cause="; ".join(problems),
            remedy="Change the server or the table, or read the table without changes=True",
        )
    return table.identity_key or ()


def _server_problems(connection: psycopg.Connection[Any]) -> Sequence[str]:
    row = connection.execute("SELECT current_setting('wal_level'), pg_is_in_recovery()").fetchone()
    assert row is not None
    problems = [] if row[0] == "logical" else [f"wal_level is {row[0]}; set it to logical, and restart the server"]
    return [*problems, "the server is a standby; connect to the primary"] if row[1] else problems


def _problems_of_parts(connection: psycopg.Connection[Any], table: SourceTable) -> Sequence[str]:
    parts = connection.execute(_OTHER_STORAGE, [table.oid, table.oid]).fetchall()
    if table.kind != "p":
        return ["other tables inherit from the table, whose changes are not its changes"] if parts else []
    return [
        f"changes of the partition {name}, which is unlogged or foreign, are not in the WAL"
        for name, has_none in parts
        if has_none
    ]


def _table_problems(table: SourceTable, columns: Sequence[str], options: ChangeOptions) -> Sequence[str]:
    if table.kind == "m" or not table.logged:
        return ["changes of materialised views, temporary and unlogged tables are not in the WAL"]
    key = table.identity_key
    problems = []
    if table.replica_identity == "n":
        problems.append("the replica identity is NOTHING; run ALTER TABLE ... REPLICA IDENTITY DEFAULT or FULL")
    elif key is None and (options.initial_copy or table.replica_identity != "f"):
        problems.append(
            "the table has no primary key; add one, or choose a unique index with ALTER TABLE ... REPLICA IDENTITY"
            " USING INDEX, or pass initial_copy=False with REPLICA IDENTITY FULL"
        )
    if options.old_rows == "complete" and table.replica_identity != "f":
        problems.append("old rows are not complete; run ALTER TABLE ... REPLICA IDENTITY FULL, or leave out old_rows=")
    missing = [name for name in key or () if name not in columns]
    if missing:
        problems.append(f"columns= leaves out the key column {', '.join(missing)}")
    return problems


def check_rights(
    connection: psycopg.Connection[Any], database: Database, table: SourceTable, columns: Sequence[str]
) -> None:
    """Raise PipelineError, with the statement that grants the right, if the user may not read the table."""
    problems = _problems_of_reading(connection, table, columns)
    if problems:
        raise _refusal("the table cannot be read", database, table, problems)


def check_creation(
    connection: psycopg.Connection[Any], database: Database, table: SourceTable, publication: str | None
) -> None:
    """Check that a first start can create the publication and the replication slot.

    Args:
        publication: of the user; None: the source's own.

    Raises:
        PipelineError: it cannot. One error lists all problems, with the statements that solve them.
        OutageError: the server accepts no further connections.
    """
    problems = _problems_of_publication(connection, table, publication)
    row = connection.execute(_FREE_SLOTS).fetchone()
    if row is not None and not row[0]:
        problems.append("all replication slots are in use; drop unused ones, or raise max_replication_slots")
    try:
        open_session(database, "tidegate check", replication="database").close()
    except load_psycopg().Error as error:
        if lacks_replication(error):
            user = connection.info.user
            grant = _statement(connection, "ALTER ROLE {} REPLICATION", user)
            problems.append(f"the database user {user!r} lacks the right REPLICATION; run: {grant}")
        else:
            raise_alone(source_error(database, error, "the changes cannot be read", f"table {table.name}"))
    if problems:
        raise _refusal("the changes of the table cannot be read", database, table, problems)


def _refusal(what: str, database: Database, table: SourceTable, problems: Sequence[str]) -> PipelineError:
    remedy = "Let an administrator of the database run the statements" if len(problems) > 1 else ""
    return PipelineError(what, where=f"{database.place}, table {table.name}", cause="; ".join(problems), remedy=remedy)


def _problems_of_reading(connection: psycopg.Connection[Any], table: SourceTable, columns: Sequence[str]) -> list[str]:
    row = connection.execute(_READS, [list(columns), table.oid]).fetchone()
    assert row is not None, "the table exists"
    uses_schema, reads = row
    problems, user = [], connection.info.user
    if not uses_schema:
        grant = _statement(connection, "GRANT USAGE ON SCHEMA {} TO {}", table.name.schema, user)
        problems.append(f"the database user lacks the right USAGE on the schema; run: {grant}")
    if not reads:
        grant = _statement(connection, "GRANT SELECT ON {} TO {}", (table.name.schema, table.name.table), user)
        problems.append(f"the database user lacks the right SELECT on the table; run: {grant}")
    return problems


def _problems_of_publication(
    connection: psycopg.Connection[Any], table: SourceTable, publication: str | None
) -> list[str]:
    row = connection.execute(_CREATES, [publication or default_publication(table.name), table.oid]).fetchone()
    assert row is not None, "the table exists"
    exists, may_create = row
    if exists or (publication is None and may_create):
        return []
    statement = publication_statement(table, publication).as_string(connection)
    if publication is not None:
        return [f"the publication {publication!r} does not exist; run: {statement}"]
    return [
        "the database user may not create the publication, because it lacks CREATE on the database, or does not own "
        f"the table; run as the owner: {statement}"
    ]


def _statement(connection: psycopg.Connection[Any], text: str, *names: str | tuple[str, str]) -> str:
    from psycopg import sql

    identifiers = [sql.Identifier(*((name,) if isinstance(name, str) else name)) for name in names]
    made: Composed = sql.SQL(text).format(*identifiers)
    return made.as_string(connection)
