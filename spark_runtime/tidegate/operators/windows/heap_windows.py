"""The open windows of one subtask in memory, for event time and processing time; `BackendWindows` also keeps panes in
a back end.

Rows are stored in panes. A pane is the longest slice of time such that every window is a whole number of panes. Panes
of tumbling windows are the windows. A row is added to one pane only, however many windows contain it; panes are merged
when a window fires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.aggregates.frozen_aggregates import Finish, FrozenPanes
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout, BatchInput, KeyedAggregates
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS, concat_batches
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.window_grid import window_grid
from tidegate.operators.windows.window_progress import WindowProgress
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.aggregates.aggregation import Selection
from tidegate.state.copy_on_write import Entries
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups
from tidegate.state.state_layout import foreign_format_error


class HeapWindows:
    """Panes and windows, by their numbers in a `WindowGrid`.

    Attributes:
        layout: columns to read from a batch.
        grid: bounds of panes and windows.
        next_end_us: earliest end of a window that has rows and has not fired; MAX_WATERMARK if there is none.
        state_schema: of rows in snapshots: key group, start of the pane, then keys and aggregates.
    """

    def __init__(self, spec: WindowAggSpec, ctx: OperatorContext, name: str) -> None:
        """Args: name: of the state."""
        self.layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self.next_end_us = MAX_WATERMARK
        self.state_schema = spec.state_schema
        self._spec, self._ctx, self._name = spec, ctx, name
        self.grid = window_grid(spec.size_us, spec.step_us, spec.offset_us, spec.calendar)
        self._panes_per_window, self._panes_per_step = self.grid.panes_per_window, self.grid.panes_per_step
        self._keeps_fired = spec.slide_us > 0 or spec.lateness_us > 0
        self._fired_us = MIN_WATERMARK  # used only if panes are kept after their windows have fired
        self._panes: dict[int, KeyedAggregates] = {}
        self._expected = 0
        self._opened = 0

    def __bool__(self) -> bool:
        """Return whether a window is open."""
        return bool(self._panes)

    def end_us(self, number: int) -> int:
        """Return the first time after window `number`."""
        return self.grid.window_end(number)

    def last_end_us(self, pane: int) -> int:
        """Return the end of the last window that contains the pane."""
        return self.end_us(pane // self._panes_per_step)

    def first_end_us(self, pane: int, after_us: int) -> int:
        """Return the earliest end, after `after_us`, of a window that contains the pane. There must be one."""
        return self.end_us(self.grid.windows_of(pane, after_us)[0])

    def add(self, number: int, rows: BatchInput, start: int, stop: int) -> Entries:
        """Add rows start..stop to pane `number`, which is created if needed, and return the entry of each in the pane.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        pane = self._panes.get(number)
        if pane is None:
            pane = self._panes[number] = self._new_pane(self._expected)
            self.next_end_us = min(self.next_end_us, self._next_end_of(number))
        return pane.add(rows, start, stop)

    def merge(self, number: int, keys: Sequence[pa.Array], columns: Sequence[pa.Array]) -> None:
        """Merge state columns of keys into pane `number`, which is created if needed.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        pane = self._panes.get(number)
        if pane is None:
            # Most of these keys are different: the sender has merged equal keys of a batch.
            pane = self._panes[number] = self._new_pane(max(self._expected, len(keys[0])))
            self.next_end_us = min(self.next_end_us, self._next_end_of(number))
        pane.merge(pa.RecordBatch.from_arrays(list(keys), schema=self.layout.keys.schema), columns)

    @property
    def state_width(self) -> int:
        """Return the number of state columns, without key group, pane and keys."""
        return len(self.state_schema) - 2 - len(self._spec.keys)

    @property
    def entries(self) -> int:
        """Return the number of keys in all panes."""
        return sum(pane.size for pane in self._panes.values())

    def take_panes(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all panes, without the key group, and delete the panes."""
        schema = self.state_schema.remove(0)
        for number in sorted(self._panes):
            pane = self._panes.pop(number)
            self._expected = pane.size
            start_us = self.grid.pane_start(number)
            for start in range(0, pane.size, MAX_BATCH_ROWS):
                stop = min(start + MAX_BATCH_ROWS, pane.size)
                starts = pa.array(np.full(stop - start, start_us))
                arrays = [starts, *pane.keys(start, stop).columns, *pane.state(slice(start, stop))]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._clear()

    def fire(self, until_us: int, passed_us: Int64s | None = None) -> Iterator[pa.RecordBatch]:
        """Emit every window that ends at or before `until_us` and has not fired. Delete panes that no window needs.

        Windows are in order of time. Keys in a window are in the order in which they arrived.

        Args:
            passed_us: by key group: windows that end by this time have already fired for its keys.
        """
        for number in self._unfired(until_us):
            yield from self._fired(number, passed_us)
            if not self._keeps_fired:
                self._delete(number)
        if until_us == MAX_WATERMARK:
            self._clear()
            return
        self.advance(until_us)
        self._find_next_end()

    def advance(self, until_us: int) -> None:
        """Set the time to `until_us` without firing, since no unfired window ends by it. Delete panes that are not
        needed."""
        if not self._keeps_fired:
            return
        self._fired_us = max(self._fired_us, until_us)
        for pane in [pane for pane in self._panes if self.last_end_us(pane) + self._spec.lateness_us <= until_us]:
            self._delete(pane)

    def refire(self, touched: Mapping[int, Entries], closed_us: int, fired_us: int) -> Iterator[pa.RecordBatch]:
        """Emit the windows that end in closed_us < end <= fired_us again, for keys with late rows.

        Args:
            touched: entries of these keys, by pane.
        """
        late: dict[int, list[int]] = {}
        for pane in touched:
            for number in self.grid.windows_of(pane, closed_us, fired_us):
                late.setdefault(number, []).append(pane)
        for number in sorted(late):
            if self._panes_per_window == 1 and self._is_in_memory(number):
                yield from self._emit(number, self._panes[number], np.unique(touched[number]))
                continue
            updated = KeyedAggregates(self.layout, 0)
            for pane in late[number]:
                entries = np.unique(touched[pane])
                updated.open(self._panes[pane].keys_of(entries))
            window = self._window(number, updated.keys(0, updated.size))
            yield from self._emit(number, window, None)

    def limit_memory(self, batch: pa.RecordBatch, columns: Sequence[str]) -> None:
        """Do nothing: all rows stay in memory. Called after the rows of a batch were added. Args: columns: that it
        keeps."""

    def drop(self) -> int:
        """Close every window without emitting it.

        Returns:
            number of results that are dropped: one for each key of each window that has not fired.
        """
        if self._panes_per_window == 1:
            results = sum(pane.size for pane in self._panes.values())
        else:
            results = sum(self._window(number).size for number in self._unfired(MAX_WATERMARK))
        self._clear()
        return results

    def snapshot(self, checkpoint_id: int, *, portable: bool, finish: Finish = lambda rows: rows) -> AsyncSnapshot:
        """Freeze all panes. The time does not depend on the number of keys. Args: finish: adds columns to the rows."""
        panes = [(self.grid.pane_start(number), pane.freeze()) for number, pane in sorted(self._panes.items())]
        frozen = FrozenPanes(self.state_schema, panes, self._ctx.max_parallelism, checkpoint_id)
        return lambda: [frozen.part(self._name, finish)]

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """Raise SnapshotError: the files were written by another back end."""
        raise foreign_format_error(parts[0], [self._name], self._ctx.uid)

    def restore_rows(self, part: StatePart, progress: WindowProgress) -> None:
        """Restore the rows of one or several subtasks, with the columns of `state_schema`.

        Keys of other subtasks are skipped.

        Args:
            progress: already restored.
        """
        ctx = self._ctx
        owners = subtask_of_key_groups(ctx.parallelism, ctx.max_parallelism)
        width = 2 + len(self._spec.keys)
        for start_us, rows in _by_window(_owned(table, owners == ctx.subtask) for table in part.tables()):
            keys = pa.RecordBatch.from_arrays(rows.columns[2:width], schema=self.layout.keys.schema)
            number = int(self.grid.panes(np.array([start_us]))[0])
            assert number not in self._panes, "the state has a window twice"
            pane = self._panes[number] = self._new_pane(keys.num_rows)
            pane.merge(keys, rows.columns[width:])
            assert pane.size == keys.num_rows, "the state of a window has a key twice"
        self._find_next_end()

    def set_fired(self, fired_us: int) -> None:
        """Set which windows have fired: those that end by `fired_us`. Used after a restore, or when a clock was set
        back."""
        if self._keeps_fired:
            self._fired_us = fired_us
            self._find_next_end()

    def drop_fired(self, closed_us: int) -> None:
        """Delete windows that end by `closed_us`. They have fired, and were kept for a longer lateness than is allowed
        now."""
        for pane in [pane for pane in self._panes if self.last_end_us(pane) <= closed_us]:
            self._delete(pane)
        self._find_next_end()

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _fired(self, number: int, passed_us: Int64s | None) -> Iterator[pa.RecordBatch]:
        """Emit a window that fires. Args: passed_us: see `fire`."""
        window = self._window(number)
        # The next window probably has as many keys, so that its arrays need not grow.
        self._expected = window.size
        yield from self._emit(number, window, _unfired(window, self.end_us(number), passed_us))

    def _is_in_memory(self, pane: int) -> bool:
        """Return whether `_panes` has all rows of a pane."""
        return True

    def _delete(self, pane: int) -> None:
        del self._panes[pane]

    def _clear(self) -> None:
        for pane in list(self._panes):
            self._delete(pane)
        self._find_next_end()

    def _next_end_of(self, pane: int) -> int:
        unfired = self.grid.windows_of(pane, self._fired_us)
        return self.end_us(unfired[0]) if unfired else MAX_WATERMARK

    def _unfired(self, until_us: int) -> list[int]:
        return sorted({n for pane in self._panes for n in self.grid.windows_of(pane, self._fired_us, until_us)})

    def _window(self, number: int, wanted: pa.RecordBatch | None = None) -> KeyedAggregates:
        """Merge the panes of a window. Args: wanted: key columns: merge only these keys."""
        first = number * self._panes_per_step
        panes = [self._panes[n] for n in range(first, first + self._panes_per_window) if n in self._panes]
        if wanted is None and len(panes) == 1:
            return panes[0]
        size = max(pane.size for pane in panes) if wanted is None else wanted.num_rows
        together = KeyedAggregates(self.layout, 0, size)
        for pane in panes:
            if wanted is None:
                together.merge(pane.keys(0, pane.size), pane.state(slice(0, pane.size)))
                continue
            entries = pane.find(wanted)
            held = np.flatnonzero(entries >= 0)
            together.merge(wanted.take(pa.array(held)), pane.state(entries[held]))
        return together

    def _new_pane(self, expected: int) -> KeyedAggregates:
        self._opened += 1
        return KeyedAggregates(self.layout, self._opened, expected)

    def _find_next_end(self) -> None:
        self.next_end_us = min(map(self._next_end_of, self._panes), default=MAX_WATERMARK)

    def _emit(self, number: int, window: KeyedAggregates, entries: Entries | None) -> Iterator[pa.RecordBatch]:
        bound = pa.timestamp("us")
        size = window.size if entries is None else len(entries)
        for start in range(0, size, MAX_BATCH_ROWS):
            stop = min(start + MAX_BATCH_ROWS, size)
            if entries is not None:
                part: Selection = entries[start:stop]
            else:  # copy: a slice gives views of columns that later rows would change
                part = np.arange(start, stop, dtype=np.int32) if self._keeps_fired else slice(start, stop)
            keys = window.keys(start, stop) if entries is None else window.keys_of(entries[start:stop])
            bounds_us = self.grid.window_start(number), self.end_us(number)
            bounds = [pa.array(np.full(stop - start, us)).view(bound) for us in bounds_us]
            arrays = [*keys.columns, *bounds, *window.result(part)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._spec.schema)


def _unfired(window: KeyedAggregates, end_us: int, passed_us: Int64s | None) -> Entries | None:
    """Return the entries whose key group has not reached the end of the window; None: all."""
    if passed_us is None:
        return None
    keys = window.keys(0, window.size)
    groups = key_groups(hash_keys(keys, keys.schema.names), len(passed_us))
    return np.flatnonzero(passed_us[groups] < end_us).astype(np.int32)


def _owned(table: pa.Table, owned: npt.NDArray[np.bool_]) -> pa.Table:
    mine = owned[table.column(KEY_GROUP_COLUMN).to_numpy()]
    return table if mine.all() else table.filter(pa.array(mine))


def _by_window(tables: Iterable[pa.Table]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (start, rows) of each window, ascending.

    Works batch by batch: a table may be too large to sort or combine as a whole, since a chunk of text is limited to
    2 GiB.
    """
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for batch in (batch for table in tables for batch in table.to_batches()):
        if not batch.num_rows:
            continue
        ordered = batch.sort_by("window_start_us")
        starts_us = ordered.column("window_start_us").to_numpy()
        cuts = [0, *(np.flatnonzero(starts_us[1:] != starts_us[:-1]) + 1).tolist(), len(starts_us)]
        for first, end in zip(cuts, cuts[1:], strict=False):
            pieces.setdefault(int(starts_us[first]), []).append(ordered.slice(first, end - first))
    return ((start_us, concat_batches(pieces[start_us])) for start_us in sorted(pieces))
