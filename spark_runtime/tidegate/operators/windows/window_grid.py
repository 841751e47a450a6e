"""Positions of windows on the time axis: numbers of windows and panes, and their bounds.

A pane is the longest slice of time such that every window is a whole number of panes. If windows do not overlap, panes
are the windows, and a window and its only pane have the same number. All times are microseconds since the epoch, int64.
"""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

import numpy as np

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.time.calendar import (
    MAX_TIME_US,
    MIN_TIME_US,
    Calendar,
    CalendarTable,
    check_calendar_range,
)
from tidegate.snapshot.parts import StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s

Number = TypeVar("Number", int, Int64s)
"""One number, or the numbers of many rows."""
OUTSIDE_DROPPED = "outside_windows_dropped"
"""Counter: rows in a gap between two windows."""


class WindowGrid(Protocol):
    """Positions of windows and panes.

    Attributes:
        panes_per_window: number of panes in a window.
        panes_per_step: number of panes from the start of one window to the next.
        table: table of calendar windows; None: the grid never changes.
    """

    panes_per_window: int
    panes_per_step: int
    table: CalendarTable | None

    def panes(self, times_us: Int64s) -> Int64s:
        """Return the pane of each time."""

    def outside(self, times_us: Int64s) -> Mask | None:
        """Return which times are in no window; None: every time is in a window."""

    def pane_start(self, panes: Number) -> Number:
        """Return the first time of panes."""

    def window_start(self, windows: Number) -> Number:
        """Return the first time of windows."""

    def window_end(self, windows: Number) -> Number:
        """Return the first time after windows."""

    def windows_at(self, starts_us: Int64s) -> Int64s:
        """Return the windows with these starts."""

    def windows_of(self, pane: int, after_us: int, until_us: int = MAX_WATERMARK) -> range:
        """Return the windows that contain a pane and end in after_us < end <= until_us."""

    def first_after(self, panes: Int64s, after_us: Int64s) -> Int64s:
        """Return for each pane the first of its windows that ends after `after_us`.

        If all of them end before, the result is a window after them.
        """

    def first_open(self, watermark_us: int) -> int:
        """Return the start of the first window that ends after `watermark_us`."""

    def has(self, time_us: int) -> bool:
        """Return whether a window can contain this time."""

    def require_times(self, column: str, low_us: int, high_us: int, where: str) -> None:
        """Raise DataError if times of a column have no window."""


class FixedGrid:
    """Windows of one length in microseconds; see `WindowGrid`."""

    table: CalendarTable | None = None

    def __init__(self, size_us: int, step_us: int, offset_us: int) -> None:
        """Args: step_us: from the start of one window to the next. offset_us: windows start at multiples of `step_us`
        plus this."""
        self.size_us, self.step_us, self.offset_us = size_us, step_us, offset_us
        self.pane_us = step_us if step_us >= size_us else math.gcd(size_us, step_us)
        self.panes_per_window = max(size_us // self.pane_us, 1)
        self.panes_per_step = step_us // self.pane_us

    def panes(self, times_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        return (times_us - self.offset_us) // self.pane_us

    def outside(self, times_us: Int64s) -> Mask | None:
        """See `WindowGrid`."""
        if self.step_us <= self.size_us:
            return None
        outside: Mask = (times_us - self.offset_us) % self.step_us >= self.size_us
        return outside

    def pane_start(self, panes: Number) -> Number:
        """See `WindowGrid`."""
        return panes * self.pane_us + self.offset_us

    def window_start(self, windows: Number) -> Number:
        """See `WindowGrid`."""
        return windows * self.step_us + self.offset_us

    def window_end(self, windows: Number) -> Number:
        """See `WindowGrid`."""
        return self.window_start(windows) + self.size_us

    def windows_at(self, starts_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        return (starts_us - self.offset_us) // self.step_us

    def windows_of(self, pane: int, after_us: int, until_us: int = MAX_WATERMARK) -> range:
        """See `WindowGrid`."""
        # The negated floor division rounds up.
        first = -((self.panes_per_window - 1 - pane) // self.panes_per_step)
        after, until = ((us - self.size_us - self.offset_us) // self.step_us for us in (after_us, until_us))
        return range(max(first, after + 1), min(pane // self.panes_per_step, until) + 1)

    def first_after(self, panes: Int64s, after_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        first = -((self.panes_per_window - 1 - panes) // self.panes_per_step)
        passed: Int64s = np.maximum(first, self.windows_at(after_us - self.size_us) + 1)
        return passed

    def first_open(self, watermark_us: int) -> int:
        """See `WindowGrid`."""
        before = (watermark_us - self.size_us - self.offset_us) // self.step_us
        return (before + 1) * self.step_us + self.offset_us

    def has(self, time_us: int) -> bool:
        """See `WindowGrid`."""
        return True

    def require_times(self, column: str, low_us: int, high_us: int, where: str) -> None:
        """Do nothing: all times have windows."""


class CalendarGrid:
    """Calendar windows. The number of a window is its start; see `WindowGrid`."""

    panes_per_window: int = 1
    panes_per_step: int = 1

    def __init__(self, calendar: Calendar) -> None:
        self._table = CalendarTable(calendar)
        self.table: CalendarTable | None = self._table

    def panes(self, times_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        return self._table.starts(times_us)

    def outside(self, times_us: Int64s) -> Mask | None:
        """Return None: calendar windows have no gaps."""
        return None

    def pane_start(self, panes: Number) -> Number:
        """See `WindowGrid`."""
        return panes

    def window_start(self, windows: Number) -> Number:
        """See `WindowGrid`."""
        return windows

    def window_end(self, windows: Number) -> Number:
        """See `WindowGrid`."""
        ends = self._table.ends(np.atleast_1d(windows))
        return ends if isinstance(windows, np.ndarray) else int(ends[0])

    def windows_at(self, starts_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        return starts_us

    def windows_of(self, pane: int, after_us: int, until_us: int = MAX_WATERMARK) -> range:
        """See `WindowGrid`."""
        return range(pane, pane + (after_us < self.window_end(pane) <= until_us))

    def first_after(self, panes: Int64s, after_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        ends = self.window_end(panes)
        return np.where(ends > after_us, panes, ends)

    def first_open(self, watermark_us: int) -> int:
        """See `WindowGrid`."""
        return int(self._table.starts(np.array([watermark_us]))[0])

    def has(self, time_us: int) -> bool:
        """See `WindowGrid`."""
        return MIN_TIME_US <= time_us <= MAX_TIME_US

    def require_times(self, column: str, low_us: int, high_us: int, where: str) -> None:
        """See `WindowGrid`."""
        check_calendar_range(column, low_us, high_us, where)


def window_grid(size_us: int, step_us: int, offset_us: int, calendar: Calendar | None) -> WindowGrid:
    """Create a grid. Args: calendar: of calendar windows; None: use the durations."""
    return FixedGrid(size_us, step_us, offset_us) if calendar is None else CalendarGrid(calendar)


def calendar_part(grid: WindowGrid, closed_us: int) -> list[StatePart]:
    """Return the state of calendar windows, because the rules of a time zone may change; empty for other windows.

    Args:
        closed_us: windows that end by this time are closed.
    """
    return [] if grid.table is None else [grid.table.part(closed_us)]
