"""Where windows lie on the axis of time: numbers of windows and panes, and their bounds.

Panes are the longest slices that every window is made of a whole number of; where windows do not overlap the windows
themselves, and then a window and its only pane have one number. All times are microseconds since the epoch, int64.
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
"""One, or those of many rows."""
OUTSIDE_DROPPED = "outside_windows_dropped"
"""Counter: rows that fall between two windows, where one starts later than the one before ends."""


class WindowGrid(Protocol):
    """Attributes:
    panes_per_window: panes that a window is made of.
    panes_per_step: panes from the start of one window to the next.
    table: of calendar windows; None: the grid is the same for ever.
    """

    panes_per_window: int
    panes_per_step: int
    table: CalendarTable | None

    def panes(self, times_us: Int64s) -> Int64s:
        """The pane of each time."""

    def outside(self, times_us: Int64s) -> Mask | None:
        """Which times are in no window; None: the grid leaves nothing out."""

    def pane_start(self, panes: Number) -> Number:
        """First time of panes."""

    def window_start(self, windows: Number) -> Number:
        """First time of windows."""

    def window_end(self, windows: Number) -> Number:
        """First time after windows."""

    def windows_at(self, starts_us: Int64s) -> Int64s:
        """The windows with these starts."""

    def windows_of(self, pane: int, after_us: int, until_us: int = MAX_WATERMARK) -> range:
        """Windows that a pane is in and that end in after_us < end <= until_us."""

    def first_after(self, panes: Int64s, after_us: Int64s) -> Int64s:
        """The first window that a pane is in, or would be in, and that ends after `after_us`; later than every window
        of the pane when they all end before."""

    def first_open(self, watermark_us: int) -> int:
        """Start of the first window that ends after `watermark_us`."""

    def has(self, time_us: int) -> bool:
        """Windows can be around a time."""

    def require_times(self, column: str, low_us: int, high_us: int, where: str) -> None:
        """TidegateError for times of a column that have no window."""


class FixedGrid:
    """Windows of one length in microseconds; see `WindowGrid`."""

    table: CalendarTable | None = None

    def __init__(self, size_us: int, step_us: int, offset_us: int) -> None:
        """Args: step_us: from the start of one window to the next. offset_us: windows start at multiples of it plus
        this."""
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
        """Nothing: all have."""


class CalendarGrid:
    """Calendar windows, each with its start for a number; see `WindowGrid`."""

    panes_per_window: int = 1
    panes_per_step: int = 1

    def __init__(self, calendar: Calendar) -> None:
        self._table = CalendarTable(calendar)
        self.table: CalendarTable | None = self._table

    def panes(self, times_us: Int64s) -> Int64s:
        """See `WindowGrid`."""
        return self._table.starts(times_us)

    def outside(self, times_us: Int64s) -> Mask | None:
        """Nothing: they follow one another."""
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
    """A grid of its own. Args: calendar: what cuts the windows; None: the durations do."""
    return FixedGrid(size_us, step_us, offset_us) if calendar is None else CalendarGrid(calendar)


def calendar_part(grid: WindowGrid, closed_us: int) -> list[StatePart]:
    """What a snapshot keeps of a grid that may change with the rules of a time zone. Args: closed_us: windows that end
    by it are closed."""
    return [] if grid.table is None else [grid.table.part(closed_us)]
