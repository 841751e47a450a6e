"""Check that the changes of a table can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tidegate.connectors.postgres.source.slots import default_publication, publication_problems
from tidegate.connectors.postgres.source.source_table import SourceTable
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    import psycopg

_GENERATED = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attgenerated <> '' AND NOT attisdropped"

_OTHER_STORAGE = """
WITH RECURSIVE tree(oid) AS (
    SELECT %s::oid UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid
)
SELECT c.oid::regclass::text, c.relkind = 'f' OR c.relpersistence <> 'p' FROM tree JOIN pg_class c ON c.oid = tree.oid
WHERE c.oid <> %s
"""

OnTruncate = Literal["fail", "ignore"]
OnAddedColumn = Literal["ignore", "fail"]
OnHiddenChange = Literal["fail", "ignore"]
MissingValues = Literal["fail", "fetch"]


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
    missing = [name for name in key or () if name not in columns]
    if missing:
        problems.append(f"columns= leaves out the key column {', '.join(missing)}")
    return problems
