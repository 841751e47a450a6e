"""Declares states that a process keeps per key. Arguments are checked at once; errors name the place of the call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import checked_renames, nearest, refuse_duplicates
from tidegate.api.windows import duration_us
from tidegate.errors import PipelineError
from tidegate.operators.user_functions.context import DeclaredState
from tidegate.state.keyed_state import KeyedKind, Reduction, StateDescriptor, TimeToLive
from tidegate.state.keys.key_types import KEY_TYPES_TEXT, is_key_type, stored_type

Columns: TypeAlias = pa.Schema | Mapping[str, pa.DataType] | Sequence[tuple[str, pa.DataType]]
"""Names and types, as `pyarrow.schema` accepts them."""
Merge: TypeAlias = Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]

_SUMMED = "integers, floats and booleans"
_COMPARED = (
    "integers, floats of 32 and 64 bits, dates, times, durations, decimals of 128 and 256 bits, strings and binary"
)
_REDUCIBLE_TEXT: Mapping[Reduction, str] = {
    "sum": _SUMMED,
    "min": _COMPARED,
    "max": _COMPARED,
    "first": "all types except decimals of 32 and 64 bits",
    "last": "all types except decimals of 32 and 64 bits",
}

STATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_STATE_NAME_CHARACTERS = 100


def value_state(
    name: str,
    columns: Columns,
    *,
    ttl: str | timedelta | None = None,
    ttl_on_read: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> StateDescriptor:
    """Declare one row for each key; in the process `ctx.value(name)`.

    Args:
        name: unique within the process; snapshots find the state by it.
        columns: of the row, such as {"total": pa.int64()}; nullable unless the schema says otherwise.
        ttl: processing time after the last write at which an entry expires, such as "7 days"; None: never.
        ttl_on_read: a read extends the life of an entry, too.
        renamed: column in older snapshots -> its name now, so that they can be restored (S5.5).

    Raises:
        PipelineError: an invalid name, column or duration.
    """
    where = state_place("value_state", name)
    return _state(name, "value", state_schema(columns, "columns", where), where, ttl, ttl_on_read, renamed)


def list_state(
    name: str,
    columns: Columns,
    *,
    ttl: str | timedelta | None = None,
    ttl_on_read: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> StateDescriptor:
    """Declare a list of rows for each key; in the process `ctx.list(name)`. Rows expire separately. See
    `value_state`."""
    where = state_place("list_state", name)
    return _state(name, "list", state_schema(columns, "columns", where), where, ttl, ttl_on_read, renamed)


def map_state(
    name: str,
    key: Columns,
    columns: Columns,
    *,
    ttl: str | timedelta | None = None,
    ttl_on_read: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> StateDescriptor:
    """Declare a row for each key and map key; in the process `ctx.map(name)`. Entries expire separately. See
    `value_state`.

    Args:
        key: columns of the map key, of types that group_by accepts.
        columns: of the values.
    """
    where = state_place("map_state", name)
    map_key, kept = state_schema(key, "key", where), state_schema(columns, "columns", where)
    for field in map_key:
        if not is_key_type(field.type) or stored_type(field.type) != field.type:
            raise PipelineError(
                f"column {field.name!r} of type {field.type} cannot be part of a map key",
                where=where,
                remedy=f"Use {KEY_TYPES_TEXT}",
            )
    refuse_duplicates([*map_key.names, *kept.names], where, remedy="Use a different name for every column")
    return _state(name, "map", kept, where, ttl, ttl_on_read, renamed, map_key=map_key)


def reducing_state(
    name: str,
    reductions: Mapping[str, Reduction | tuple[Reduction, pa.DataType]],
    *,
    ttl: str | timedelta | None = None,
    ttl_on_read: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> StateDescriptor:
    """Declare columns that are reduced to one row for each key; in the process `ctx.merging(name)`. See `value_state`.

    Args:
        reductions: column -> "sum", "min", "max", "count", "first" or "last", as int64; or with another type:
            {"total": "sum", "latest": ("max", pa.timestamp("us"))}. Nulls are ignored. "sum" supports integers, floats
            and booleans. "min" and "max" support integers, floats, times, decimals, strings and binary.
    """
    where = state_place("reducing_state", name)
    if not isinstance(reductions, Mapping) or not reductions:
        raise PipelineError(
            f"the reductions of reducing_state must be a dict with at least one column, but are {reductions!r}",
            where=where,
            remedy='Pass them as in {"total": "sum"}',
        )
    fields: list[tuple[str, pa.DataType]] = []
    kinds: list[Reduction] = []
    for column, given in reductions.items():
        reduction, type_ = given if isinstance(given, tuple) else (given, pa.int64())
        if reduction not in get_args(Reduction):
            near = nearest(str(reduction), get_args(Reduction))
            raise PipelineError(
                f"the reduction {reduction!r} of column {column!r} is unknown"
                + (f", did you mean {near!r}?" if near else ""),
                where=where,
                remedy=f"Use one of {', '.join(get_args(Reduction))}",
            )
        fields.append((column, type_))
        kinds.append(reduction)
    schema = state_schema(fields, "reductions", where)
    for field, reduction in zip(schema, kinds, strict=True):
        if not _is_reducible(reduction, field.type):
            raise PipelineError(
                f"column {field.name!r} of type {field.type} does not support {reduction!r}",
                where=where,
                cause=f"{reduction} supports {_REDUCIBLE_TEXT[reduction]}",
                remedy=f"Declare {field.name!r} as one of these types and cast the added values, or use an "
                "aggregating_state with a merge function of your own",
            )
    return _state(name, "reducing", schema, where, ttl, ttl_on_read, renamed, reductions=tuple(kinds))


def aggregating_state(
    name: str,
    columns: Columns,
    merge: Merge,
    *,
    ttl: str | timedelta | None = None,
    ttl_on_read: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> StateDescriptor:
    """Declare an accumulator for each key that your own function merges; in the process `ctx.merging(name)`.

    See `value_state`.

    Args:
        columns: of an accumulator.
        merge: called with accumulators of several keys, a record batch, and offsets, int64: key i has the rows
            offsets[i] to offsets[i + 1], in order of arrival, at least one. It returns one row for each key. It must be
            associative and depend on its arguments only: the times of the calls are not guaranteed.
    """
    where = state_place("aggregating_state", name)
    if not callable(merge):
        raise PipelineError(
            f"merge must be a function of accumulators and offsets, but is a {type(merge).__name__}",
            where=where,
            remedy="Pass a function that returns a record batch with one row for each key",
        )
    return _state(
        name, "aggregating", state_schema(columns, "columns", where), where, ttl, ttl_on_read, renamed, merge=merge
    )


def checked_states(states: object, where: str) -> tuple[DeclaredState, ...]:
    """Return the states that a process declares. Raises PipelineError for other objects, or two states of one name."""
    made_by = "Create states with value_state(...), operator_list_state(...) and similar functions"
    if isinstance(states, DeclaredState) or not isinstance(states, Iterable):
        raise PipelineError(
            f"`states` of the process must be a list of states, but is a {type(states).__name__}",
            where=where,
            remedy=made_by,
        )
    known: list[DeclaredState] = []
    for state in states:
        if not isinstance(state, DeclaredState):
            raise PipelineError(
                f"`states` of the process must hold states only, but holds {state!r}", where=where, remedy=made_by
            )
        if any(state.name == other.name for other in known):
            raise PipelineError(
                f"the process has two states named {state.name!r}",
                where=where,
                cause="snapshots find a state by its name",
                remedy="Rename one of the two states",
            )
        known.append(state)
    return tuple(known)


def state_place(call: str, name: object) -> str:
    """Return the place of a state's declaration, for errors."""
    return f"{call} {name!r} at {user_location()}"


def _state(
    name: str,
    kind: KeyedKind,
    columns: pa.Schema,
    where: str,
    ttl: str | timedelta | None,
    ttl_on_read: bool,
    renamed: Mapping[str, str] | None,
    *,
    map_key: pa.Schema | None = None,
    reductions: tuple[Reduction, ...] = (),
    merge: Merge | None = None,
) -> StateDescriptor:
    require_state_name(name, where)
    lives = None
    if ttl is not None:
        duration_ms = duration_us(ttl, "ttl", where) // 1000
        if duration_ms < 1:
            raise PipelineError(f"ttl={ttl!r} is too short", where=where, remedy='Use at least "1 ms", or no ttl')
        lives = TimeToLive(duration_ms, ttl_on_read)
    elif ttl_on_read:
        raise PipelineError(
            "ttl_on_read is set, but there is no ttl", where=where, remedy="Pass a ttl, or remove ttl_on_read"
        )
    of_map = pa.schema([]) if map_key is None else map_key
    mapping = dict(checked_renames(renamed, [*of_map.names, *columns.names], where))
    return StateDescriptor(name, kind, columns, of_map, reductions, merge, lives, mapping)


def require_state_name(name: object, where: str) -> None:
    """Raise PipelineError if a name is not a valid name of a state in snapshots."""
    if not isinstance(name, str) or not STATE_NAME.fullmatch(name) or len(name) > MAX_STATE_NAME_CHARACTERS:
        raise PipelineError(
            f"{name!r} is not a valid name of a state",
            where=where,
            remedy="Use letters, digits and ._- , starting with a letter or digit, at most "
            f"{MAX_STATE_NAME_CHARACTERS} characters",
        )


def state_schema(columns: object, what: str, where: str) -> pa.Schema:
    """Return the columns of a state. Raises PipelineError if there are none, or a back end does not support a type."""
    try:
        schema = columns if isinstance(columns, pa.Schema) else pa.schema(columns)
    except (TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            f"{what} must be names and types of columns, but are {columns!r}",
            where=where,
            cause=str(error),
            remedy='Pass them as in {"total": pa.int64()}',
        ) from error
    if not len(schema):
        raise PipelineError(f"{what} must not be empty", where=where, remedy="Pass at least one column")
    refuse_duplicates(schema.names, where, remedy="Use a different name for every column")
    require_storable(schema, where)
    return schema.remove_metadata()


def require_storable(schema: pa.Schema, where: str) -> None:
    """Raise PipelineError, naming the column, if a column has a type that a back end does not support."""
    for field in schema:
        wrong = _unstorable(field.type)
        if wrong is not None:
            inside = "" if wrong == field.type else f", which contains {wrong},"
            raise PipelineError(
                f"column {field.name!r} of type {field.type}{inside} cannot be part of a state",
                where=where,
                remedy="Use numbers, booleans, times, decimals, strings, binary, or lists, maps and structs of these",
            )


def _unstorable(type_: pa.DataType) -> pa.DataType | None:
    """Return the type, or a type inside it, that a back end does not support; None: all are supported."""
    if pt.is_list(type_) or pt.is_large_list(type_):
        return _unstorable(type_.value_type)
    inner: list[pa.DataType] = []
    if pt.is_map(type_):
        inner = [type_.key_type, type_.item_type]
    elif pt.is_struct(type_):
        inner = [field.type for field in type_]
    if inner:
        return next((wrong for part in inner if (wrong := _unstorable(part)) is not None), None)
    if pt.is_fixed_size_binary(type_) and not type_.byte_width:
        return type_
    known = is_key_type(stored_type(type_)) or pt.is_interval(type_)
    return None if known and stored_type(type_) == type_ else type_


def _is_reducible(reduction: Reduction, type_: pa.DataType) -> bool:
    """Return whether a reduction supports columns of this type. Arrow changes the type of decimals of 32 and 64
    bits."""
    if reduction == "count":
        return True
    if reduction == "sum":
        return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_))
    narrow = pt.is_decimal32(type_) or pt.is_decimal64(type_)
    if reduction in ("first", "last") or narrow:
        return not narrow
    return is_key_type(type_) and not pt.is_boolean(type_) and not pt.is_float16(type_)
