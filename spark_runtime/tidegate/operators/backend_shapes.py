"""What the built-in operators declare of their states (S5.5): for the documents of graphs, without loading the
operators and numba with them. A test holds each against what the operator writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import pyarrow as pa

from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.time.calendar import CALENDAR
from tidegate.operators.time.passed_watermarks import PASSED_STATE
from tidegate.snapshot.evolved_columns import columns_of
from tidegate.snapshot.parts import KEY_GROUP_COLUMN
from tidegate.state.evolved_parts import renamed_columns
from tidegate.state.keyed_state import StateDescriptor, TimerKind
from tidegate.state.keys.key_types import stored_type
from tidegate.state.state_layout import KEY_PREFIX, form_of, part_schema, timer_part, timer_schema

if TYPE_CHECKING:
    from tidegate.operators.aggregates.aggregate_specs import RunningAggSpec
    from tidegate.operators.deduplicate_specs import DeduplicateSpec
    from tidegate.operators.specs import BroadcastJoinSpec, KeyedProcessSpec, WindowAggSpec
    from tidegate.operators.windows.session_specs import SessionAggSpec


def watermark_shapes() -> tuple[StateShape, ...]:
    """Of `with_watermark`."""
    return (StateShape("progress", "list"),)


def join_shapes(spec: BroadcastJoinSpec) -> tuple[StateShape, ...]:
    """Of a broadcast join."""
    renamed = dict(spec.renamed)
    return (
        StateShape("build", "broadcast", columns_of(spec.right_schema), renamed=renamed),
        StateShape("buffered", "list", columns_of(spec.left_schema), renamed=renamed),
        StateShape("progress", "broadcast"),
        StateShape("held", "list"),
    )


def window_shapes(spec: WindowAggSpec) -> tuple[StateShape, ...]:
    """Of windows. A new aggregate of an open window would lack the rows that came before, so nothing is filled."""
    form = f"size, offset in us of {spec.size_us}, {spec.offset_us}"
    calendar = (StateShape(CALENDAR, "list"),) if spec.calendar is not None else ()
    if spec.calendar is not None:
        form = f"windows of {spec.calendar}"
    elif spec.slide_us:
        form = f"size, offset, slide in us of {spec.size_us}, {spec.offset_us}, {spec.slide_us}"
    columns = columns_of(window_schema(spec))
    renamed = dict(spec.renamed)
    if spec.time_column is None:
        ends = columns_of(pa.schema([("window_end_us", pa.int64())]))
        processing = StateShape("processing_windows", "keyed", (*columns, *ends), form, renamed, fills=False)
        progress = (StateShape("progress", "keyed", form=form),) if spec.slide_us or calendar else ()
        return (processing, *progress, *calendar)
    windows = StateShape("windows", "keyed", columns, form, renamed, fills=False)
    return (windows, StateShape("progress", "keyed", form=form), *calendar)


def session_shapes(spec: SessionAggSpec) -> tuple[StateShape, ...]:
    """Of sessions."""
    columns, form, renamed = columns_of(session_schema(spec)), f"gap in us of {spec.gap_us}", dict(spec.renamed)
    sessions = StateShape("sessions", "keyed", columns, form, renamed, fills=False)
    return (sessions, StateShape("progress", "keyed", form=form))


def session_schema(spec: SessionAggSpec) -> pa.Schema:
    """Columns of the state of sessions."""
    bounds = [("window_start_us", pa.int64()), ("last_us", pa.int64()), ("fired", pa.bool_())]
    return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.uint16()), *(pa.field(*bound) for bound in bounds), *_fields(spec)])


GROUPS = "groups"
"""State of aggregates without windows."""


def running_shapes(spec: RunningAggSpec) -> tuple[StateShape, ...]:
    """Of aggregates without windows."""
    columns, renamed = columns_of(group_schema(spec)), dict(spec.renamed)
    return (StateShape(GROUPS, "keyed", columns, renamed=renamed, fills=False),)


def group_schema(spec: RunningAggSpec) -> pa.Schema:
    """Columns of the state of aggregates without windows."""
    return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.uint16()), *_fields(spec)])


def process_shapes(spec: KeyedProcessSpec) -> tuple[StateShape, ...]:
    """Of a keyed process: its states, and its timers."""
    from tidegate.operators.processes.process_specs import subtask_shapes

    shapes = _back_end_shapes(spec.descriptors, spec.key_schema, spec.renamed, drops=True)
    return (*shapes, *subtask_shapes(spec.subtask_states))


def deduplicate_shapes(spec: DeduplicateSpec) -> tuple[StateShape, ...]:
    """Of a deduplication: the keys that were seen, and its timers."""
    return _back_end_shapes((spec.seen,), spec.key_schema, spec.renamed)


def _back_end_shapes(
    descriptors: Sequence[StateDescriptor], keys: pa.Schema, renames: Sequence[tuple[str, str]], *, drops: bool = False
) -> tuple[StateShape, ...]:
    of_keys = {KEY_PREFIX + old: KEY_PREFIX + new for old, new in renames}
    shapes = [StateShape(PASSED_STATE, "keyed")]
    for descriptor in descriptors:
        schema = part_schema(descriptor, keys)
        renamed = {**renamed_columns(descriptor), **of_keys}
        shapes.append(StateShape(descriptor.name, "keyed", columns_of(schema), form_of(schema), renamed, drops=drops))
    timers = timer_schema(keys)
    kinds = get_args(TimerKind)
    columns, form = columns_of(timers), form_of(timers)
    shapes += [StateShape(timer_part(kind), "keyed", columns, form, of_keys) for kind in kinds]
    return tuple(shapes)


def window_schema(spec: WindowAggSpec) -> pa.Schema:
    """Columns of the state of windows over event time."""
    fields = [pa.field(KEY_GROUP_COLUMN, pa.uint16()), pa.field("window_start_us", pa.int64())]
    return pa.schema([*fields, *_fields(spec)])


def _fields(spec: WindowAggSpec | SessionAggSpec | RunningAggSpec) -> list[pa.Field]:
    """Keys and aggregates."""
    fields = [pa.field(f"key:{key}", stored_type(spec.input_schema.field(key).type)) for key in spec.keys]
    for agg in spec.aggregates:
        fields += agg.bound(spec.input_schema, spec.schema.field(agg.name).type).state_schema()
    return fields
