"""Checks that restored state fits the operator, and adapts its columns (S5.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidegate.snapshot.evolved_columns import Renamed, evolve_part
from tidegate.snapshot.parts import Blob, StatePart


def single_part(
    part: StatePart, wanted: pa.Schema, uid: str, renamed: Renamed | None = None, *, fills: bool = True
) -> StatePart:
    """Return the part with the columns of `wanted`, in order. Changes are made as `jobs.restore.state_evolution`
    allows.

    Args:
        renamed: old column -> new column.
        fills: fill a new nullable column with null.

    Raises:
        SnapshotError: the columns cannot be adapted; names the operator, the state, and old and new types.
    """
    return evolve_part(part, wanted, uid, renamed, fills=fills)


def evolve_rows(part: StatePart, change: Callable[[pa.Table], pa.Table]) -> StatePart:
    """Return the part, of format "rows", with `change` applied to its rows, one piece at a time."""
    blobs = tuple(Blob(blob.id, partial(_evolve_blob, blob, change), blob.size_bytes) for blob in part.blobs)
    return replace(part, table=change(part.table), blobs=blobs)


def _evolve_blob(blob: Blob, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    return change(blob.table())
