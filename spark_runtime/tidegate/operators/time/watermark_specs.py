"""Frozen descriptions of event time columns and watermarks, as a JobGraph holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.operator_spec import EndOfInput, OperatorSpec

TimeUnit = Literal["s", "ms", "us", "ns"]
"""Unit of an event-time column."""


@dataclass(frozen=True)
class AlignmentGroup:
    """Sources that advance together: a source pauses while its watermark is too far ahead of the group's earliest.

    Attributes:
        name: of the group; the same in all its sources.
        max_drift_us: how far this source may be ahead, microseconds, > 0.
    """

    name: str
    max_drift_us: int


@dataclass(frozen=True)
class WatermarkSpec(OperatorSpec):
    """Assigns event time: watermark = minimum over the splits of the latest time seen, minus the delay (S4.4).

    Attributes:
        column: event time, a timestamp or an integer.
        delay_us: how far records may be out of order, microseconds, >= 0.
        unit: of the column.
        idle_after_ms: a split without rows for this time is ignored in the minimum; None: no split is.
        group: group of sources that advance together; None: the source never waits for others.
    """

    column: str
    delay_us: int
    unit: TimeUnit
    idle_after_ms: int | None = None
    group: AlignmentGroup | None = None

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "none": the operator emits no rows of its own."""
        return "none"

    def states(self) -> tuple[StateShape, ...]:
        """Return the progress of the splits."""
        return (StateShape("progress", "list"),)

    def describe(self) -> str:
        """Return column, delay, and idle timeout."""
        idle = "" if self.idle_after_ms is None else f", idle after {self.idle_after_ms / 1e3:g} s"
        return f"watermark {self.column} - {self.delay_us / 1e6:g} s{idle}"
