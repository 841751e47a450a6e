"""Conversion of a snapshot's parts for the back end of an operator whose states have changed since (S5.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.evolved_columns import evolve_part
from tidegate.snapshot.parts import StatePart
from tidegate.state.keyed_state import StateDescriptor, TimerKind
from tidegate.state.state_layout import (
    KEY_PREFIX,
    MAP_PREFIX,
    VALUE_PREFIX,
    form_of,
    part_schema,
    timer_part,
    timer_schema,
    unknown_state,
)


def evolved_parts(
    parts: Sequence[StatePart],
    descriptors: Sequence[StateDescriptor],
    key_schema: pa.Schema,
    uid: str,
    renamed_keys: Mapping[str, str] | None = None,
    *,
    fills: bool = True,
    drops: bool = False,
) -> list[StatePart]:
    """Return the parts with the columns that the descriptors declare.

    For `KeyedStateBackend.restore`, because back ends accept no other columns.

    Args:
        descriptors: descriptors of all states of the operator.
        renamed_keys: key column in the snapshot -> key column now.
        fills: a new nullable column is filled with null.
        drops: a value column that is no longer declared is dropped.

    Raises:
        SnapshotError: a state has another kind, its columns cannot be converted to the declared ones, or it is not
            declared. The message names operator, state and columns.
    """
    wanted = {descriptor.name: part_schema(descriptor, key_schema) for descriptor in descriptors}
    wanted |= {timer_part(kind): timer_schema(key_schema) for kind in get_args(TimerKind)}
    keys = {KEY_PREFIX + old: KEY_PREFIX + new for old, new in (renamed_keys or {}).items()}
    renamed = {descriptor.name: {**renamed_columns(descriptor), **keys} for descriptor in descriptors}
    out: list[StatePart] = []
    for part in parts:
        if part.kind != "keyed" or part.format != "rows":  # files of a back end, which compares their columns itself
            out.append(part)
            continue
        declared = wanted.get(part.name)
        if declared is None:
            raise unknown_state(part.name, uid)
        was, now = form_of(part.table.schema), form_of(declared)
        if was and was != now:
            raise SnapshotError(
                f"state {part.name!r} of operator {uid!r} has another kind in the snapshot",
                where=f"operator {uid!r}, state {part.name!r}",
                cause=f"the snapshot has {was}, but the pipeline declares {now}",
                remedy="Use another name for the state, or restore with the former declaration",
            )
        out.append(evolve_part(part, declared, uid, renamed.get(part.name, keys), fills=fills, drops=drops))
    return out


def renamed_columns(descriptor: StateDescriptor) -> dict[str, str]:
    """Return `descriptor.renamed` with the column names of a part."""
    prefix = {
        new: MAP_PREFIX if new in descriptor.map_key.names else VALUE_PREFIX for new in descriptor.renamed.values()
    }
    return {prefix[new] + old: prefix[new] + new for old, new in descriptor.renamed.items()}
