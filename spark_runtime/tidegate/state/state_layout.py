"""Rows of keyed states and timers in snapshots (S5.1, S5.3): what any back end writes and every other restores.

There is one part of kind "keyed" for each state, named as its descriptor, and one for each kind of timers, named
`timers:event` and `timers:processing`. Columns, in this order::

    __key_group    uint16
    key:<name>     each key column
    map:<name>     each map key column; only for maps
    value:<name>   each column of the state; for a reducing state with the types of `result_schema`
    time_us        int64; only for timers
    ttl_ms         int64, time of the last use; only for states with a TTL

A row is a value, an element of a list, an entry of a map, an accumulator or a timer. Elements of one list keep their
order, but need not be adjacent. The kind is in the schema's metadata, because the columns do not show it.
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

RUNS = "sorted runs"
"""Form of the rows of windows in files of RocksDB: several rows for each key, which are merged when they are read."""
_KIND = b"tidegate.state"


def timer_part(kind: TimerKind) -> str:
    """Return the name of the part that holds the timers of `kind`."""
    return f"timers:{kind}"


def result_schema(descriptor: StateDescriptor) -> pa.Schema:
    """Return the columns that a state returns: the declared ones, but int64 or float64 for sums, int64 for counts."""
    if descriptor.kind != "reducing":
        return descriptor.columns
    pairs = zip(descriptor.columns, descriptor.reductions, strict=True)
    return pa.schema([pa.field(field.name, reduced_type(reduction, field.type)) for field, reduction in pairs])


def reduced_type(reduction: Reduction, type_: pa.DataType) -> pa.DataType:
    """Return the type of a reduced column."""
    if reduction == "count":
        return pa.int64()
    if reduction == "sum":
        return pa.float64() if pt.is_floating(type_) else pa.int64()
    return type_


def part_schema(descriptor: StateDescriptor, key_schema: pa.Schema) -> pa.Schema:
    """Return the columns of the rows of a state."""
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
    """Return the columns of the rows of timers."""
    return pa.schema([*_key_fields(key_schema), pa.field(TIME_COLUMN, pa.int64())], {_KIND: b"timers"})


def operator_schema(kind: StateKind, columns: pa.Schema) -> pa.Schema:
    """Return the columns of the rows of an operator state: the declared ones, without key groups."""
    return marked_schema(f"operator {kind}", columns)


def marked_schema(form: str, columns: pa.Schema) -> pa.Schema:
    """Return the columns with `form`, the content of the rows, in the metadata; see `form_of`."""
    return columns.with_metadata({_KIND: form.encode()})


def require_same_columns(name: str, found: pa.Schema, declared: pa.Schema, uid: str) -> None:
    """Check that the rows in a snapshot have the declared kind, and columns of the same names, types and order.

    Args:
        name: name of the part.
        found: schema in the snapshot; a kind that is missing in its metadata is not compared.
        declared: result of `part_schema` or `timer_schema`.
        uid: uid of the operator.

    Raises:
        SnapshotError: they differ; the message shows both.
    """
    theirs, mine = form_of(found) or form_of(declared), form_of(declared)
    if theirs == mine and found.names == declared.names and found.types == declared.types:
        return
    raise SnapshotError(
        f"state {name!r} differs from the state of this name in the snapshot",
        where=f"operator {uid!r}",
        cause=f"the snapshot has {theirs} ({_columns_text(found)}); the pipeline declares {mine} "
        f"({_columns_text(declared)})",
        remedy="Use another name for the state, or restore with the former declaration",
    )


def unknown_state(name: str, uid: str) -> SnapshotError:
    """Return the error for a part of no declared state or timers: dropping it silently would lose it."""
    return SnapshotError(
        f"the snapshot holds a state {name!r} that the operator does not declare",
        where=f"operator {uid!r}",
        cause="the state was removed or renamed in the pipeline",
        remedy=f"Declare state {name!r} again, or restore a savepoint with allow_non_restored_state to drop it",
    )


def foreign_format_error(part: StatePart, states: Sequence[str], uid: str) -> SnapshotError:
    """Return the error for a part that consists of another back end's files.

    Args:
        states: names of the states that the operator declares.
    """
    names = ", ".join(map(repr, states)) or repr(part.name)
    return SnapshotError(
        f"this state back end cannot read the {part.format} files of the snapshot",
        where=f"operator {uid!r}, state {names}",
        cause=f"the checkpoint was written with state_backend={part.format!r}; only that back end reads its files",
        remedy=f"Restore with state_backend={part.format!r}. To change the back end, take a savepoint of the restored "
        "job and restore that savepoint with the other back end: every back end reads savepoints",
    )


def _key_fields(key_schema: pa.Schema) -> list[pa.Field]:
    group = pa.field(KEY_GROUP_COLUMN, pa.uint16())
    return [group, *(field.with_name(KEY_PREFIX + field.name) for field in key_schema)]


def form_of(schema: pa.Schema) -> str:
    """Return the content of the rows: "value", "map", "reducing by sum", "timers"; "" if the schema does not contain
    it.
    """
    return (schema.metadata or {}).get(_KIND, b"").decode()


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name != KEY_GROUP_COLUMN)
