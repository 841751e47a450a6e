"""Frozen description of session windows, as a JobGraph holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate, aggregate_fields
from tidegate.operators.operator_spec import ChangeInputs, EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.operators.windows.window_specs import PROGRESS
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.snapshot.parts import KEY_GROUP_COLUMN

SESSIONS = "sessions"
"""State of sessions."""
_BOUNDS = (("window_start_us", pa.int64()), ("last_us", pa.int64()), ("fired", pa.bool_()))


@dataclass(frozen=True)
class SessionAggSpec(OperatorSpec):
    """Aggregates per key over sessions: rows at most a gap apart.

    Attributes:
        keys: key columns; null is a key of its own.
        time_column: event time, a timestamp or an integer; None: the sessions are over processing time.
        time_unit: of the time column.
        gap_us: the most time between consecutive rows of one session; microseconds, > 0.
        aggregates: output columns after keys, `window_start` and `window_end`, in order.
        input_schema: of the input.
        schema: of the output: keys, window_start, window_end (timestamp[us]), aggregates.
        renamed: (key or output column in older snapshots, its name now).
        lateness_us: how long after its end, in event time, a session accepts rows and fires again.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "columns"
    change_inputs: ClassVar[ChangeInputs] = "none"

    keys: tuple[str, ...]
    time_column: str | None
    time_unit: TimeUnit
    gap_us: int
    aggregates: tuple[BoundAggregate, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    lateness_us: int = 0

    @property
    def state_schema(self) -> pa.Schema:
        """Return the columns of the state: a row for each session."""
        bounds = [pa.field(KEY_GROUP_COLUMN, pa.uint16()), *(pa.field(*bound) for bound in _BOUNDS)]
        return pa.schema([*bounds, *aggregate_fields(self.keys, self.aggregates, self.input_schema, self.schema)])

    @property
    def reach_us(self) -> int:
        """Return how long after its last row a session closes: a row at exactly `gap_us` still belongs to it.

        Only a later watermark excludes such a row (S4.4). With this rule results do not depend on the moments at which
        watermarks arrive (S8.2).
        """
        return self.gap_us + 1

    @property
    def shape(self) -> dict[str, int | str]:
        """Return the properties that must be equal in a snapshot and the pipeline."""
        return {"gap_us": self.gap_us}

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" if the end of the input fires open sessions."""
        return "any" if self.time_column is not None or processing_time_on_end == "fire" else "none"

    def mode_dependence(self) -> str:
        """Return the reason: sessions over processing time, or sessions that may fire again."""
        if self.time_column is None:
            return "its windows are over processing time"
        return "its windows may fire again, for late records" if self.lateness_us else ""

    def states(self) -> tuple[StateShape, ...]:
        """Return the open sessions and their progress."""
        form = f"gap in us of {self.gap_us}"
        columns = schema_columns(self.state_schema)
        sessions = StateShape(SESSIONS, "keyed", columns, form, dict(self.renamed), fills=False)
        return (sessions, StateShape(PROGRESS, "keyed", form=form))

    def describe(self) -> str:
        """Return keys, gap and aggregates."""
        time = self.time_column or "processing time"
        aggregates = ", ".join(map(str, self.aggregates))
        return f"sessions of {time}, gap {self.gap_us / 1e6:g} s, by {', '.join(self.keys) or '()'}: {aggregates}"
