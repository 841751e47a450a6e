"""Ranges of a table's rows, and the statements that read them.

A range is given by bounds of its first key column. Inside a range rows are ordered by all key columns, so that a read
can be continued after any row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.source.source_table import CTID, TABLEOID, KeyColumn, SourceTable, TableName
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

DEFAULT_RANGES = 16
"""Ranges of a table: some for each reader, so that a fast one reads more of them."""
PAGES_OF_A_RANGE = 1_024
"""Smallest range without `splits=`, pages: 8 MiB, some ten milliseconds of work."""
SAMPLED_PAGES = 2_000
"""Pages from which bounds are computed: 16 MiB, some 100,000 rows, so that ranges differ by a few per cent."""


@dataclass(frozen=True)
class KeyRange:
    """Rows of a range.

    Attributes:
        key: columns of the order. No two rows have the same values.
        low, high: texts of the first column's bounds, `low` inclusive and `high` exclusive; None: no bound.
        nulls: the rows whose column `of_nulls` is null, instead.
    """

    key: tuple[KeyColumn, ...]
    low: str | None = None
    high: str | None = None
    of_nulls: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document for a split."""
        key = [[column.name, column.sql_type] for column in self.key]
        return {"key": key, "low": self.low, "high": self.high, "of_nulls": self.of_nulls}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> KeyRange:
        """Inverse of `to_json`."""
        key = tuple(KeyColumn(name, sql_type) for name, sql_type in document["key"])
        return cls(key, document["low"], document["high"], document["of_nulls"])

    @property
    def is_in_physical_order(self) -> bool:
        """True if rows are read by ctid alone."""
        return self.key == (CTID,)


def ranges_of(
    connection: psycopg.Connection[Any], table: SourceTable, split_by: str | None, splits: int | None, place: str
) -> list[KeyRange]:
    """Return ranges that contain each row of the table once.

    Args:
        split_by: column of the bounds; None: the first column of the primary key or of a unique key, or ctid.
        splits: most ranges; None: as many as the table's size suggests.

    Raises:
        PipelineError: the column does not exist, has no order, or is needed.
    """
    where = f"{place}, table {table.name}"
    pages = _pages(connection, table)
    most = splits or max(1, min(DEFAULT_RANGES, pages // PAGES_OF_A_RANGE))
    key = _key(table, split_by, where)
    if key[0] == CTID:
        return _ranges_of_pages(pages, most)
    bounds = _bounds(connection, table, key[0], most, pages, where)
    found = [KeyRange(key, low, high) for low, high in zip([None, *bounds], [*bounds, None], strict=True)]
    if not table.columns[key[0].name].required:
        rest = (CTID,) if table.kind != "p" else (TABLEOID, CTID)
        found.append(KeyRange(rest, of_nulls=key[0].name))
    return found


def _key(table: SourceTable, split_by: str | None, where: str) -> tuple[KeyColumn, ...]:
    if split_by is not None and split_by not in table.columns:
        remedy = f"Use one of {', '.join(table.columns)}"
        raise PipelineError(f"the table has no column {split_by!r}", where=f"{where}, split_by=", remedy=remedy)
    for names in table.unique_keys:
        if split_by in (None, names[0]):
            return table.key_columns(names)
    if split_by is not None:
        # Rows with one value need an order, too.
        rest = (CTID,) if table.kind != "p" else (TABLEOID, CTID)
        return (*table.key_columns([split_by]), *rest)
    if table.kind == "p":
        raise PipelineError(
            "a partitioned table without a unique key needs a column by which it is split",
            where=where,
            remedy="Pass split_by= with a column that has many values",
        )
    return (CTID,)


def _pages(connection: psycopg.Connection[Any], table: SourceTable) -> int:
    query = (
        "SELECT coalesce(sum(pg_relation_size(relid)), 0) / current_setting('block_size')::int"
        " FROM pg_partition_tree(%(oid)s)"
        if table.kind == "p"
        else "SELECT pg_relation_size(%(oid)s) / current_setting('block_size')::int"
    )
    row = connection.execute(query, {"oid": table.oid}).fetchone()
    return int(row[0]) if row else 0


def _ranges_of_pages(pages: int, most: int) -> list[KeyRange]:
    # Rows that are added while the table is read may be on later pages, so the last range has no end.
    firsts = sorted({pages * n // most for n in range(1, most)} - {0})
    bounds = [f"({first},0)" for first in firsts]
    return [KeyRange((CTID,), low, high) for low, high in zip([None, *bounds], [*bounds, None], strict=True)]


def _bounds(
    connection: psycopg.Connection[Any], table: SourceTable, column: KeyColumn, most: int, pages: int, where: str
) -> list[str]:
    """Return texts of values that divide the rows into parts of about the same size, in their order."""
    from psycopg import errors, sql

    if most == 1:
        return []
    percent = min(100.0, 100.0 * SAMPLED_PAGES / max(1, pages))
    # REPEATABLE, so that two searches find the same ranges.
    query = sql.SQL(
        "SELECT (percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY {column}))::text[]"
        " FROM {table} TABLESAMPLE SYSTEM (%s) REPEATABLE (0)"
    ).format(column=sql.Identifier(column.name), table=table.name.sql())
    try:
        row = connection.execute(query, [[n / most for n in range(1, most)], percent]).fetchone()
    except errors.UndefinedFunction:
        raise PipelineError(
            f"column {column.name!r} of type {column.sql_type} has no order",
            where=f"{where}, split_by=",
            remedy="Pass split_by= with a column of numbers, texts, uuids or times",
        ) from None
    found = [text for text in (row[0] if row and row[0] else []) if text is not None]
    return list(dict.fromkeys(found))


def copy_statement(
    connection: psycopg.Connection[Any],
    table: TableName,
    read: KeyRange,
    columns: Sequence[str],
    after: Sequence[str] | None,
    condition: str | None,
) -> str:
    """Return the COPY statement of a range: the key columns as texts, then `columns`.

    Args:
        after: texts of the key of the last row that was read; None: from the start.
        condition: SQL condition of the user.
    """
    from psycopg import sql

    keys = [sql.Identifier(column.name) for column in read.key]
    # Without names of their own, the texts of the key would have the names of its columns, by which rows are ordered.
    texts = [sql.SQL("{}::text AS {}").format(key, sql.Identifier(f"tidegate key {n}")) for n, key in enumerate(keys)]
    selected = [*texts, *(sql.Identifier(name) for name in columns)]
    first, row = read.key[0], sql.SQL("({})").format(sql.SQL(", ").join(keys))
    conditions: list[Composed] = []
    if read.low is not None and after is None:
        conditions.append(sql.SQL("{} >= {}").format(keys[0], first.value(read.low)))
    if read.high is not None:
        conditions.append(sql.SQL("{} < {}").format(keys[0], first.value(read.high)))
    if read.of_nulls is not None:
        conditions.append(sql.SQL("{} IS NULL").format(sql.Identifier(read.of_nulls)))
    if after is not None:
        values = [column.value(text) for column, text in zip(read.key, after, strict=True)]
        conditions.append(sql.SQL("{} > ({})").format(row, sql.SQL(", ").join(values)))
    if condition is not None:
        conditions.append(sql.SQL("({})").format(sql.SQL(condition)))
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(selected), table.sql())
    if conditions:
        query += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
    if not read.is_in_physical_order or condition is not None:
        # Without a condition, the scan of a ctid range returns rows in this order, and a sort would only cost time.
        query += sql.SQL(" ORDER BY ") + sql.SQL(", ").join(keys)
    return sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(query).as_string(connection)


def without_lower_bound(read: KeyRange) -> KeyRange:
    """Return all rows in the order of the range's key."""
    return replace(read, low=None, high=None)
