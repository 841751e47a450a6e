"""Where joins keep rows by time: spans, which are a namespace of the keyed state (S5.1).

A span is read as a whole and goes as a whole. All times are microseconds since the epoch, int64.
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
"""Spans are not shorter: each costs an entry of the state for every key."""
SPANS_PER_REACH = 4
"""An interval is cut into so many spans where rows come out alone: whenever one of them is due its span is read."""

RowNumbers = npt.NDArray[np.int64]


class Spans(Protocol):
    """How the bounds of a join cut time."""

    def assign(self, times: Int64s) -> tuple[RowNumbers | None, Int64s]:
        """Row numbers and span starts: a row comes once for each span it is in. None: each row is in one, in order."""

    def probe_starts(self, side: int, times: Int64s) -> tuple[RowNumbers, Int64s] | None:
        """Row numbers and starts of all spans in which rows of the other side may match. None: those of `spread`."""

    def match_bounds(self, side: int, times: Int64s) -> tuple[Int64s, Int64s] | None:
        """First and last time of the other side that match each time; None: all in the same span."""

    def ends(self, side: int, starts: Int64s) -> Int64s:
        """The watermarks that make rows of this side in spans useless: no match can come any more."""

    def due(self, side: int, starts: Int64s, times: Int64s) -> Int64s:
        """The same for each row, not later than its span."""

    def late(self, starts: Int64s, times: Int64s, watermarks: Int64s) -> npt.NDArray[np.bool_]:
        """Which rows are late at these watermarks."""

    def held_back_watermark(self, watermark_us: int) -> int:
        """The watermark to tell downstream: not past the time of a row that is still to come out."""


class IntervalSpans:
    """Spans of an interval: as long as it is, so that a row has its matches in two of them; or a part of that."""

    def __init__(self, bounds: IntervalMatch, spec: StreamJoinSpec) -> None:
        waits = spec.emits_unmatched(LEFT) or spec.emits_unmatched(RIGHT)
        length = bounds.upper_us - bounds.lower_us
        self.width_us = max(-(-length // (SPANS_PER_REACH if waits else 1)), MIN_SPAN_US)
        self._reach = bounds.upper_us, -bounds.lower_us  # how much later than a row of a side its last match may be
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
        return starts + (self.width_us + self._reach[side])

    def due(self, side: int, starts: Int64s, times: Int64s) -> Int64s:
        """See `Spans`."""
        return times + (self._reach[side] + 1)

    def late(self, starts: Int64s, times: Int64s, watermarks: Int64s) -> npt.NDArray[np.bool_]:
        """See `Spans`: a row behind the watermark (S4.4)."""
        return times < watermarks

    def held_back_watermark(self, watermark_us: int) -> int:
        """See `Spans`."""
        return max(watermark_us - self._delay_us, MIN_WATERMARK)


class WindowSpans:
    """Spans that are the windows themselves: rows are in each of theirs, and match within it.

    Attributes:
        grid: where the windows lie.
    """

    def __init__(self, bounds: WindowMatch) -> None:
        self._bounds = bounds
        self.grid = window_grid(bounds.size_us, bounds.slide_us, bounds.offset_us, bounds.calendar)

    def assign(self, times: Int64s) -> tuple[RowNumbers | None, Int64s]:
        """See `Spans`. A row that falls between two windows is left out."""
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
        """See `Spans`: a row of a window that is over."""
        return self.ends(LEFT, starts) <= watermarks

    def held_back_watermark(self, watermark_us: int) -> int:
        """See `Spans`: the start of the first window that is not over."""
        if watermark_us == MIN_WATERMARK or not self.grid.has(watermark_us):
            return watermark_us
        return max(self.grid.first_open(watermark_us), MIN_WATERMARK)


def new_spans(spec: StreamJoinSpec) -> Spans | None:
    """The spans of a join; None where times do not count."""
    if isinstance(spec.bounds, IntervalMatch):
        return IntervalSpans(spec.bounds, spec)
    return WindowSpans(spec.bounds) if isinstance(spec.bounds, WindowMatch) else None
