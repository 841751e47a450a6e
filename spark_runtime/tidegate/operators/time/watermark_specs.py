"""Frozen descriptions of where event time comes from, as a JobGraph holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.operator_spec import EndOfInput, OperatorSpec

TimeUnit = Literal["s", "ms", "us", "ns"]
"""Of one step of an event-time column."""


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
class WatermarkSpec(OperatorSpec):
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

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """It gives no rows of its own."""
        return "none"

    def states(self) -> tuple[StateShape, ...]:
        """How far the input is."""
        return (StateShape("progress", "list"),)

    def describe(self) -> str:
        """Column, delay, and when a split is idle."""
        idle = "" if self.idle_after_ms is None else f", idle after {self.idle_after_ms / 1e3:g} s"
        return f"watermark {self.column} - {self.delay_us / 1e6:g} s{idle}"
