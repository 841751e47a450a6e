"""Checks that restored state is what the operator keeps (S5.5)."""

from __future__ import annotations

import pyarrow as pa

from tidegate.contract.errors import SnapshotError
from tidegate.snapshot.parts import StatePart


def checked_schema(part: StatePart, wanted: pa.Schema, uid: str) -> pa.Table:
    """The part's table when it has the columns and types of `wanted`, in order.

    Raises:
        SnapshotError: it has others; names the operator, the state, and old and new types.
    """
    old = {field.name: field.type for field in part.table.schema}
    new = {field.name: field.type for field in wanted}
    if list(old.items()) == list(new.items()):
        return part.table
    changes = [f"{name!r} was {old[name]}, now {new[name]}" for name in old if name in new and old[name] != new[name]]
    changes += [f"{name!r} is no longer there" for name in old if name not in new]
    changes += [f"{name!r} is new" for name in new if name not in old]
    raise SnapshotError(
        f"State {part.name!r} of operator {uid!r} does not fit the pipeline",
        where=f"operator {uid!r}, state {part.name!r}",
        cause="; ".join(changes) or "its columns have another order",
        remedy="Restore with the pipeline that made the snapshot, or give the operator a new uid",
    )
