"""Change rows: rows of a stream that say how a table changes, by a declared column with the kind of change.

The column holds one of `CHANGE_KINDS`. Its field carries the role in its metadata, so that operators and sinks find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def change_kind_field(name: str = "change_kind") -> pa.Field:
    """Return the field of a column with kinds of change: text, never null."""
    import pyarrow as pa

    return pa.field(name, pa.string(), nullable=False, metadata={ROLE: CHANGE_KIND})


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
