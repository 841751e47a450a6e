"""Rows that come too late for an operator, or with a time that it cannot use, and the counters of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.errors import DataError
from tidegate.operators.stream_operator import OperatorContext, Output, SideOutput
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.state.keys.key_bytes import Int64s

MIN_TIME_US, MAX_TIME_US = -(2**62), 2**62
"""Event times beyond these (some 146,000 years from 1970) are refused: window bounds must fit timestamp[us]."""
LATE = "late"
"""Side output: rows of which every window has closed, as they came."""
LATE_DROPPED = "late_dropped"
"""Counter: such rows, where nothing reads the side output."""
NULL_TIME_DROPPED = "null_event_time_dropped"
"""Counter: rows without an event time, which belong to no window."""
PROCESSING_TIME_DROPPED = "processing_time_dropped"
"""Counter: results of windows that were open at the end of the input and did not fire, and rows that came after it
(S7.6)."""


def check_time_range(time: EventTimeColumn, times: Int64s, ctx: OperatorContext) -> None:
    """DataError for a time beyond `MIN_TIME_US`..`MAX_TIME_US`. `times`: at least one, in its column's unit."""
    low, high = time.to_us(int(times.min())), time.to_us(int(times.max()))
    if low < MIN_TIME_US or high > MAX_TIME_US:
        raise DataError(
            f"Column {time.column!r} has an event time of {low if low < MIN_TIME_US else high} us since 1970",
            where=f"operator {ctx.uid!r} subtask {ctx.subtask}",
            cause="the column's unit is not what the pipeline says, or the value is a placeholder",
            remedy="Give with_watermark the right unit, or filter such rows first",
        )


def late_rows(rows: pa.RecordBatch, ctx: OperatorContext) -> Iterator[Output]:
    """Rows that are late: to the side output where something reads it, else counted."""
    if LATE in ctx.side_outputs:
        yield SideOutput(LATE, rows)
    else:
        ctx.count(LATE_DROPPED, rows.num_rows)
