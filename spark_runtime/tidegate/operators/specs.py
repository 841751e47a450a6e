"""Frozen descriptions of the built-in stream operators, as a JobGraph holds them.

Cheap to import and to make: the operator modules, and numba with them, are imported by `create`, in the slot. The
pipeline API validates columns, types and expressions before it makes a spec; a spec trusts what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.functions.context import SubtaskState
from tidegate.operators.functions.keyed_process import KeyedUserProcess
from tidegate.operators.functions.mode_dependence import why_batch_sensitive
from tidegate.operators.functions.process_inputs import INPUT_NAMES, ProcessInput, fires_at_end, inputs_text
from tidegate.operators.stream_operator import EndOfInput, SideOutput, StreamOperator
from tidegate.operators.time.calendar import Calendar
from tidegate.state.aggregates.aggregate_registry import find_aggregate
from tidegate.state.aggregates.aggregation import Aggregation, ArrowAggregate
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.keys.key_types import stored_field

TimeUnit = Literal["s", "ms", "us", "ns"]
JoinKind = Literal["inner", "left", "semi", "anti"]
BUILD = 1
"""Input of a broadcast join that brings the bounded side; 0 is the probe side."""
BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch | SideOutput]]
"""A user's `map_in_arrow` function: takes an iterator over one batch, gives any number of batches."""
SideSchemas = tuple[tuple[str, pa.Schema], ...]
"""(name, schema) of each side output."""


@dataclass(frozen=True, eq=False)
class FilterSpec:
    """Keeps the rows for which `expression` is true; null counts as false.

    Attributes:
        expression: boolean expression over the input's columns.
        schema: of input and output.
    """

    expression: pc.Expression
    schema: pa.Schema

    def create(self) -> StreamOperator:
        """A fresh filter."""
        from tidegate.operators.row_operators import FilterOperator

        return FilterOperator(self)

    def describe(self) -> str:
        """The expression."""
        return f"filter {self.expression}"


@dataclass(frozen=True, eq=False)
class ProjectSpec:
    """Computes every output column from an expression.

    Attributes:
        columns: (name, expression) of each output column, in order.
        schema: of the output; a result of another type is cast, safely.
    """

    columns: tuple[tuple[str, pc.Expression], ...]
    schema: pa.Schema

    def create(self) -> StreamOperator:
        """A fresh projection."""
        from tidegate.operators.row_operators import ProjectOperator

        return ProjectOperator(self)

    def describe(self) -> str:
        """Output columns, with their expressions where they are not the column itself."""
        texts = (name if str(expression) == name else f"{name}={expression}" for name, expression in self.columns)
        return f"project {', '.join(texts)}"


@dataclass(frozen=True)
class MapInArrowSpec:
    """Calls a user function once per delivered batch, afresh, and exhausts it before anything else happens.

    Attributes:
        function: the user's function.
        schema: of the batches it gives; anything else is an error naming the column.
        side_outputs: those it may give rows for.
    """

    function: BatchFunction
    schema: pa.Schema
    side_outputs: SideSchemas = ()

    def create(self) -> StreamOperator:
        """A fresh operator around the function."""
        from tidegate.operators.row_operators import MapInArrowOperator

        return MapInArrowOperator(self)

    def mode_dependence(self) -> str:
        """Only when the user says so."""
        return why_batch_sensitive(self.function)

    def describe(self) -> str:
        """The function's name."""
        return f"map_in_arrow {getattr(self.function, '__qualname__', type(self.function).__name__)}"


@dataclass(frozen=True)
class AlignmentGroup:
    """Sources that go on together: none is read while its watermark is further ahead of the least of the group.

    Attributes:
        name: of the group; the same in every source of it.
        max_drift_us: how far this source may be ahead, microseconds, > 0.
    """

    name: str
    max_drift_us: int


@dataclass(frozen=True)
class WatermarkSpec:
    """Assigns event time: watermark = minimum over the splits of the latest time seen, minus the delay (S4.4).

    Attributes:
        column: event time, a timestamp or an integer.
        delay_us: how much out of order records may come, microseconds, >= 0.
        unit: of the column.
        idle_after_ms: a split that has brought nothing for so long is left out of the minimum; None: none is.
        group: whose watermarks the source is not to leave behind; None: it is read as fast as can be.
    """

    column: str
    delay_us: int
    unit: TimeUnit
    idle_after_ms: int | None = None
    group: AlignmentGroup | None = None

    def create(self) -> StreamOperator:
        """A fresh watermark assigner."""
        if self.idle_after_ms is not None:
            from tidegate.operators.time.watermark import IdlingWatermarkOperator

            return IdlingWatermarkOperator(self)
        from tidegate.operators.time.watermark import WatermarkOperator

        return WatermarkOperator(self)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """It gives no rows of its own."""
        return "none"

    def states(self) -> tuple[StateShape, ...]:
        """How far the input is."""
        from tidegate.operators.backend_shapes import watermark_shapes

        return watermark_shapes()

    def describe(self) -> str:
        """Column, delay, and when a split is idle."""
        idle = "" if self.idle_after_ms is None else f", idle after {self.idle_after_ms / 1e3:g} s"
        return f"watermark {self.column} - {self.delay_us / 1e6:g} s{idle}"


@dataclass(frozen=True)
class UnionSpec:
    """Passes the batches of all inputs, which have one schema, in order of arrival."""

    def create(self) -> StreamOperator:
        """A fresh union."""
        from tidegate.operators.row_operators import UnionOperator

        return UnionOperator()

    def describe(self) -> str:
        """The word."""
        return "union"


@dataclass(frozen=True)
class Agg:
    """One aggregate of a window.

    Attributes:
        name: output column.
        function: its name in the registry.
        column: its input; None: count of rows.
        others: further inputs: of a user's aggregate, and what rows are ordered by.
        n: rows of top_n; of var and stddev what is taken off the divisor.
        orders: as many of `others`, at the end, are what rows are ordered by.
        user: of function "user".
    """

    name: str
    function: str
    column: str | None = None
    others: tuple[str, ...] = ()
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All inputs."""
        return (*(() if self.column is None else (self.column,)), *self.others)

    def bound(self, schema: pa.Schema, output: pa.DataType) -> Aggregation:
        """With the types that its inputs have in `schema`."""
        types = tuple(schema.field(column).type for column in self.columns)
        names, function = self.columns[: len(types) - self.orders], find_aggregate(self.function)
        return Aggregation(self.name, function, types, output, self.n, self.orders, self.user, names)

    def __str__(self) -> str:
        name = self.function if self.user is None else type(self.user).__name__
        return f"{self.name}={name}({', '.join(self.columns) or '*'})"


@dataclass(frozen=True)
class WindowAggSpec:
    """Aggregates per key over tumbling or sliding windows [start, end).

    Attributes:
        keys: key columns; null is a key of its own.
        time_column: event time, a timestamp or an integer; None: the windows are over processing time.
        time_unit: of the time column.
        size_us: length of a window, microseconds, > 0.
        offset_us: windows start at multiples of `step_us` plus this.
        aggregates: output columns after keys, `window_start` and `window_end`, in order.
        input_schema: of the input.
        schema: of the output: keys, window_start, window_end (timestamp[us]), aggregates.
        renamed: (key or output column in older snapshots, its name now).
        slide_us: from the start of one window to the next; 0: they are tumbling.
        calendar: what cuts the windows in the place of `size_us`, `slide_us` and `offset_us`, which are 0.
        lateness_us: how long after its end, in event time, a window takes rows and fires again.
    """

    keys: tuple[str, ...]
    time_column: str | None
    time_unit: TimeUnit
    size_us: int
    offset_us: int
    aggregates: tuple[Agg, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    slide_us: int = 0
    lateness_us: int = 0
    calendar: Calendar | None = None

    @property
    def step_us(self) -> int:
        """From the start of one window to the next."""
        return self.slide_us or self.size_us

    @property
    def shape(self) -> dict[str, int | str]:
        """What tells the windows from others, in snapshots."""
        if self.calendar is not None:
            return {"calendar": str(self.calendar)}
        shape: dict[str, int | str] = {"size_us": self.size_us, "offset_us": self.offset_us}
        return {**shape, "slide_us": self.slide_us} if self.slide_us else shape

    def mode_dependence(self) -> str:
        """Over processing time, or with updates."""
        if self.time_column is None:
            return "its windows are over processing time"
        return "its windows may fire again, for late records" if self.lateness_us else ""

    def create(self) -> StreamOperator:
        """A fresh window aggregation."""
        if self.time_column is None:
            from tidegate.operators.windows.processing_time_window import ProcessingWindowAggregate

            return ProcessingWindowAggregate(self)
        from tidegate.operators.windows.window_aggregate import WindowAggregate

        return WindowAggregate(self)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Open windows."""
        return "any" if self.time_column is not None or processing_time_on_end == "fire" else "none"

    def states(self) -> tuple[StateShape, ...]:
        """The open windows."""
        from tidegate.operators.backend_shapes import window_shapes

        return window_shapes(self)

    def describe(self) -> str:
        """Keys, window and aggregates."""
        keys = ", ".join(self.keys) or "()"
        aggregates = ", ".join(map(str, self.aggregates))
        slide = f" every {self.slide_us / 1e6:g} s" if self.slide_us else ""
        window = f"{self.size_us / 1e6:g} s{slide}" if self.calendar is None else str(self.calendar)
        return f"window {window} of {self.time_column or 'processing time'} by {keys}: {aggregates}"


@dataclass(frozen=True)
class BroadcastJoinSpec:
    """Equi-join of a stream (input 0, probe) with a complete bounded side (input 1, build) that every subtask holds.

    Attributes:
        on: key columns of the probe side; a null key matches nothing.
        how: `inner`; `left`: probe rows without a match stay, with nulls; `semi`, `anti`: probe rows alone, those that
            have a match, or have none.
        left_schema: of the probe side.
        right_schema: of the build side.
        schema: of the output: probe columns, then those of the build side that a pair has; not with `semi` and `anti`.
        renamed: (column of either side in older snapshots, its name now).
        right_on: key columns of the build side; None: those of the probe side.
        added: (build column, its name in a pair) of those that a pair has; None: all that are not keys.
        where: further condition, over the columns of a pair; null counts as false.
    """

    on: tuple[str, ...]
    how: JoinKind
    left_schema: pa.Schema
    right_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    right_on: tuple[str, ...] | None = None
    added: tuple[tuple[str, str], ...] | None = None
    where: pc.Expression | None = field(default=None, compare=False)

    @property
    def build_keys(self) -> tuple[str, ...]:
        """Key columns of the build side."""
        return self.on if self.right_on is None else self.right_on

    @property
    def build_columns(self) -> tuple[tuple[str, str], ...]:
        """(build column, its name) of those that a pair has."""
        if self.added is not None:
            return self.added
        return tuple((name, name) for name in self.right_schema.names if name not in self.build_keys)

    @property
    def pairs(self) -> pa.Schema:
        """Columns of a pair."""
        added = [self.right_schema.field(column).with_name(name) for column, name in self.build_columns]
        return pa.schema([*self.left_schema, *(field.with_nullable(True) for field in added)])

    def create(self) -> StreamOperator:
        """A fresh broadcast join."""
        from tidegate.operators.joins.broadcast_join import BroadcastJoin

        return BroadcastJoin(self)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Rows that have waited for the build side to be whole."""
        return BUILD

    def states(self) -> tuple[StateShape, ...]:
        """Both sides."""
        from tidegate.operators.backend_shapes import join_shapes

        return join_shapes(self)

    def describe(self) -> str:
        """Kind and keys."""
        pairs = zip(self.on, self.build_keys, strict=True)
        keys = ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)
        return f"{self.how} broadcast join on {keys}" + (f" where {self.where}" if self.where is not None else "")


@dataclass(frozen=True, eq=False)
class KeyedProcessSpec:
    """Runs a user's process with state and timers per key.

    Attributes:
        process: the user's; every subtask takes a copy of its own.
        keys: key columns; null is a key of its own.
        descriptors: of the states it declares, names unique.
        time_column: event time, a timestamp or an integer; None: the rows have none.
        time_unit: of the time column.
        input_schema: of the input.
        schema: of the batches it gives; anything else is an error naming the column.
        renamed: (key column in older snapshots, its name now).
        side_outputs: those it may give rows for.
        subtask_states: that belong to no key, names unique among all.
        second: the other input, of two; without keys it is broadcast.
        timeless_inputs: numbers of inputs that bring no time of their own: they hold the watermark back only until they
            end.
    """

    process: KeyedUserProcess
    keys: tuple[str, ...]
    descriptors: tuple[StateDescriptor, ...]
    time_column: str | None
    time_unit: TimeUnit
    input_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    side_outputs: SideSchemas = ()
    subtask_states: tuple[SubtaskState, ...] = ()
    second: ProcessInput | None = None
    timeless_inputs: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[ProcessInput, ...]:
        """One or two."""
        name = INPUT_NAMES[None if self.second is None else self.second.name]
        first = ProcessInput(name, self.input_schema, self.keys, self.time_column, self.time_unit)
        return (first,) if self.second is None else (first, self.second)

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns, as states have them."""
        return pa.schema([stored_field(self.input_schema.field(key)) for key in self.keys])

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """What the user's class says at the end, and its timers."""
        return "any" if fires_at_end(self.process) else "none"

    def mode_dependence(self) -> str:
        """By TTL, or when the user says so."""
        ageing = [descriptor.name for descriptor in self.descriptors if descriptor.ttl is not None]
        if ageing:
            return f"its state {', '.join(ageing)} expires by processing time"
        return why_batch_sensitive(type(self.process))

    def create(self) -> StreamOperator:
        """A fresh operator around a copy of the process."""
        from tidegate.operators.processes.keyed_process_operator import KeyedProcessOperator

        return KeyedProcessOperator(self)

    def states(self) -> tuple[StateShape, ...]:
        """What the process declares, and its timers."""
        from tidegate.operators.backend_shapes import process_shapes

        return process_shapes(self)

    def describe(self) -> str:
        """The process's class, keys and states."""
        declared = (*self.descriptors, *self.subtask_states)
        states = ", ".join(f"{state.name} ({state.kind})" for state in declared) or "no states"
        return f"process {type(self.process).__qualname__}{inputs_text(self.inputs)}: {states}"
