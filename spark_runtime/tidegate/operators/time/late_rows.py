"""Handles late rows and rows with unusable event times, and defines their counters."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.errors import DataError
from tidegate.operators.stream_operator import OperatorContext, Output, SideOutput
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.state.keys.stored_values import Int64s
from tidegate.state.value_kernels import extent

MIN_TIME_US, MAX_TIME_US = -(2**62), 2**62
"""Event times beyond these (about 146,000 years from 1970) are refused: window bounds must fit timestamp[us]."""
LATE = "late"
"""Side output: late rows, unchanged. All their windows have closed."""
LATE_DROPPED = "late_dropped"
"""Counter: late rows, if nothing reads the side output."""
NULL_TIME_DROPPED = "null_event_time_dropped"
"""Counter: rows without an event time; they belong to no window."""
PROCESSING_TIME_DROPPED = "processing_time_dropped"
"""Counter: results of windows that were open at the end of the input and did not fire, and rows that arrived after the
end (S7.6)."""


def check_time_range(time: EventTimeColumn, times: Int64s, ctx: OperatorContext) -> None:
    """Raise DataError for a time beyond `MIN_TIME_US`..`MAX_TIME_US`. Args: times: at least one, in the column's
    unit."""
    low, high = map(time.to_us, extent(times))
    if low < MIN_TIME_US or high > MAX_TIME_US:
        raise DataError(
            f"column {time.column!r} has an event time that is out of range: "
            f"{low if low < MIN_TIME_US else high} us since 1970",
            where=f"operator {ctx.uid!r} subtask {ctx.subtask}",
            cause="the column has another unit than declared, or the value is a placeholder for a missing time",
            remedy="Pass the right unit to with_watermark, or filter out such rows before it",
        )


def late_rows(rows: pa.RecordBatch, ctx: OperatorContext) -> Iterator[Output]:
    """Emit late rows to the side output if something reads it, else count them."""
    if LATE in ctx.side_outputs:
        yield SideOutput(LATE, rows)
    else:
        ctx.count(LATE_DROPPED, rows.num_rows)
