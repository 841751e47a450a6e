"""Check that the table of a Postgres sink accepts its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.change_rows import change_kind_column
from tidegate.connectors.postgres.connection import Database, load_psycopg, refused
from tidegate.connectors.postgres.copy_columns import problem_of
from tidegate.connectors.postgres.staging_tables import RESERVED_COLUMNS, REWIND_COLUMN, XID_COLUMN, Staging
from tidegate.connectors.postgres.target_table import FIND_TABLE, FoundColumn, TargetTable, found_columns
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg

OLDEST_SERVER = 140_000
"""Oldest `server_version_num`: the first with multiranges, in which committed transactions are recorded."""

_UNIQUE_KEYS = """
SELECT (SELECT array_agg(a.attname::text) FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
"""


def check_target(
    database: Database, target: TargetTable, staging: Staging, schema: pa.Schema, *, rewindable: bool = False
) -> None:
    """Raise PipelineError with all problems if the table cannot accept records of this schema.

    Args:
        rewindable: the user wants rewinds, so rights for them are needed.
    """
    psycopg = load_psycopg()
    kind_column = change_kind_column(schema)
    if kind_column is not None and not target.key:
        raise PipelineError(
            f"the records are change rows, by column {kind_column!r}, but the sink appends",
            where=f"{database.place}, table {target.name}",
            cause="an appended row cannot replace or delete another one",
            remedy='Use mode="upsert" with key=; or remove the column with select() to append all versions of rows',
        )
    try:
        connection = database.connect("tidegate check")
    except psycopg.Error as e:
        raise refused(database, e, "the database cannot be reached", f"table {target.name}") from None
    try:
        with connection, connection.transaction():
            problems = _problems(connection, target, staging, schema, rewindable, database.place)
    except psycopg.Error as e:
        raise refused(database, e, "the table cannot be checked", f"table {target.name}") from None
    if problems:
        raise PipelineError(
            "the table cannot store these records"
            if len(problems) == 1
            else f"the table cannot store these records, for {len(problems)} reasons",
            where=f"{database.place}, table {target.name}",
            cause="; ".join(problems),
            remedy="Change the table or the rights of the database user; or change the records with select() and "
            "with_columns()",
        )


def has_rows(database: Database, target: TargetTable) -> bool:
    """Return whether the table has rows. Raises PipelineError if it cannot be read."""
    from psycopg import sql

    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(target.schema, target.table))
    try:
        with database.connect("tidegate check") as connection:
            row = connection.execute(query).fetchone()
    except load_psycopg().Error as e:
        raise refused(database, e, "the table cannot be checked", f"table {target.name}") from None
    return bool(row and row[0])


def _problems(
    connection: psycopg.Connection[Any],
    target: TargetTable,
    staging: Staging,
    schema: pa.Schema,
    rewindable: bool,
    place: str,
) -> Sequence[str]:
    if connection.info.server_version < OLDEST_SERVER:
        return [f"the server is version {connection.info.server_version // 10_000}; 14 or newer is needed"]
    read_only = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if read_only and read_only[0]:
        return ["the server is a standby, which accepts no writes; connect to the primary"]
    row = connection.execute(FIND_TABLE, [target.schema, target.table]).fetchone()
    if row is None:
        raise PipelineError(
            "the table does not exist",
            where=f"{place}, table {target.name}",
            cause="names are case-sensitive, and the schema is `public` if the name has none",
            remedy="Create the table, or correct table=",
        )
    table, kind, *rights = row
    if kind not in ("r", "p"):
        return ["the target is not a table, but a view, foreign table or similar object"]
    found = found_columns(connection, table)
    kind_column = change_kind_column(schema)
    if kind_column is not None:
        # The kind is no column of the table. It decides what happens to the row.
        schema = schema.remove(schema.get_field_index(kind_column))
        may = connection.execute("SELECT has_table_privilege(%s::oid, 'DELETE')", [table]).fetchone()
        rights = [*rights, bool(may and may[0])]
    return [
        *_problems_of_columns(schema, found, target),
        *_problems_of_key(connection, table, schema, found, target),
        *_problems_of_rights(schema, found, rights, target),
        *(_problems_of_rewind(connection, table, found) if rewindable else ()),
        *staging.problems(connection),
    ]


def _problems_of_columns(schema: pa.Schema, found: dict[str, FoundColumn], target: TargetTable) -> Sequence[str]:
    problems = [
        f"the records have column {name!r} twice" for name in sorted(set(schema.names)) if schema.names.count(name) > 1
    ]
    for field in schema:
        if field.name in RESERVED_COLUMNS:
            problems.append(f"column name {field.name!r} is reserved for the sink; rename the column")
        elif field.name not in found:
            problems.append(f"the table has no column {field.name!r}; its columns are {', '.join(found)}")
        elif problem := problem_of(field, found[field.name].column):
            problems.append(f"column {field.name!r}: {problem}")
    for name, there in found.items():
        if name not in schema.names and there.column.required and not there.column.filled:
            problems.append(f"column {name!r} of the table is NOT NULL, has no default, and is missing in the records")
    return problems


def _problems_of_key(
    connection: psycopg.Connection[Any],
    table: int,
    schema: pa.Schema,
    found: dict[str, FoundColumn],
    target: TargetTable,
) -> Sequence[str]:
    problems = [f"the records have no key column {name!r}" for name in target.key if name not in schema.names]
    nullable = [name for name in target.key if name in found and not found[name].column.required]
    problems += [
        f"key column {name!r} is nullable, but nulls never match as keys; declare it NOT NULL" for name in nullable
    ]
    if target.key and not problems:
        unique = [set(row[0]) for row in connection.execute(_UNIQUE_KEYS, [table])]
        if set(target.key) not in unique:
            problems.append(f"the table has no primary key or unique constraint on exactly {', '.join(target.key)}")
    return problems


def _problems_of_rewind(
    connection: psycopg.Connection[Any], table: int, found: dict[str, FoundColumn]
) -> Sequence[str]:
    problems = [
        f"column name {name!r} is reserved for the sink; rename the column of the table"
        for name in (REWIND_COLUMN, XID_COLUMN)
        if name in found
    ]
    query = "SELECT right_ FROM unnest(ARRAY['SELECT', 'DELETE']) right_ WHERE NOT has_table_privilege(%s::oid, right_)"
    return problems + [
        f"the database user lacks the right {right}, which a rewind needs; grant it, or pass rewind=False"
        for (right,) in connection.execute(query, [table])
    ]


def _problems_of_rights(
    schema: pa.Schema, found: dict[str, FoundColumn], rights: Sequence[bool], target: TargetTable
) -> Sequence[str]:
    insert, update, select, usage, *delete = rights
    written = [found[name] for name in schema.names if name in found]
    problems = [] if usage else [f"the database user lacks the right USAGE on schema {target.schema!r}"]
    if not insert and not all(there.insert for there in written):
        problems.append("the database user lacks the right INSERT")
    if target.key and not update and not all(t.update for t in written if t.column.name not in target.key):
        problems.append("the database user lacks the right UPDATE, which mode=upsert needs")
    if target.key and not select and not all(there.select for there in written):
        problems.append("the database user lacks the right SELECT, which mode=upsert needs")
    if not all(delete):
        problems.append("the database user lacks the right DELETE, which change rows need")
    return problems
