"""Change rows: rows of a stream that say how a table changes, by a declared column with the kind of change.

The column holds one of `CHANGE_KINDS`. Its field carries the role in its metadata, so that operators and sinks find it.

Old rows are the rows of kind delete and update_before. The field of a source also declares which of their columns hold
values. A row that leaves a filter by another column would never be deleted downstream.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

INSERT = "insert"
UPDATE_BEFORE = "update_before"
UPDATE_AFTER = "update_after"
DELETE = "delete"
CHANGE_KINDS = (INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE)
"""Kinds of a change row: a new row; a row before and after an update; a deleted row."""

ROLE = b"tidegate.role"
"""Key in the metadata of a field of an Arrow schema."""
CHANGE_KIND = b"change_kind"
OLD_COLUMNS = b"tidegate.old_columns"
"""Key in the metadata of the field of the kind: names of the columns that old rows have, as JSON; or "all"."""

OldColumns: TypeAlias = "frozenset[str] | None"
"""Columns whose values are in old rows; None: all, and each update has its old row."""


def change_kind_field(name: str = "change_kind", *, old_columns: Sequence[str] | Literal["all"] = ()) -> pa.Field:
    """Return the field of a column with kinds of change: text, never null.

    Args:
        old_columns: columns with values in old rows, such as the key of the table. "all": all columns, and an
            update_before precedes each update_after. Filters may use only these columns.
    """
    import pyarrow as pa

    declared = json.dumps(old_columns if isinstance(old_columns, str) else sorted(old_columns)).encode()
    metadata = {ROLE: CHANGE_KIND, **({OLD_COLUMNS: declared} if old_columns else {})}
    return pa.field(name, pa.string(), nullable=False, metadata=metadata)


def old_columns_of(schema: pa.Schema) -> OldColumns:
    """Return what the field of the kind declares; nothing if it declares nothing, or there is none."""
    kind = change_kind_column(schema)
    declared = None if kind is None else (schema.field(kind).metadata or {}).get(OLD_COLUMNS)
    found = [] if declared is None else json.loads(declared)
    return None if found == "all" else frozenset(found)


def change_kind_column(schema: pa.Schema) -> str | None:
    """Return the name of the column with the kind of change; None: every row is an insert."""
    for field in schema:
        if (field.metadata or {}).get(ROLE) == CHANGE_KIND:
            return str(field.name)
    return None


def only_role(field: pa.Field) -> pa.Field:
    """Return a field without metadata, except its role: operators that pass a column on must not lose it."""
    role = (field.metadata or {}).get(ROLE)
    plain = field.remove_metadata()
    return plain if role is None else plain.with_metadata({ROLE: role})
