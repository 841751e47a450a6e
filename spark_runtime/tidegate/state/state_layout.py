"""The rows of keyed states and timers in snapshots (S5.1, S5.3): what any back end writes and every other restores.

One part of kind "keyed" for each state, named as its descriptor, and one for each kind of timers, named
`timers:event` and `timers:processing`. Columns, in this order::

    __key_group    uint16
    key:<name>     of each key column
    map:<name>     of each map key column; of maps only
    value:<name>   of each column of the state; of a reducing state with the types of `result_schema`
    time_us        int64; of timers only
    ttl_ms         int64, when it was used last; of states with a TTL only

A row is a value, an element of a list, an entry of a map, an accumulator or a timer. Elements of one list come in
their order, but need not be neighbours. The kind stands in the schema's metadata, since columns do not tell it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StateKind, StatePart
from tidegate.state.keyed_state import Reduction, StateDescriptor, TimerKind

KEY_PREFIX = "key:"
MAP_PREFIX = "map:"
VALUE_PREFIX = "value:"
TIME_COLUMN = "time_us"
TTL_COLUMN = "ttl_ms"

_KIND = b"tidegate.state"


def timer_part(kind: TimerKind) -> str:
    """Name of the part that holds the timers of `kind`."""
    return f"timers:{kind}"


def result_schema(descriptor: StateDescriptor) -> pa.Schema:
    """Columns that a state gives back: those of its descriptor, but int64 or float64 for sums and int64 for counts."""
    if descriptor.kind != "reducing":
        return descriptor.columns
    pairs = zip(descriptor.columns, descriptor.reductions, strict=True)
    return pa.schema([pa.field(field.name, reduced_type(reduction, field.type)) for field, reduction in pairs])


def reduced_type(reduction: Reduction, type_: pa.DataType) -> pa.DataType:
    """Type of a reduced column."""
    if reduction == "count":
        return pa.int64()
    if reduction == "sum":
        return pa.float64() if pt.is_floating(type_) else pa.int64()
    return type_


def part_schema(descriptor: StateDescriptor, key_schema: pa.Schema) -> pa.Schema:
    """Columns of the rows of a state."""
    fields = _key_fields(key_schema)
    fields += [field.with_name(MAP_PREFIX + field.name) for field in descriptor.map_key]
    fields += [field.with_name(VALUE_PREFIX + field.name) for field in result_schema(descriptor)]
    if descriptor.ttl is not None:
        fields.append(pa.field(TTL_COLUMN, pa.int64()))
    kind: str = descriptor.kind
    if descriptor.reductions:
        kind += f" by {', '.join(descriptor.reductions)}"
    return pa.schema(fields, {_KIND: kind.encode()})


def timer_schema(key_schema: pa.Schema) -> pa.Schema:
    """Columns of the rows of timers."""
    return pa.schema([*_key_fields(key_schema), pa.field(TIME_COLUMN, pa.int64())], {_KIND: b"timers"})


def operator_schema(kind: StateKind, columns: pa.Schema) -> pa.Schema:
    """Columns of the rows of an operator state: its own, and no key groups."""
    return marked_schema(f"operator {kind}", columns)


def marked_schema(form: str, columns: pa.Schema) -> pa.Schema:
    """The columns, and `form` for what the rows are of; see `form_of`."""
    return columns.with_metadata({_KIND: form.encode()})


def require_same_columns(name: str, found: pa.Schema, declared: pa.Schema, uid: str) -> None:
    """Compare the rows in a snapshot with what the operator declares: kind, names, types and order of columns.

    Args:
        name: of the part.
        found: schema in the snapshot; a kind that is not in its metadata is not compared.
        declared: by `part_schema` or `timer_schema`.
        uid: of the operator.

    Raises:
        SnapshotError: they differ; names both.
    """
    theirs, mine = form_of(found) or form_of(declared), form_of(declared)
    if theirs == mine and found.names == declared.names and found.types == declared.types:
        return
    raise SnapshotError(
        f"State {name!r} is not what the snapshot holds under this name",
        where=f"operator {uid!r}",
        cause=f"the snapshot has {theirs} ({_columns_text(found)}), the pipeline {mine} ({_columns_text(declared)})",
        remedy="Give the state another name, or restore with the former declaration",
    )


def unknown_state(name: str, uid: str) -> SnapshotError:
    """The error for a part that is of no state and no timers of the operator: dropped silently it would be lost."""
    return SnapshotError(
        f"The snapshot holds a state {name!r} that the operator does not declare",
        where=f"operator {uid!r}",
        cause="it was removed or renamed in the pipeline",
        remedy=f"Declare {name!r} again, or restore a savepoint and set allow_non_restored_state to drop it",
    )


def foreign_format_error(part: StatePart, states: Sequence[str], uid: str) -> SnapshotError:
    """The error for a part that is files of another back end. Args: states: that the operator declares."""
    names = ", ".join(map(repr, states)) or repr(part.name)
    return SnapshotError(
        f"This state back end cannot read the snapshot's files of {part.format}",
        where=f"operator {uid!r}, state {names}",
        cause=f"the checkpoint was written with state_backend={part.format!r}; only that one reads its files",
        remedy=f"Restore with state_backend={part.format!r}, or take a savepoint with it, which any back end restores",
    )


def _key_fields(key_schema: pa.Schema) -> list[pa.Field]:
    group = pa.field(KEY_GROUP_COLUMN, pa.uint16())
    return [group, *(field.with_name(KEY_PREFIX + field.name) for field in key_schema)]


def form_of(schema: pa.Schema) -> str:
    """What the rows are of: "value", "map", "reducing by sum", "timers"; "" where the schema does not tell."""
    return (schema.metadata or {}).get(_KIND, b"").decode()


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name != KEY_GROUP_COLUMN)
