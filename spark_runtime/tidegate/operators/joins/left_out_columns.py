"""Stored rows without the columns that the pipeline does not read (S5.5).

Such rows name the columns that they lack. A pipeline that reads one of them cannot use the rows. It must not fill the
column with nulls, as it does with a column that is new.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.evolved_columns import Renamed

_LEFT_OUT = b"tidegate.left_out"
"""Key in the metadata of the rows' schema: the names of the columns, as a JSON list."""


def note_left_out(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows with a note of the columns that they lack."""
    if not columns:
        return rows
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _LEFT_OUT: json.dumps(list(columns))})


def without_left_out(
    rows: pa.Table, read: Sequence[str], columns: Sequence[str], renamed: Renamed, where: str
) -> pa.Table:
    """Return restored rows without the columns that the pipeline does not read.

    Args:
        read: columns that the pipeline reads.
        columns: columns that it declares and does not read.
        renamed: old column -> new column.
        where: operator and state, for errors.

    Raises:
        SnapshotError: a column that the pipeline reads was left out when the rows were stored.
    """
    lacks = [renamed.get(name, name) for name in json.loads((rows.schema.metadata or {}).get(_LEFT_OUT, b"[]"))]
    missing = [name for name in read if name in lacks]
    if missing:
        raise SnapshotError(
            f"the snapshot holds rows without column {missing[0]!r}, which the pipeline now reads",
            where=where,
            cause=f"when the snapshot was taken, nothing read {', '.join(map(repr, missing))}, so the rows were stored "
            "without",
            remedy="Restore with the former pipeline, wait until the build side of the join is complete, and take a "
            "savepoint; or give the operator a new uid",
        )
    return rows.drop_columns([name for name in rows.column_names if renamed.get(name, name) in columns])
