"""Frozen description of aggregates over tumbling and sliding windows, as a JobGraph holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate, aggregate_fields
from tidegate.operators.operator_spec import ChangeInputs, EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.operators.time.calendar import CALENDAR, Calendar
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.snapshot.partial_rows import partial_schema
from tidegate.snapshot.parts import KEY_GROUP_COLUMN

WINDOWS = "windows"
"""State of windows over event time."""
PROCESSING_WINDOWS = "processing_windows"
"""State of windows over processing time."""
PROGRESS = "progress"
"""State of windows and sessions: the time up to which they have fired."""


@dataclass(frozen=True)
class WindowAggSpec(OperatorSpec):
    """Aggregates per key over tumbling or sliding windows [start, end).

    Attributes:
        keys: key columns; null is a key of its own.
        time_column: event time, a timestamp or an integer; None: the windows are over processing time.
        time_unit: of the time column.
        size_us: length of a window, microseconds, > 0.
        offset_us: windows start at multiples of `step_us` plus this offset.
        aggregates: output columns after keys, `window_start` and `window_end`, in order.
        input_schema: of the input.
        schema: of the output: keys, window_start, window_end (timestamp[us]), aggregates.
        renamed: (key or output column in older snapshots, its name now).
        slide_us: from the start of one window to the next; 0: they are tumbling.
        calendar: defines the windows instead of `size_us`, `slide_us` and `offset_us`, which are 0.
        lateness_us: how long after its end, in event time, a window accepts rows and fires again.
        is_partial: the input rows were aggregated by `PartialWindowSpec`.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "columns"
    change_inputs: ClassVar[ChangeInputs] = "none"

    keys: tuple[str, ...]
    time_column: str | None
    time_unit: TimeUnit
    size_us: int
    offset_us: int
    aggregates: tuple[BoundAggregate, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    slide_us: int = 0
    lateness_us: int = 0
    calendar: Calendar | None = None
    is_partial: bool = False

    @property
    def state_schema(self) -> pa.Schema:
        """Return the columns of the state of event-time windows: a row for each pane and key."""
        bounds = [pa.field(KEY_GROUP_COLUMN, pa.uint16()), pa.field("window_start_us", pa.int64())]
        return pa.schema([*bounds, *aggregate_fields(self.keys, self.aggregates, self.input_schema, self.schema)])

    @property
    def partial_schema(self) -> pa.Schema:
        """Return the columns of partial rows: the state without the key group, and a number of rows."""
        return partial_schema(list(self.state_schema)[1:])

    @property
    def partial_keys(self) -> tuple[str, ...]:
        """Return the key columns of partial rows."""
        return tuple(f"key:{key}" for key in self.keys)

    @property
    def step_us(self) -> int:
        """Return the time from the start of one window to the next."""
        return self.slide_us or self.size_us

    @property
    def shape(self) -> dict[str, int | str]:
        """Return the properties that must be equal in a snapshot and the pipeline."""
        if self.calendar is not None:
            return {"calendar": str(self.calendar)}
        shape: dict[str, int | str] = {"size_us": self.size_us, "offset_us": self.offset_us}
        return {**shape, "slide_us": self.slide_us} if self.slide_us else shape

    def mode_dependence(self) -> str:
        """Return the reason: windows over processing time, or windows that may fire again."""
        if self.time_column is None:
            return "its windows are over processing time"
        return "its windows may fire again, for late records" if self.lateness_us else ""

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" if the end of the input fires open windows."""
        return "any" if self.time_column is not None or processing_time_on_end == "fire" else "none"

    def states(self) -> tuple[StateShape, ...]:
        """Return the open windows. No new column is filled: a new aggregate would lack the earlier rows."""
        form = f"size, offset in us of {self.size_us}, {self.offset_us}"
        calendar = (StateShape(CALENDAR, "list"),) if self.calendar is not None else ()
        if self.calendar is not None:
            form = f"windows of {self.calendar}"
        elif self.slide_us:
            form = f"size, offset, slide in us of {self.size_us}, {self.offset_us}, {self.slide_us}"
        columns, renamed = schema_columns(self.state_schema), dict(self.renamed)
        if self.time_column is None:
            ends = schema_columns(pa.schema([("window_end_us", pa.int64())]))
            processing = StateShape(PROCESSING_WINDOWS, "keyed", (*columns, *ends), form, renamed, fills=False)
            progress = (StateShape(PROGRESS, "keyed", form=form),) if self.slide_us or calendar else ()
            return (processing, *progress, *calendar)
        windows = StateShape(WINDOWS, "keyed", columns, form, renamed, fills=False)
        return (windows, StateShape(PROGRESS, "keyed", form=form), *calendar)

    def describe(self) -> str:
        """Keys, window and aggregates."""
        keys = ", ".join(self.keys) or "()"
        aggregates = ", ".join(map(str, self.aggregates))
        slide = f" every {self.slide_us / 1e6:g} s" if self.slide_us else ""
        window = f"{self.size_us / 1e6:g} s{slide}" if self.calendar is None else str(self.calendar)
        return f"window {window} of {self.time_column or 'processing time'} by {keys}: {aggregates}"


@dataclass(frozen=True)
class PartialWindowSpec(OperatorSpec):
    """Aggregates the rows of one subtask per key and pane, before they are sent to the subtasks of their keys.

    Only batch mode uses it: it emits when its memory is full, and at the end of the input.

    Attributes:
        window: the windows, over event time.
        uid: uid of the operator that merges the rows.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "columns"

    window: WindowAggSpec
    uid: str

    @property
    def part_of(self) -> str:
        """Return the uid of the operator that merges the rows."""
        return self.uid

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the output: the state of the windows without the key group."""
        return self.window.state_schema.remove(0)

    def states(self) -> tuple[StateShape, ...]:
        """Return no states: batch mode takes no snapshots of operators."""
        return ()

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any": the end of the input emits the rows in memory."""
        return "any"

    def describe(self) -> str:
        """Return the windows and aggregates."""
        return f"partial {self.window.describe()}"
