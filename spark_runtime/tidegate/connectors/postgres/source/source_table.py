"""The table that a source reads, as the catalog describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.copy_columns import TargetColumn
from tidegate.connectors.postgres.target_table import found_columns
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

OLDEST_SERVER = 140_000
"""Oldest `server_version_num`: the first that scans ranges of ctids without reading the whole table."""
_TABLE = """
SELECT c.oid, c.relkind::text, c.relreplident::text, c.relpersistence::text, c.relpages
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
# NULLS NOT DISTINCT and deferrable constraints do not matter: all columns are NOT NULL, and a scan changes nothing.
_UNIQUE_KEYS = """
SELECT i.indisprimary, i.indisreplident,
    (SELECT array_agg(a.attname::text ORDER BY k.place)
     FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY k(attnum, place)
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY NOT i.indisprimary, i.indexrelid
"""


@dataclass(frozen=True)
class TableName:
    """A table by name."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    def sql(self) -> Composed:
        """Return the quoted name."""
        from psycopg import sql

        return sql.SQL("{}").format(sql.Identifier(self.schema, self.table))


@dataclass(frozen=True)
class KeyColumn:
    """A column by which rows are ordered. `ctid` and `tableoid` are columns, too.

    Attributes:
        sql_type: as in DDL.
        collation: as in DDL, if it differs from the type's own; else empty.
    """

    name: str
    sql_type: str
    collation: str = ""

    def value(self, text: str) -> Composed:
        """Return the value that the server shows as `text`, as SQL."""
        from psycopg import sql

        return sql.SQL(f"{{}}::{self.sql_type}").format(sql.Literal(text))


CTID = KeyColumn("ctid", "tid")
TABLEOID = KeyColumn("tableoid", "oid")


@dataclass(frozen=True)
class SourceTable:
    """A table, from the catalog.

    Attributes:
        kind: `relkind`: r (table), p (partitioned), m (materialised view).
        replica_identity: `relreplident`: d (primary key), f (all columns), i (an index), n (none).
        logged: changes are written to the WAL.
        pages: size in pages at the last VACUUM or ANALYZE; 0: unknown.
        unique_keys: columns of each unique index without nullable columns; the primary key is first.
        identity_key: columns that identify a row in changes: of the index of the replica identity, or the primary key;
            with all columns as replica identity any unique key. None: there is none.
    """

    name: TableName
    oid: int
    kind: str
    replica_identity: str
    logged: bool
    pages: int
    columns: Mapping[str, TargetColumn]
    unique_keys: Sequence[tuple[str, ...]]
    identity_key: tuple[str, ...] | None

    def key_columns(self, names: Sequence[str]) -> tuple[KeyColumn, ...]:
        """Return columns by which rows are ordered."""
        found = [self.columns[name] for name in names]
        return tuple(KeyColumn(column.name, column.sql_type, column.collation) for column in found)


def find_table(connection: psycopg.Connection[Any], name: TableName, place: str) -> SourceTable:
    """Return the table.

    Raises:
        PipelineError: it does not exist, is no table, or the server is too old.
    """
    where = f"{place}, table {name}"
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        what = f"the server is version {version // 10_000}; 14 or newer is needed"
        raise PipelineError(what, where=where, remedy="Upgrade the server")
    row = connection.execute(_TABLE, [name.schema, name.table]).fetchone()
    if row is None:
        raise PipelineError(
            "the table does not exist",
            where=where,
            cause="names are case-sensitive, and the schema is `public` if the name has none",
            remedy='Correct table=: "table" or "schema.table"',
        )
    oid, kind, replica_identity, persistence, pages = row
    if kind not in ("r", "p", "m"):
        what = "the source reads tables and materialised views, but no views, foreign tables and similar objects"
        raise PipelineError(what, where=where, remedy="Name the table that holds the rows")
    columns = {column: found.column for column, found in found_columns(connection, oid).items()}
    keys: list[tuple[str, ...]] = []
    identity: tuple[str, ...] | None = None
    for primary, chosen, names in connection.execute(_UNIQUE_KEYS, [oid]):
        if all(columns[column].required for column in names):
            keys.append(tuple(names))
            if chosen if replica_identity == "i" else primary:
                identity = tuple(names)
    if identity is None and replica_identity == "f" and keys:
        identity = keys[0]  # changes have all columns of the old row, so that any key identifies it
    logged = persistence == "p"
    return SourceTable(name, oid, kind, replica_identity, logged, max(0, pages), columns, tuple(keys), identity)


def chosen_columns(table: SourceTable, names: Sequence[str] | None, place: str) -> list[TargetColumn]:
    """Return the columns that are read; `names` None: all.

    Raises:
        PipelineError: the table lacks a column.
    """
    missing = [name for name in names or () if name not in table.columns]
    if missing:
        raise PipelineError(
            f"the table has no column {', '.join(map(repr, missing))}",
            where=f"{place}, table {table.name}",
            cause=f"its columns are {', '.join(table.columns)}",
            remedy="Correct columns=",
        )
    return [table.columns[name] for name in (table.columns if names is None else names)]
