"""Event times of the rows of a join, in microseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.errors import DataError
from tidegate.operators.joins.join_specs import JoinInput
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.late_rows import MAX_TIME_US, MIN_TIME_US
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s, valid_mask
from tidegate.state.keys.stored_values import fixed_values
from tidegate.state.value_kernels import extent


class JoinTimes:
    """Reads the event time of one side."""

    def __init__(self, given: JoinInput) -> None:
        assert given.time_column is not None, "a side of a join by time has no event time"
        self._time = EventTimeColumn(given.time_column, given.time_unit)

    def of(self, rows: pa.RecordBatch) -> Int64s:
        """Return the times of rows that all have one."""
        return self._time.as_us(fixed_values(rows.column(self._time.column)))

    def read(self, rows: pa.RecordBatch, where: str) -> tuple[Int64s, Mask | None]:
        """Return the times, 0 for null, and a mask of the nulls; None: there are no nulls.

        Raises:
            DataError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
        """
        array = rows.column(self._time.column)
        times = self._time.as_us(fixed_values(array))
        timeless = ~valid_mask(array) if array.null_count else None
        if timeless is not None:
            times = np.where(timeless, 0, times)
        first_us, last_us = extent(times) if len(times) else (0, 0)
        if first_us < MIN_TIME_US or last_us > MAX_TIME_US:
            wrong = times[np.argmax((times < MIN_TIME_US) | (times > MAX_TIME_US))]
            raise DataError(
                f"column {self._time.column!r} has an event time that is out of range: {wrong} us since 1970",
                where=where,
                cause="the column has another unit than declared, or the value is a placeholder for a missing time",
                remedy="Pass the right unit to with_watermark, or filter out such rows before it",
            )
        return times, timeless
