"""Questions about the table that a reader asks while it reads changes. Calls block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.postgres.copy_columns import TargetColumn
from tidegate.connectors.postgres.source.change_check import ChangeOptions
from tidegate.connectors.postgres.source.column_values import arrow_type, declared_type
from tidegate.connectors.postgres.source.handover import Piece
from tidegate.connectors.postgres.source.pgoutput import Relation, RelationColumn
from tidegate.connectors.postgres.source.source_table import KeyColumn, TableName
from tidegate.connectors.postgres.source.table_watch import TableWatch
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

_TYPE = """
SELECT format_type(t.oid, %(modifier)s), b.typname::text, b.typcategory::text,
    CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE %(modifier)s END
FROM pg_type t JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE t.oid = %(oid)s
"""


class ServerTable:
    """Implements `change_assembler.TableAccess` with a connection to the server."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        watch: TableWatch,
        table: TableName,
        key: Sequence[KeyColumn],
        schema: pa.Schema,
        options: ChangeOptions,
        declared: Mapping[str, pa.DataType],
        known: Sequence[str],
        place: str,
        log: Callable[..., None],
    ) -> None:
        """Args:
        declared: types that the user declares.
        known: columns of the table that are no surprise: those that exist at the start of this run.
        """
        self._declared, self._watch = declared, watch
        self._connection, self._table, self._key, self._schema = connection, table, key, schema
        self._options, self._known, self._log = options, set(known), log
        self._where = f"{place}, table {table}"

    def is_part(self, relation: Relation) -> bool:
        """See `TableAccess`."""
        is_part = self._watch.is_part(relation.oid, f"{relation.schema}.{relation.table}")
        if is_part:
            # The server describes a relation again when a statement has altered it.
            self._watch.soon()
        return is_part

    def places(self, relation: Relation) -> Mapping[str, int]:
        """See `TableAccess`."""
        places = {column.name: place for place, column in enumerate(relation.columns)}
        problems = []
        for field in self._schema:
            if field.name == self._options.kind_column:
                continue
            if field.name not in places:
                problems.append(f"column {field.name!r} was dropped or renamed")
            elif problem := self._problem(field, relation.columns[places[field.name]]):
                problems.append(problem)
        problems += self._problems_of_identity(relation)
        added = [name for name in places if name not in self._known and name not in self._schema.names]
        if added and self._options.on_added_column == "fail":
            problems.append(f"columns were added: {', '.join(added)}")
        if problems:
            raise PipelineError(
                "the table was altered, so that its changes do not fit the job",
                where=self._where,
                cause="; ".join(problems),
                remedy="Start the job afresh with a new uid for the source; or restore a snapshot from before the "
                "change, with columns= or types= that fit both",
            )
        if added:
            self._log("columns were added to table %s, and are not read: %s", self._table, ", ".join(added))
            self._known |= set(added)
        return places

    def _problem(self, field: pa.Field, column: RelationColumn) -> str | None:
        row = self._connection.execute(_TYPE, {"oid": column.type_oid, "modifier": column.modifier}).fetchone()
        if row is None:
            return f"the type of column {column.name!r} was dropped"
        sql_type, base, category, modifier = row
        there = TargetColumn(column.name, sql_type, base, category, modifier, "", False, False, False)
        kind = arrow_type(there)
        declared = self._declared.get(field.name)
        if kind == field.type or (declared is not None and declared_type(there, declared)):
            return None
        return f"column {field.name!r}, which the job reads as {field.type}, has the type {there.sql_type}"

    def _problems_of_identity(self, relation: Relation) -> Sequence[str]:
        if relation.replica_identity == "n":
            return ["the replica identity is NOTHING"]
        if relation.replica_identity != "f" and self._options.old_rows == "complete":
            return ["the replica identity is not FULL, as old_rows='complete' demands"]
        sent = {column.name for column in relation.columns if column.in_key}
        key = {column.name for column in self._key}
        if relation.replica_identity != "f" and sent != key:
            return [f"the replica identity is {', '.join(sorted(sent))} instead of {', '.join(sorted(key))}"]
        return []

    def pieces(self, keys: Sequence[Sequence[str | None]], pieces: Sequence[Piece]) -> Sequence[int]:
        """See `TableAccess`. The server compares keys, because only it knows the order of their types."""
        from psycopg import sql

        own = sql.SQL(", ").join(self._typed(n) for n in range(len(self._key)))
        cases: list[Composed] = []
        for place, piece in enumerate(pieces[:-1]):
            assert piece.up_to is not None, "only the last piece has no end"
            bound = [column.value(text) for column, text in zip(self._key, piece.up_to, strict=True)]
            end = sql.SQL(", ").join(bound)
            cases.append(sql.SQL("WHEN ({}) <= ({}) THEN {}").format(own, end, sql.Literal(place)))
        query = sql.SQL("SELECT CASE {} ELSE {} END FROM {} ORDER BY n").format(
            sql.SQL(" ").join(cases), sql.Literal(len(pieces) - 1), self._rows()
        )
        return [place for (place,) in self._connection.execute(query, [list(texts) for texts in keys])]

    def fetch(
        self, keys: Sequence[Sequence[str | None]], columns: Sequence[str]
    ) -> Sequence[tuple[int, Sequence[str | None]]]:
        """See `TableAccess`."""
        from psycopg import sql

        same = [
            sql.SQL("t.{} = {}").format(sql.Identifier(column.name), self._typed(n))
            for n, column in enumerate(self._key)
        ]
        # The text of the type's output function, as the stream has it. A cast to text would strip blanks of char(n).
        text = "CASE WHEN t.{0} IS DISTINCT FROM NULL THEN format('%%s', t.{0}) END"
        query = sql.SQL("SELECT k.n - 1, {} FROM {} JOIN {} t ON {}").format(
            sql.SQL(", ").join(sql.SQL(text).format(sql.Identifier(name)) for name in columns),
            self._rows(),
            self._table.sql(),
            sql.SQL(" AND ").join(same),
        )
        return [(row[0], row[1:]) for row in self._connection.execute(query, [list(texts) for texts in keys])]

    def _rows(self) -> Composed:
        from psycopg import sql

        arrays = sql.SQL(", ").join(sql.SQL("%s::text[]") for _ in self._key)
        names = sql.SQL(", ").join(sql.Identifier(f"k{n}") for n in range(len(self._key)))
        return sql.SQL("unnest({}) WITH ORDINALITY AS k({}, n)").format(arrays, names)

    def _typed(self, n: int) -> Composed:
        from psycopg import sql

        column = self._key[n]
        collation = f" COLLATE {column.collation}" if column.collation else ""
        return sql.SQL(f"k.{{}}::{column.sql_type}{collation}").format(sql.Identifier(f"k{n}"))
