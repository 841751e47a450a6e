"""The open windows of one subtask in a back end outside memory (S5.2); `HeapWindows` does the same in memory.

State is stored by key and pane, event timers by key and window. A window's first timer is at its end, when it fires. A
later timer is at its close, when the panes of its first step are no longer needed. A key has one timer at the end of
its earliest unfired window. When that window fires, the next one's timer is registered if that window has rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout
from tidegate.operators.aggregates.stored_aggregates import Finish, StoredAggregates
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.time.late_rows import MIN_TIME_US
from tidegate.operators.windows.window_grid import window_grid
from tidegate.operators.windows.window_progress import WindowProgress
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s


class BackendWindows:
    """Panes and windows by number, as in `HeapWindows`. Not thread-safe.

    Windows fire in order of time. Keys within a window are in the order of the back end, in groups that fit a batch.

    Attributes:
        layout: columns to read from a batch.
        grid: bounds of panes and windows.
        state_schema: of rows in savepoints: key group, start of the pane, then keys and aggregates.
    """

    def __init__(self, spec: WindowAggSpec, ctx: OperatorContext, name: str) -> None:
        """Open the back end. Args: name: of the state."""
        self.layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self.state_schema = spec.state_schema
        self._spec = spec
        self.grid = window_grid(spec.size_us, spec.step_us, spec.offset_us, spec.calendar)
        self._panes_per_window, self._panes_per_step = self.grid.panes_per_window, self.grid.panes_per_step
        # A window is computed from all panes of a key. Together they should not exceed a batch.
        self._most_keys = max(1, MAX_BATCH_ROWS // self._panes_per_window)
        self._store = StoredAggregates(ctx, name, self.layout, self.state_schema, spec.renamed, by_start=True)
        self._timers = self._store.timers

    def __bool__(self) -> bool:
        """Return whether a timer waits."""
        return self._timers.next_us() is not None

    @property
    def next_end_us(self) -> int:
        """Return when the first window fires or closes; MAX_WATERMARK if there is none."""
        next_us = self._timers.next_us()
        return MAX_WATERMARK if next_us is None else next_us

    def closed(self, panes: Int64s, closed_us: int) -> Mask:
        """Return for each pane whether all its windows end by `closed_us`."""
        closed: Mask = self.grid.window_end(panes // self._panes_per_step) <= closed_us
        return closed

    def take(self, batch: pa.RecordBatch, panes: Int64s, closed_us: int, fired_us: int) -> Iterator[pa.RecordBatch]:
        """Add rows, none of which is in a closed pane. Emits the windows that end in closed_us < end <= fired_us again,
        for keys with late rows.

        Args:
            panes: of each row.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        keys = self._store.keys(batch, self.grid.pane_start(panes))
        folded = self._store.add(keys, self.layout.values(batch))
        columns, starts_us = self._store.key_columns(keys)
        numbers = self.grid.panes(starts_us)
        new = ~folded.was_there
        if new.any():
            some = columns if new.all() else columns.filter(pa.array(new))
            self._register(some, numbers[new], np.full(int(new.sum()), fired_us))
        if self._spec.lateness_us:
            yield from self._fire_again(columns, numbers, closed_us, fired_us)

    def fire(self, until_us: int, passed_us: Int64s | None = None) -> Iterator[pa.RecordBatch]:
        """Emit every window that ends at or before `until_us` and has not fired, in order of time. Delete unneeded
        panes.

        Args:
            passed_us: unused: windows that have fired have no timer.
        """
        while (next_us := self._timers.next_us()) is not None and next_us <= until_us:
            # A window that fires registers the next one's timer. Overlapping windows fire one end at a time, so that
            # they stay in order.
            due = self._timers.due(until_us if self._panes_per_window == 1 else next_us, self._most_keys)
            assert due is not None, "a timer is due"
            columns, starts_us = self._store.key_columns(due.keys)
            columns, windows = columns.take(pa.array(due.owners)), self.grid.windows_at(starts_us[due.owners])
            ends_us = self.grid.window_end(windows)
            fires, over = due.times_us == ends_us, due.times_us >= ends_us + self._spec.lateness_us
            if self._spec.lateness_us:
                # registered when another lateness was allowed, or when the window fired
                waits = ~fires & ~over
                self._register_at(columns, windows, ends_us + self._spec.lateness_us, waits)
            if fires.any():
                yield from self._fired(columns.filter(pa.array(fires)), windows[fires])
            self._forget(columns, windows, over & ~fires)

    def drop(self) -> int:
        """Close every window without emitting it. Returns the number of dropped results."""
        return sum(batch.num_rows for batch in self.fire(MAX_WATERMARK))

    def advance(self, until_us: int) -> None:
        """Do nothing: closed windows have a timer."""

    def set_fired(self, fired_us: int) -> None:
        """Do nothing: windows that have fired have no timer. If a clock was set back, windows fire again for keys with
        new rows."""

    def drop_fired(self, closed_us: int) -> None:
        """Do nothing. Rows of windows kept for a longer lateness than is allowed now are late, and are deleted by their
        timer."""

    def snapshot(self, checkpoint_id: int, *, portable: bool, finish: Finish = lambda rows: rows) -> AsyncSnapshot:
        """See `StoredAggregates`."""
        return self._store.snapshot(checkpoint_id, portable=portable, finish=finish)

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """Restore files of the back end."""
        self._store.restore_files(parts)

    def restore_rows(self, part: StatePart, progress: WindowProgress) -> None:
        """Restore rows with the columns of `state_schema`. Args: progress: already restored."""
        for keys, columns, starts_us in self._store.restored_rows(part):
            fired_us = np.full(keys.size, progress.watermark_us)
            if progress.passed_us is not None:
                fired_us = np.maximum(fired_us, progress.passed_us[keys.groups])
            # MIN_WATERMARK minus the lateness does not fit into int64.
            fired_us = np.maximum(fired_us, MIN_TIME_US)
            panes = self.grid.panes(starts_us)
            over = self.grid.window_end(panes // self._panes_per_step) <= fired_us - self._spec.lateness_us
            self._store.clear(keys, over)
            self._register(columns.filter(pa.array(~over)), panes[~over], fired_us[~over])

    def close(self) -> None:
        """Close the back end."""
        self._store.close()

    def _first_after(self, panes: Int64s, after_us: Int64s) -> Int64s:
        """See `WindowGrid.first_after`."""
        return self.grid.first_after(panes, np.maximum(after_us, MIN_TIME_US))  # no window with rows ends earlier

    # ------------------------------------------------------------ timers

    def _register(self, columns: pa.RecordBatch, panes: Int64s, fired_us: Int64s) -> None:
        """Register a timer for each new pane: at the end of its first unfired window, or, if all its windows have
        fired, at their close."""
        last = panes // self._panes_per_step
        first = self._first_after(panes, fired_us)
        windows, ends_us = np.minimum(first, last), self.grid.window_end(np.minimum(first, last))
        times_us = np.where(first <= last, ends_us, ends_us + self._spec.lateness_us)
        self._register_at(columns, windows, times_us, np.ones(len(panes), np.bool_))

    def _register_at(self, columns: pa.RecordBatch, windows: Int64s, times_us: Int64s, where: Mask) -> None:
        if where.any():
            keys = self._store.keys(columns.filter(pa.array(where)), self.grid.window_start(windows[where]))
            self._timers.register(keys, keys.rows, times_us[where])

    # ------------------------------------------------------------ firing

    def _fired(self, columns: pa.RecordBatch, windows: Int64s) -> Iterator[pa.RecordBatch]:
        """Emit due windows, one row for each, and register the next timers of their keys. Windows of one key share no
        pane."""
        emitted, there = self._merge_panes(columns, windows)
        # The panes after the first step also belong to the next window.
        later: Mask = np.any(there[:, self._panes_per_step :], axis=1)
        if later.any():
            self._register_at(columns, windows + 1, self.grid.window_end(windows + 1), later)
        lateness_us = self._spec.lateness_us
        if lateness_us:
            first: Mask = np.any(there[:, : self._panes_per_step], axis=1)
            self._register_at(columns, windows, self.grid.window_end(windows) + lateness_us, first)
        else:
            self._forget(columns, windows, np.ones(len(windows), np.bool_))
        if emitted.num_rows:
            yield emitted

    def _fire_again(
        self, columns: pa.RecordBatch, panes: Int64s, closed_us: int, fired_us: int
    ) -> Iterator[pa.RecordBatch]:
        """Emit the windows of these keys' panes that end in closed_us < end <= fired_us."""
        first = self._first_after(panes, np.full(len(panes), closed_us))
        last = np.minimum(panes // self._panes_per_step, self._first_after(panes, np.full(len(panes), fired_us)) - 1)
        counts = np.maximum(last - first + 1, 0)
        if not counts.any():
            return
        owners = np.repeat(np.arange(len(panes)), counts)
        steps = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = self._store.keys(columns.take(pa.array(owners)), self.grid.window_start(first[owners] + steps))
        columns, starts_us = self._store.key_columns(keys)  # a key may have rows in several panes of one window
        order = np.argsort(starts_us, kind="stable")
        for at in range(0, len(order), self._most_keys):
            some = order[at : at + self._most_keys]
            emitted, _ = self._merge_panes(columns.take(pa.array(some)), self.grid.windows_at(starts_us[some]))
            yield emitted

    def _merge_panes(self, columns: pa.RecordBatch, windows: Int64s) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return the results of the (key, window) pairs that have rows, and for each pair which of its panes have
        rows."""
        count, width = len(windows), self._panes_per_window
        owners = np.repeat(np.arange(count, dtype=np.int32), width)
        keys = self._store.keys(columns.take(pa.array(owners)), self._pane_starts(windows, width))
        folding, rows_there = self._store.combined_state(keys, owners, count)
        there = rows_there.reshape(count, width)
        held: Mask = np.any(there, axis=1)
        arrays = [*columns.columns]
        arrays += [pa.array(us).view(pa.timestamp("us")) for us in self._bounds_us(windows)]
        arrays += folding.result(slice(0, count))
        emitted = pa.RecordBatch.from_arrays(arrays, schema=self._spec.schema)
        return (emitted if held.all() else emitted.filter(pa.array(held))), there

    def _bounds_us(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        return self.grid.window_start(windows), self.grid.window_end(windows)

    def _forget(self, columns: pa.RecordBatch, windows: Int64s, where: Mask) -> None:
        """Delete the panes that no later window contains."""
        if where.any():
            step = self._panes_per_step
            owners = pa.array(np.repeat(np.flatnonzero(where), step))
            self._store.clear(self._store.keys(columns.take(owners), self._pane_starts(windows[where], step)))

    def _pane_starts(self, windows: Int64s, count: int) -> Int64s:
        """Return the starts of the first `count` panes of each window, one window after the other."""
        panes = (windows[:, None] * self._panes_per_step + np.arange(count)[None, :]).reshape(-1)
        return self.grid.pane_start(panes)
