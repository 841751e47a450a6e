"""Spans: how joins divide their rows by time. A span is a namespace of the keyed state (S5.1).

A span is read and deleted as a whole. All times are microseconds since the epoch, int64.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.operators.joins.join_specs import LEFT, RIGHT, IntervalMatch, StreamJoinSpec, WindowMatch
from tidegate.operators.windows.window_grid import window_grid
from tidegate.state.keys.key_bytes import Int64s

MIN_SPAN_US = 1_000_000
"""Shortest span: each span costs an entry of the state for every key."""
SPANS_PER_REACH = 4
"""Number of spans of an interval if rows without a match are emitted: each time such a row is due, its whole span is
read."""
TABLES_PER_REACH = 2
"""Number of tables in memory that an interval covers. With more, expired rows are deleted earlier, but a batch searches
more tables."""
TABLES_PER_WINDOW = 8
"""Most tables in memory that a sliding window covers."""

RowNumbers = npt.NDArray[np.int64]


class Spans(Protocol):
    """Divides time into spans, according to the bounds of a join.

    Attributes:
        stretch_us: how much time the tables of rows in memory cover.
    """

    stretch_us: int

    def assign(self, times: Int64s) -> tuple[RowNumbers | None, Int64s]:
        """Return row numbers and span starts: a row appears once for each of its spans. None: every row has one span,
        in order."""

    def probe_starts(self, side: int, times: Int64s) -> tuple[RowNumbers, Int64s] | None:
        """Return row numbers and starts of all spans in which the other side's rows may match. None: the spans of
        `assign`."""

    def match_bounds(self, side: int, times: Int64s) -> tuple[Int64s, Int64s] | None:
        """Return the first and last time of the other side that match each time; None: all in the same span."""

    def ends(self, side: int, starts: Int64s) -> Int64s:
        """Return the watermarks from which rows of this side in these spans can have no more match."""

    def due(self, side: int, starts: Int64s, times: Int64s) -> Int64s:
        """Return the same for each row; it is not later than for the row's span."""

    def late(self, starts: Int64s, times: Int64s, watermarks: Int64s) -> npt.NDArray[np.bool_]:
        """Return which rows are late at these watermarks."""

    def held_back_watermark(self, watermark_us: int) -> int:
        """Return the watermark to emit downstream: not later than the time of any row that may still be emitted."""


class IntervalSpans:
    """Spans of an interval join. A span is as long as the interval, so a row has its matches in two spans; or a part of
    it."""

    def __init__(self, bounds: IntervalMatch, spec: StreamJoinSpec) -> None:
        waits = spec.emits_unmatched(LEFT) or spec.emits_unmatched(RIGHT)
        length = bounds.upper_us - bounds.lower_us
        self.width_us = max(-(-length // (SPANS_PER_REACH if waits else 1)), MIN_SPAN_US)
        self.stretch_us = max(length // TABLES_PER_REACH, MIN_SPAN_US)
        self._reach = bounds.upper_us, -bounds.lower_us  # how much later than a row of each side its last match may be
        timed = {"right": (RIGHT,), "full": (LEFT, RIGHT)}.get(spec.how, (LEFT,))
        self._delay_us = max(0, *(self._reach[side] for side in timed))

    def assign(self, times: Int64s) -> tuple[RowNumbers | None, Int64s]:
        """See `Spans`."""
        return None, times // self.width_us * self.width_us

    def probe_starts(self, side: int, times: Int64s) -> tuple[RowNumbers, Int64s] | None:
        """See `Spans`."""
        low, high = self.match_bounds(side, times)
        first = low // self.width_us
        counts = high // self.width_us - first + 1
        rows = np.repeat(np.arange(len(times)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, (first[rows] + steps) * self.width_us

    def match_bounds(self, side: int, times: Int64s) -> tuple[Int64s, Int64s]:
        """See `Spans`."""
        return times - self._reach[1 - side], times + self._reach[side]

    def ends(self, side: int, starts: Int64s) -> Int64s:
        """See `Spans`."""
        # The last row of a span is at start + width - 1, and the watermark must be later than its last possible match.
        return starts + (self.width_us + self._reach[side])

    def due(self, side: int, starts: Int64s, times: Int64s) -> Int64s:
        """See `Spans`."""
        return times + (self._reach[side] + 1)

    def late(self, starts: Int64s, times: Int64s, watermarks: Int64s) -> npt.NDArray[np.bool_]:
        """See `Spans`: a row before the watermark is late (S4.4)."""
        return times < watermarks

    def held_back_watermark(self, watermark_us: int) -> int:
        """See `Spans`."""
        return max(watermark_us - self._delay_us, MIN_WATERMARK)


class WindowSpans:
    """Spans that are the windows themselves: a row is stored in each of its windows, and matches within it.

    Attributes:
        grid: the positions of the windows.
    """

    def __init__(self, bounds: WindowMatch) -> None:
        self._bounds = bounds
        self.grid = window_grid(bounds.size_us, bounds.slide_us, bounds.offset_us, bounds.calendar)
        # Windows of a calendar have a table each.
        self.stretch_us = 1 if bounds.calendar else max(bounds.slide_us, bounds.size_us // TABLES_PER_WINDOW)

    def assign(self, times: Int64s) -> tuple[RowNumbers | None, Int64s]:
        """See `Spans`. A row between two windows is in no span."""
        bounds = self._bounds
        if bounds.calendar is not None:
            return None, self.grid.panes(times)
        last = (times - bounds.offset_us) // bounds.slide_us
        if bounds.size_us == bounds.slide_us:
            return None, last * bounds.slide_us + bounds.offset_us
        first = (times - bounds.offset_us - bounds.size_us) // bounds.slide_us + 1
        counts = last - first + 1
        rows = np.repeat(np.arange(len(times)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, (first[rows] + steps) * bounds.slide_us + bounds.offset_us

    def probe_starts(self, side: int, times: Int64s) -> None:
        """See `Spans`."""

    def match_bounds(self, side: int, times: Int64s) -> None:
        """See `Spans`."""

    def ends(self, side: int, starts: Int64s) -> Int64s:
        """See `Spans`."""
        return self.grid.window_end(self.grid.windows_at(starts))

    def due(self, side: int, starts: Int64s, times: Int64s) -> Int64s:
        """See `Spans`."""
        return self.ends(side, starts)

    def late(self, starts: Int64s, times: Int64s, watermarks: Int64s) -> npt.NDArray[np.bool_]:
        """See `Spans`: a row of a closed window is late."""
        return self.ends(LEFT, starts) <= watermarks

    def held_back_watermark(self, watermark_us: int) -> int:
        """See `Spans`: the start of the first open window."""
        if watermark_us == MIN_WATERMARK or not self.grid.has(watermark_us):
            return watermark_us
        return max(self.grid.first_open(watermark_us), MIN_WATERMARK)


def new_spans(spec: StreamJoinSpec) -> Spans | None:
    """Return the spans of a join; None if it does not use times."""
    if isinstance(spec.bounds, IntervalMatch):
        return IntervalSpans(spec.bounds, spec)
    return WindowSpans(spec.bounds) if isinstance(spec.bounds, WindowMatch) else None
