"""Mirrors a PostgreSQL table in a Delta Lake table: a copy of its rows, and then all its changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate import Delta, Pipeline, PostgresTable


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `dsn`, `password` (a reference, or None) and `table` of PostgreSQL; `key`: columns of its primary key;
            `out`: folder of the Delta table.
    """
    p = Pipeline()
    changes = PostgresTable(args["dsn"], args["table"], password=args.get("password"), changes=True)
    # One subtask reads all changes of a table and writes them, so the rows of each key arrive in order.
    p.read(changes, uid="changes").write(Delta(args["out"], mode="upsert", key=args["key"]), uid="mirror")
    return p
