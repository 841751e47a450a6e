"""Mirrors a PostgreSQL table in a Delta Lake table: a copy of its rows, and then all its changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate import Delta, Pipeline, PostgresTable

DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")


def build(args: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline.

    Args:
        args: `dsn`, `password` (a reference, or None) and `table` of PostgreSQL; `key`: columns of its primary key;
            `out`: folder of the Delta table. Optional: `columns` to read; `types`: column -> "string" or
            "decimal(20, 4)"; `missing_values`: "fail" (default) or "fetch".
    """
    p = Pipeline()
    changes = PostgresTable(
        args["dsn"],
        args["table"],
        password=args.get("password"),
        columns=args.get("columns") or None,
        types={column: column_type(text) for column, text in (args.get("types") or {}).items()},
        changes=True,
        missing_values=args.get("missing_values") or "fail",
    )
    # One subtask reads all changes of a table and writes them, so the rows of each key arrive in order.
    p.read(changes, uid="changes").write(Delta(args["out"], mode="upsert", key=args["key"]), uid="mirror")
    return p


def column_type(text: str) -> pa.DataType:
    """Return the type with a name such as "string" or "decimal(20, 4)". Raises ValueError for another one."""
    found = DECIMAL.fullmatch(text)
    return pa.decimal128(int(found[1]), int(found[2])) if found else pa.type_for_alias(text)
