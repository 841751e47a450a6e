"""Declares states that a process keeps per subtask. Arguments are checked at once; errors name the place of the
call."""

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
    """Declare a list of rows of a subtask; in the process `ctx.operator_list(name)`.

    At another parallelism the rows are divided evenly over the subtasks (S5.5).

    Args:
        name: unique within the process; snapshots find the state by it.
        columns: of the rows, such as {"total": pa.int64()}; nullable unless the schema says otherwise.
        renamed: column in older snapshots -> its name now, so that they can be restored (S5.5).

    Raises:
        PipelineError: an invalid name or column.
    """
    return _state("operator_list_state", name, "list", columns, renamed)


def union_list_state(name: str, columns: Columns, *, renamed: Mapping[str, str] | None = None) -> OperatorDescriptor:
    """Declare a list of rows of a subtask. After a restore every subtask has the rows of all subtasks.

    In the process `ctx.union_list(name)`. See `operator_list_state`.
    """
    return _state("union_list_state", name, "union", columns, renamed)


def broadcast_state(
    name: str, key: Columns, columns: Columns, *, renamed: Mapping[str, str] | None = None
) -> OperatorDescriptor:
    """Declare a map that is the same in every subtask; in the process `ctx.broadcast(name)`.

    Use it in a process with a broadcast input, which writes it. Without a broadcast input, every subtask must write the
    same. See `operator_list_state`.

    Args:
        key: columns of the key, of types that group_by accepts.
        columns: of the values.
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
    """Declare bytes of a subtask, which the process writes and reads itself: `write_raw` and `read_raw`.

    At another parallelism the pieces are divided evenly over the subtasks (S5.5).

    Args:
        name: unique within the process; snapshots find the state by it.

    Raises:
        PipelineError: an invalid name.
    """
    _require_name(name, state_place("raw_state", name))
    return RawDescriptor(name)


def keyed_raw_state(name: str) -> RawDescriptor:
    """Declare raw state in pieces that belong to key groups and move with them (S5.5); for processes with keys."""
    _require_name(name, state_place("keyed_raw_state", name))
    return RawDescriptor(name, keyed=True)


def _require_name(name: object, where: str) -> None:
    require_state_name(name, where)
    if name in get_args(StateFormat) and name != "rows":
        raise PipelineError(
            f"a state cannot be named {name!r}",
            where=where,
            cause="snapshots use this name for files of the state back end",
            remedy="Use another name",
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
    refuse_duplicates(names, where, remedy="Use a different name for every column")
    mapping = dict(checked_renames(renamed, names, where))
    try:
        return OperatorDescriptor(name, kind, kept, of_key, mapping)
    except PipelineError as error:
        raise PipelineError(error.what, where=where, cause=error.cause, remedy=error.remedy) from error
