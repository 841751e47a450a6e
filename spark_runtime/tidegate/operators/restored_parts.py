"""Checks that restored state is what the operator keeps (S5.5), and gives it other columns."""

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
    """The part with the columns of `wanted`, in order: as it is, or changed as `jobs.restore.state_evolution` allows.

    Args:
        renamed: old column -> new column.
        fills: a new nullable column is filled with null.

    Raises:
        SnapshotError: its columns cannot become those; names the operator, the state, and old and new types.
    """
    return evolve_part(part, wanted, uid, renamed, fills=fills)


def evolve_rows(part: StatePart, change: Callable[[pa.Table], pa.Table]) -> StatePart:
    """The part, of format "rows", with what `change` makes of its rows, a piece at a time."""
    blobs = tuple(Blob(blob.id, partial(_evolve_blob, blob, change), blob.size_bytes) for blob in part.blobs)
    return replace(part, table=change(part.table), blobs=blobs)


def _evolve_blob(blob: Blob, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    return change(blob.table())
