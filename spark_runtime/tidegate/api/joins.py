"""Checks the arguments of joins of two streams, and derives their result columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

import pyarrow as pa

from tidegate.api.draft.column_checks import checked_renames, refuse_duplicates, require_column, require_key
from tidegate.api.draft.expression_checks import require_boolean, require_expression
from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.api.states import require_storable
from tidegate.api.stream_base import BroadcastStream, StreamBase
from tidegate.api.windows import WINDOW_BOUND, WINDOW_END, WINDOW_START, Session, Sliding, Tumbling, signed_us
from tidegate.change_rows import only_role
from tidegate.errors import PipelineError
from tidegate.operators.joins.join_specs import (
    LEFT,
    RIGHT,
    SPAN_START,
    AsOfMatch,
    Bounds,
    BroadcastJoinSpec,
    IntervalMatch,
    JoinInput,
    JoinKind,
    SessionMatch,
    StreamJoinKind,
    StreamJoinSpec,
    WindowMatch,
)
from tidegate.snapshot.parts import OWNER_COLUMN
from tidegate.state.keys.key_types import stored_field

Keys = str | Sequence[str]
Duration = str | timedelta
SIDE_NAMES = ("left", "right")


@dataclass(frozen=True)
class JoinCall:
    """Arguments of `Stream.join`, unchecked."""

    how: object
    on: Keys | None
    left_on: Keys | None
    right_on: Keys | None
    between: object
    window: object
    ttl: object
    where: object
    suffix: object
    renamed: Mapping[str, str] | None


def stream_join(
    left: StreamBase, right: StreamBase, call: JoinCall, where: str
) -> tuple[StreamJoinSpec, StreamEventTime]:
    """Return the operator of a join and the event time of its result. Raises PipelineError for invalid arguments."""
    how = _kind(call.how, where)
    bounds = _bounds(call, where)
    keys = join_keys(left.schema, right.schema, call.on, call.left_on, call.right_on, where)
    if bounds is None:
        _require_ends(how, left.bounded, right.bounded, where)
    if isinstance(bounds, IntervalMatch | WindowMatch) and any(mine == SPAN_START for mine, _ in keys):
        raise PipelineError(
            f"the key column {SPAN_START!r} has a reserved name",
            where=where,
            cause="the state of the join has a key column of this name",
            remedy="Rename the column first: .select(...)",
        )
    inputs = _inputs((left, right), keys, call.suffix, bounds, where)
    pairs = _pair_schema(inputs, how, bounds, where)
    condition = None
    if call.where is not None:
        condition = require_expression(call.where, where)
        require_boolean(condition, pairs, where)
    names = [*left.schema.names, *(name for name in right.schema.names if name not in left.schema.names)]
    renamed = checked_renames(call.renamed, names, where)
    schema = pairs
    if how in ("semi", "anti"):
        added = [WINDOW_START, WINDOW_END] if isinstance(bounds, WindowMatch | SessionMatch) else []
        schema = pa.schema([pairs.field(name) for name in [*left.schema.names, *added]])
    spec = StreamJoinSpec(how, inputs, bounds, pairs, schema, condition, renamed)
    return spec, _event_time(spec, left._event_time, right._event_time, where)


def as_of_join(
    left: StreamBase, right: StreamBase, call: JoinCall, tolerance: object, where: str
) -> tuple[StreamJoinSpec, StreamEventTime]:
    """Return the same for an as-of join. Only keys, kind, suffix and renamed columns of `call` are used."""
    if call.how not in ("inner", "left"):
        raise PipelineError(
            f"join_as_of does not support how={call.how!r}",
            where=where,
            cause="an as-of join emits records of the left side only; versions without a record are not emitted",
            remedy='Use "inner" or "left"',
        )
    tolerance_us = None if tolerance is None else signed_us(tolerance, "tolerance", where)
    if tolerance_us is not None and tolerance_us < 0:
        raise PipelineError(
            f"tolerance={tolerance!r} is negative",
            where=where,
            remedy='Pass a tolerance such as "1 day"',
        )
    how, bounds = _kind(call.how, where), AsOfMatch(tolerance_us)
    keys = join_keys(left.schema, right.schema, call.on, call.left_on, call.right_on, where)
    inputs = _inputs((left, right), keys, call.suffix, bounds, where)
    schema = _pair_schema(inputs, how, bounds, where)
    names = [*left.schema.names, *(name for name in right.schema.names if name not in left.schema.names)]
    renamed = checked_renames(call.renamed, names, where)
    return StreamJoinSpec(how, inputs, bounds, schema, schema, None, renamed), left._event_time


def broadcast_join(left: pa.Schema, other: BroadcastStream, call: JoinCall, where: str) -> BroadcastJoinSpec:
    """Return the operator of a broadcast join. Raises PipelineError for invalid arguments."""
    how = _broadcast_kind(call, where)
    if not other.bounded:
        raise PipelineError(
            "the broadcast side of the join is unbounded",
            where=where,
            cause="the join emits nothing until the broadcast side has ended, but an unbounded side never ends",
            remedy="Read it with a bounded source, such as Files; or remove .broadcast() to join two streams",
        )
    if OWNER_COLUMN in left.names:
        raise PipelineError(
            f"the column {OWNER_COLUMN!r} has a reserved name",
            where=where,
            cause="the state of the join has a column of this name",
            remedy="Rename the column first: .select(...)",
        )
    keys = join_keys(left, other.schema, call.on, call.left_on, call.right_on, where)
    mine, theirs = (tuple(pair[side] for pair in keys) for side in (0, 1))
    alone = how in ("semi", "anti")
    names: tuple[tuple[str, str], ...] = ()
    if not alone or call.where is not None:
        names = output_names(left, other.schema, keys, call.suffix, where)
    added = [other.schema.field(column).with_name(name).remove_metadata() for column, name in names]
    own = [only_role(field) for field in left]
    pairs = pa.schema([*own, *(field.with_nullable(True) if how == "left" else field for field in added)])
    condition = None
    if call.where is not None:
        condition = require_expression(call.where, where)
        require_boolean(condition, pairs, where)
    known = [*left.names, *(name for name in other.schema.names if name not in left.names)]
    return BroadcastJoinSpec(
        mine,
        how,
        left,
        other.schema,
        pa.schema(own) if alone else pairs,
        checked_renames(call.renamed, known, where),
        theirs,
        names,
        condition,
    )


def _broadcast_kind(call: JoinCall, where: str) -> JoinKind:
    for name, value in {"between": call.between, "window": call.window, "ttl": call.ttl}.items():
        if value is not None:
            raise PipelineError(
                f"a broadcast join does not support {name}",
                where=where,
                cause="every record is joined with the complete broadcast side, at any time",
                remedy="Remove .broadcast() to join two streams",
            )
    for known in get_args(JoinKind):
        if call.how == known:
            kind: JoinKind = known
            return kind
    raise PipelineError(
        f"a broadcast join does not support how={call.how!r}",
        where=where,
        cause="a subtask does not know whether a row of the broadcast side has a match in another subtask"
        if call.how in ("right", "full")
        else "",
        remedy=f"Use one of {', '.join(get_args(JoinKind))}; or remove .broadcast() to join two streams",
    )


def join_keys(
    left: pa.Schema, right: pa.Schema, on: Keys | None, left_on: Keys | None, right_on: Keys | None, where: str
) -> tuple[tuple[str, str], ...]:
    """Return the (left, right) key columns, of comparable types. Raises PipelineError for invalid columns."""
    if (on is None) == (left_on is None) or (left_on is None) != (right_on is None):
        raise PipelineError(
            "the key columns of the join are missing or incomplete"
            if on is None
            else "the join has both on and left_on or right_on, but key columns must be named once",
            where=where,
            remedy='Pass on="carrier"; or, if the names differ on the two sides, left_on="carrier", right_on="code"',
        )
    mine, theirs = (_names(on), _names(on)) if on is not None else (_names(left_on), _names(right_on))
    if not mine and not theirs:
        raise PipelineError("the join has no key column", where=where, remedy='Name at least one: on="carrier"')
    if len(mine) != len(theirs):
        raise PipelineError(
            f"the join has {len(mine)} key columns of the left side, but {len(theirs)} of the right side",
            where=where,
            remedy='Name equally many columns of each side: left_on="carrier", right_on="code"',
        )
    for names in (mine, theirs):
        refuse_duplicates(names, where, remedy="Name each key column once")
    for one, other in zip(mine, theirs, strict=True):
        first = require_column(left, one, f"left side of {where}")
        second = require_column(right, other, f"right side of {where}")
        require_key(first, where)
        if stored_field(first).type != stored_field(second).type:
            raise PipelineError(
                f"key column {one!r} is {first.type} on the left, but {other!r} is {second.type} on the right",
                where=where,
                remedy=f"Cast one of the two columns first: .with_columns({one}=pc.field({one!r}).cast(...))",
            )
    return tuple(zip(mine, theirs, strict=True))


def output_names(
    left: pa.Schema, right: pa.Schema, keys: Sequence[tuple[str, str]], suffix: object, where: str
) -> tuple[tuple[str, str], ...]:
    """Return (column, its name in the result) of the right's columns, without keys that have the same name on the left.

    Raises:
        PipelineError: a name occurs on both sides, and there is no suffix or the suffix does not resolve it.
    """
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        raise PipelineError(
            f"suffix must be a string, but is {suffix!r}", where=where, remedy='Pass a string: suffix="_right"'
        )
    shared = {theirs for mine, theirs in keys if mine == theirs}
    columns = [name for name in right.names if name not in shared]
    clash = [name for name in columns if name in left.names]
    if clash and suffix is None:
        raise PipelineError(
            f"both sides of the join have a column {clash[0]!r}",
            where=where,
            remedy=f'Set a suffix for columns of the right side: suffix="_right" makes it {clash[0] + "_right"!r}; '
            f"or rename the column on one side: .select(..., other_name=pc.field({clash[0]!r}))",
        )
    names = tuple((name, f"{name}{suffix}" if name in clash else name) for name in columns)
    refuse_duplicates([*left.names, *(name for _, name in names)], where, remedy="Use another suffix")
    return names


def _names(keys: Keys | None) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys or ())


def _kind(how: object, where: str) -> StreamJoinKind:
    for known in get_args(StreamJoinKind):
        if how == known:
            kind: StreamJoinKind = known
            return kind
    words = {"outer": "full", "full_outer": "full", "left_outer": "left", "right_outer": "right"}
    words |= {"left_semi": "semi", "leftsemi": "semi", "left_anti": "anti", "leftanti": "anti"}
    near = words.get(str(how))
    raise PipelineError(
        f"join does not support how={how!r}" + (f", did you mean {near!r}?" if near else ""),
        where=where,
        remedy=f"Use one of {', '.join(get_args(StreamJoinKind))}",
    )


def _bounds(call: JoinCall, where: str) -> Bounds:
    given = {"between": call.between, "window": call.window, "ttl": call.ttl}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise PipelineError(
            f"a join supports one bound on times, but the call has {' and '.join(names)}",
            where=where,
            remedy="Pass only one of between, window and ttl",
        )
    if call.between is not None:
        return _between(call.between, where)
    if call.ttl is not None:
        ttl_us = signed_us(call.ttl, "ttl", where)
        if ttl_us < 0:
            raise PipelineError(f"ttl={call.ttl!r} is not positive", where=where, remedy='Pass a ttl such as "1 day"')
        return IntervalMatch(-ttl_us, ttl_us)
    return None if call.window is None else _windows(call.window, where)


def _between(between: object, where: str) -> IntervalMatch:
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise PipelineError(
            f"between must be a pair of durations, but is {between!r}",
            where=where,
            remedy='Pass how much earlier and later a row of the right side may be: between=("-5 min", "10 min")',
        )
    lower_us, upper_us = (signed_us(bound, "between", where) for bound in between)
    if lower_us > upper_us:
        raise PipelineError(
            f"between=({between[0]!r}, {between[1]!r}) contains no time, because its first bound is the later one",
            where=where,
            remedy=f"Put the earlier bound first: between=({between[1]!r}, {between[0]!r})",
        )
    return IntervalMatch(lower_us, upper_us)


def _windows(window: object, where: str) -> WindowMatch | SessionMatch:
    if not isinstance(window, Tumbling | Sliding | Session):
        raise PipelineError(
            f"window= must be a window, but is {window!r}",
            where=where,
            remedy=f"Write tumbling({window!r})"
            if isinstance(window, str)
            else 'Write tumbling("1 day"), sliding("1 day", "1 hour") or session("30 min")',
        )
    if window.time != "event":
        raise PipelineError(
            "a join supports windows over event time only",
            where=where,
            cause="the two streams have no common processing time",
            remedy="Remove time=, and call with_watermark on both sides",
        )
    if isinstance(window, Session):
        return SessionMatch(window.gap_us)
    slide_us = window.slide_us if isinstance(window, Sliding) else window.size_us
    calendar = window.calendar if isinstance(window, Tumbling) else None
    return WindowMatch(window.size_us, slide_us, window.offset_us, calendar)


def _require_ends(how: StreamJoinKind, left: bool, right: bool, where: str) -> None:
    """Check that a side ends if rows without a match wait for its end. That is so without bounds on times."""
    waits_for = {"left": (RIGHT,), "anti": (RIGHT,), "right": (LEFT,), "full": (LEFT, RIGHT)}.get(how, ())
    for side in waits_for:
        if not (left, right)[side]:
            raise PipelineError(
                f"a {how} join without bounds on times needs a bounded {SIDE_NAMES[side]} side",
                where=where,
                cause=f"a row without a match is emitted at the end of the {SIDE_NAMES[side]} side, which never comes",
                remedy='Set how long rows wait for a match in event time: ttl="1 day", between=("-5 min", "10 min") or '
                'window=tumbling("1 hour"); or use how="inner"',
            )


def _inputs(
    streams: tuple[StreamBase, StreamBase],
    keys: Sequence[tuple[str, str]],
    suffix: object,
    bounds: Bounds,
    where: str,
) -> tuple[JoinInput, JoinInput]:
    left, right = (pa.schema([stored_field(f).remove_metadata() for f in stream.schema]) for stream in streams)
    for schema in (left, right):
        require_storable(schema, where)
    given: list[JoinInput] = []
    columns = (tuple((name, name) for name in left.names), output_names(left, right, keys, suffix, where))
    for side, schema in enumerate((left, right)):
        time, column = streams[side]._event_time, None
        if bounds is not None:
            column = time.require(f"{SIDE_NAMES[side]} side of {where}", "the join")
        names = tuple(pair[side] for pair in keys)
        given.append(JoinInput(schema, names, columns[side], column, time.unit))
    return given[LEFT], given[RIGHT]


def _pair_schema(inputs: tuple[JoinInput, JoinInput], how: StreamJoinKind, bounds: Bounds, where: str) -> pa.Schema:
    fields: list[pa.Field] = []
    for side, given in enumerate(inputs):
        absent = how == "full" or how == ("right" if side == LEFT else "left")
        for column, name in given.columns:
            field = given.schema.field(column).with_name(name)
            fields.append(field.with_nullable(True) if absent else field)
    if isinstance(bounds, WindowMatch | SessionMatch):
        fields += [pa.field(WINDOW_START, WINDOW_BOUND), pa.field(WINDOW_END, WINDOW_BOUND)]
    refuse_duplicates([f.name for f in fields], where, remedy="Rename the column: the join adds the window's bounds")
    return pa.schema(fields)


def _event_time(spec: StreamJoinSpec, left: StreamEventTime, right: StreamEventTime, where: str) -> StreamEventTime:
    if spec.bounds is None:
        kept = left if left.column is not None or left.lost else right
        return kept.without_column(f"the {where} emits rows whenever their match arrives")
    if spec.how == "full":
        return left.without_column(f"the {where} emits rows in which either side may be missing")
    if spec.how != "right":
        return left
    column = spec.inputs[RIGHT].time_column
    names = dict(spec.inputs[RIGHT].columns)
    assert column is not None, "a join by time has no event time"
    return StreamEventTime(names.get(column, column), right.unit, right.assigned)
