"""Groups rows of event-time windows by pane."""

from __future__ import annotations

from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.windows.row_groups import WindowRuns, group_by_number, group_by_window
from tidegate.operators.windows.window_grid import FixedGrid, WindowGrid
from tidegate.state.keys.key_bytes import Int64s


class PaneGroups:
    """Groups rows by the number of their pane.

    The times are in the column's unit if the grid is whole steps of it, else in microseconds. The column's unit saves a
    conversion, since most rows are in the same window as the row before.

    Attributes:
        whole_steps: the times are in the column's unit.
    """

    def __init__(self, time: EventTimeColumn, grid: WindowGrid) -> None:
        self._grid = grid
        self.whole_steps, self._pane, self._offset = False, 0, 0
        if isinstance(grid, FixedGrid):
            self._pane, self._offset = grid.pane_us, grid.offset_us
            steps = grid.pane_us * time.per_second, grid.offset_us * time.per_second
            if steps[0] % 1_000_000 == steps[1] % 1_000_000 == 0 and grid.step_us <= grid.size_us:
                self.whole_steps = True
                self._pane, self._offset = steps[0] // 1_000_000, steps[1] // 1_000_000

    def group(self, times: Int64s) -> WindowRuns:
        """Return the rows of each pane. Args: times: at least one; see the class."""
        if self._pane:
            return group_by_window(times, self._pane, self._offset)
        return group_by_number(self._grid.panes(times))
