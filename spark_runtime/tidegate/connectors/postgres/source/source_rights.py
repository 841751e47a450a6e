"""Check that the database user may read a table, and that a job may create what its changes need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.slots import default_publication, publication_statement
from tidegate.connectors.postgres.source.source_errors import lacks_replication, raise_alone, source_error
from tidegate.connectors.postgres.source.source_session import open_session
from tidegate.connectors.postgres.source.source_table import SourceTable
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

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
