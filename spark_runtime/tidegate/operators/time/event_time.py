"""Event time of a batch: a timestamp or integer column as int64 in its own unit, and conversions to microseconds."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.state.keys.stored_values import Int64s, fixed_values, valid_mask

_PER_SECOND: dict[str, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class EventTimeColumn:
    """Converts the event times of one column.

    Attributes:
        column: a timestamp or integer column.
        unit: of one step of the column.
    """

    column: str
    unit: TimeUnit

    @property
    def per_second(self) -> int:
        """Return the steps of the column in a second."""
        return _PER_SECOND[self.unit]

    def times(self, batch: pa.RecordBatch) -> tuple[Int64s, int]:
        """Return the times of rows that have one, in the column's unit, and the number of rows without a time."""
        array = batch.column(self.column)
        times = fixed_values(array)
        return (times[valid_mask(array)] if array.null_count else times), array.null_count

    def to_us(self, time: int) -> int:
        """Convert a time to microseconds since the epoch, rounded down."""
        return time * _MICROSECONDS // self.per_second

    def as_us(self, times: Int64s) -> Int64s:
        """Convert times to microseconds since the epoch, rounded down."""
        if self.per_second == _MICROSECONDS:
            return times
        more, fewer = _MICROSECONDS // self.per_second, self.per_second // _MICROSECONDS
        return times * more if more else times // fewer

    def microseconds(self, batch: pa.RecordBatch) -> pa.Int64Array:
        """Return the times of all rows in microseconds since the epoch, rounded down; null stays null."""
        array = batch.column(self.column)
        times = self.as_us(fixed_values(array))
        return pa.array(times, pa.int64(), mask=~valid_mask(array) if array.null_count else None)
