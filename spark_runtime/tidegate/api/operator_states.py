"""Declaring the states that a process keeps per subtask. Checked at once; errors name the place of the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import pyarrow as pa

from tidegate.api.draft.column_checks import checked_renames, refuse_duplicates
from tidegate.api.states import Columns, require_state_name, state_place, state_schema
from tidegate.errors import PipelineError
from tidegate.snapshot.parts import StateFormat
from tidegate.state.keys.key_types import KEY_TYPES_TEXT, is_key_type, stored_type
from tidegate.state.operator_descriptor import OperatorDescriptor, OperatorKind
from tidegate.state.raw_state import RawDescriptor


def operator_list_state(name: str, columns: Columns, *, renamed: Mapping[str, str] | None = None) -> OperatorDescriptor:
    """Rows of a subtask, in order; in the process `ctx.operator_list(name)`. At another parallelism they are split
    evenly over the subtasks (S5.5).

    Args:
        name: unique within the process; snapshots find the state by it.
        columns: of the rows, such as {"total": pa.int64()}; nullable unless the schema says otherwise.
        renamed: column in older snapshots -> its name now, so that they can be restored (S5.5).

    Raises:
        PipelineError: a name or column that cannot be.
    """
    return _state("operator_list_state", name, "list", columns, renamed)


def union_list_state(name: str, columns: Columns, *, renamed: Mapping[str, str] | None = None) -> OperatorDescriptor:
    """Rows of a subtask, and after a restore those of all subtasks; in the process `ctx.union_list(name)`. See
    `operator_list_state`."""
    return _state("union_list_state", name, "union", columns, renamed)


def broadcast_state(
    name: str, key: Columns, columns: Columns, *, renamed: Mapping[str, str] | None = None
) -> OperatorDescriptor:
    """A row for each key, the same in every subtask; in the process `ctx.broadcast(name)`. Meant for a process with a
    broadcast input, which writes it; without one, write only what every subtask writes. See `operator_list_state`.

    Args:
        key: columns of the key, of types that a group_by takes.
        columns: of what is kept for it.
    """
    where = state_place("broadcast_state", name)
    of_key = state_schema(key, "key", where)
    for field in of_key:
        if not is_key_type(field.type) or stored_type(field.type) != field.type:
            raise PipelineError(
                f"column {field.name!r} of type {field.type} cannot be part of a key",
                where=where,
                remedy=f"Use {KEY_TYPES_TEXT}",
            )
    return _state("broadcast_state", name, "broadcast", columns, renamed, key=of_key)


def raw_state(name: str) -> RawDescriptor:
    """Bytes of a subtask, which the process writes and reads itself: `write_raw` and `read_raw`. At another parallelism
    the pieces are split evenly over the subtasks (S5.5).

    Args:
        name: unique within the process; snapshots find the state by it.

    Raises:
        PipelineError: a name that cannot be.
    """
    _require_name(name, state_place("raw_state", name))
    return RawDescriptor(name)


def keyed_raw_state(name: str) -> RawDescriptor:
    """As `raw_state`, in pieces that are of key groups and move with them (S5.5); for processes with keys."""
    _require_name(name, state_place("keyed_raw_state", name))
    return RawDescriptor(name, keyed=True)


def _require_name(name: object, where: str) -> None:
    require_state_name(name, where)
    if name in get_args(StateFormat) and name != "rows":
        raise PipelineError(
            f"{name!r} cannot be the name of a state",
            where=where,
            cause="snapshots have files of a back end under this name",
            remedy="Give it another name",
        )


def _state(
    call: str,
    name: str,
    kind: OperatorKind,
    columns: Columns,
    renamed: Mapping[str, str] | None,
    key: pa.Schema | None = None,
) -> OperatorDescriptor:
    where = state_place(call, name)
    _require_name(name, where)
    kept = state_schema(columns, "columns", where)
    of_key = pa.schema([]) if key is None else key
    names = [*of_key.names, *kept.names]
    refuse_duplicates(names, where, remedy="Give every column a name of its own")
    mapping = dict(checked_renames(renamed, names, where))
    try:
        return OperatorDescriptor(name, kind, kept, of_key, mapping)
    except PipelineError as error:
        raise PipelineError(error.what, where=where, cause=error.cause, remedy=error.remedy) from error
