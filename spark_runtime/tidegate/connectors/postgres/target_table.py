"""Target table of a Postgres sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.copy_columns import TargetColumn

if TYPE_CHECKING:
    import psycopg

FIND_TABLE = """
SELECT c.oid, c.relkind::text, has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE'),
    has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), b.typname::text, b.typcategory::text,
    CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
    CASE WHEN a.attcollation <> t.typcollation THEN
        (SELECT format('%%I.%%I', n.nspname, l.collname)
         FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) ELSE '' END,
    a.attnotnull OR t.typnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a',
    has_column_privilege(a.attrelid, a.attnum, 'INSERT'), has_column_privilege(a.attrelid, a.attnum, 'UPDATE'),
    has_column_privilege(a.attrelid, a.attnum, 'SELECT')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True)
class TargetTable:
    """A table by name, and the key columns by which rows replace others; without them, rows are appended."""

    schema: str
    table: str
    key: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class FoundColumn:
    """A column of the table, and the rights of this user on it."""

    column: TargetColumn
    insert: bool
    update: bool
    select: bool


def columns_of(connection: psycopg.Connection[Any], target: TargetTable) -> dict[str, TargetColumn]:
    """Return the table's columns by name; empty if the table does not exist."""
    row = connection.execute(FIND_TABLE, [target.schema, target.table]).fetchone()
    return {name: found.column for name, found in found_columns(connection, row[0]).items()} if row else {}


def found_columns(connection: psycopg.Connection[Any], table: int) -> dict[str, FoundColumn]:
    """Return the columns of a table, by its oid."""
    return {row[0]: FoundColumn(TargetColumn(*row[:9]), *row[9:]) for row in connection.execute(_COLUMNS, [table])}
