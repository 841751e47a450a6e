"""Checks that restored state is what the operator keeps (S5.5)."""

from __future__ import annotations

import pyarrow as pa

from tidegate.snapshot.evolving import Renamed, evolved
from tidegate.snapshot.parts import StatePart


def checked_part(
    part: StatePart, wanted: pa.Schema, uid: str, renamed: Renamed | None = None, *, fills: bool = True
) -> StatePart:
    """The part with the columns of `wanted`, in order: as it is, or changed as `contract.evolution` allows.

    Args:
        renamed: old column -> new column.
        fills: a new nullable column is filled with null.

    Raises:
        SnapshotError: its columns cannot become those; names the operator, the state, and old and new types.
    """
    return evolved(part, wanted, uid, renamed, fills=fills)
