"""The open tumbling windows of one subtask, whatever time they follow: filled, fired, written out and taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.contract.errors import SnapshotError
from tidegate.operators.batches import MAX_BATCH_ROWS, one_batch
from tidegate.operators.contract import OperatorContext
from tidegate.operators.frozen_windows import FrozenWindows
from tidegate.operators.keyed_window import BatchInput, KeyedWindow, WindowLayout
from tidegate.operators.specs import WindowAggSpec
from tidegate.snapshot.parts import KEY_GROUP_COLUMN
from tidegate.state.keyhash import subtask_of_key_groups

PROCESSING_WINDOWS = "processing_windows"
"""State of windows over processing time; those over event time have `windows` and `progress`."""


class OpenWindows:
    """Windows by number: window n is [n * size + offset, (n + 1) * size + offset), microseconds since the epoch.

    Attributes:
        layout: what rows to read of a batch.
        next_end_us: earliest end of an open window; MAX_WATERMARK when none is open.
        state_schema: of rows in snapshots: key group, start, then keys and aggregates.
    """

    def __init__(self, spec: WindowAggSpec) -> None:
        self.layout = WindowLayout(spec)
        self.next_end_us = MAX_WATERMARK
        self.state_schema = pa.schema(
            [
                pa.field(KEY_GROUP_COLUMN, pa.uint16()),
                pa.field("window_start_us", pa.int64()),
                *self.layout.state_fields(),
            ]
        )
        self._spec = spec
        self._windows: dict[int, KeyedWindow] = {}
        self._expected = 0
        self._opened = 0

    def __bool__(self) -> bool:
        """Some window is open."""
        return bool(self._windows)

    @property
    def results(self) -> int:
        """Records that firing all of them would emit: one for each key of each window."""
        return sum(window.size for window in self._windows.values())

    def start_us(self, number: int) -> int:
        """First time that is in the window."""
        return number * self._spec.size_us + self._spec.offset_us

    def end_us(self, number: int) -> int:
        """First time after it."""
        return self.start_us(number + 1)

    def add(self, number: int, rows: BatchInput, start: int, stop: int) -> None:
        """Take rows start..stop into window `number`, which opens with its first. Raises SumOverflowError."""
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = self._new_window(self._expected)
            self.next_end_us = min(self.next_end_us, self.end_us(number))
        window.add(rows, start, stop)

    def fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        """Close and emit every window that ends at or before `until_us`, in order of time, keys in order of first
        sight."""
        for number in sorted(number for number in self._windows if self.end_us(number) <= until_us):
            window = self._windows.pop(number)
            self._expected = window.size
            yield from self._emit(number, window)
        self._find_next_end()

    def clear(self) -> None:
        """Close every window and emit nothing."""
        self._windows.clear()
        self._find_next_end()

    def freeze(self, ctx: OperatorContext) -> FrozenWindows:
        """All windows as they are now, in time that does not depend on the number of keys."""
        frozen = [(self.start_us(number), window.freeze()) for number, window in sorted(self._windows.items())]
        return FrozenWindows(self.state_schema, frozen, ctx.max_parallelism)

    def restore(self, tables: Iterable[pa.Table], ctx: OperatorContext) -> None:
        """Take back the rows of what `freeze` gave, or of what several gave, with the columns of `state_schema`. Keys
        of other subtasks are passed over."""
        owners = subtask_of_key_groups(ctx.parallelism, ctx.max_parallelism)
        width = 2 + len(self._spec.keys)
        for start_us, rows in _by_window(_owned(table, owners == ctx.subtask) for table in tables):
            keys = pa.RecordBatch.from_arrays(rows.columns[2:width], schema=self.layout.keys.schema)
            number = (start_us - self._spec.offset_us) // self._spec.size_us
            assert number not in self._windows, "one window comes in two parts"
            window = self._windows[number] = self._new_window(keys.num_rows)
            window.merge(keys, rows.columns[width:])
            assert window.size == keys.num_rows, "a key comes twice in the state of a window"
            self.next_end_us = min(self.next_end_us, self.end_us(number))

    def _new_window(self, expected: int) -> KeyedWindow:
        self._opened += 1
        return KeyedWindow(self.layout, self._opened, expected)

    def _find_next_end(self) -> None:
        self.next_end_us = min(map(self.end_us, self._windows), default=MAX_WATERMARK)

    def _emit(self, number: int, window: KeyedWindow) -> Iterator[pa.RecordBatch]:
        bound = pa.timestamp("us")
        for start in range(0, window.size, MAX_BATCH_ROWS):
            stop = min(start + MAX_BATCH_ROWS, window.size)
            keys, aggregates = window.keys(start, stop).columns, window.result(slice(start, stop))
            bounds = [
                pa.array(np.full(stop - start, us)).view(bound) for us in (self.start_us(number), self.end_us(number))
            ]
            yield pa.RecordBatch.from_arrays([*keys, *bounds, *aggregates], schema=self._spec.schema)


def changed_window(uid: str, state: str, was: str, now: str) -> SnapshotError:
    """The state of operator `uid` is of windows other than the pipeline's."""
    return SnapshotError(
        f"The window of operator {uid!r} has changed",
        where=f"state {state!r} of operator {uid!r}",
        cause=f"{was}, now {now}",
        remedy="Restore with the window of the snapshot, or give the operator a new uid",
    )


def _owned(table: pa.Table, owned: npt.NDArray[np.bool_]) -> pa.Table:
    mine = owned[table.column(KEY_GROUP_COLUMN).to_numpy()]
    return table if mine.all() else table.filter(pa.array(mine))


def _by_window(tables: Iterable[pa.Table]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(start, rows) of each window, ascending. Batch by batch: not every table can be sorted, or put together, as a
    whole, since a chunk of text ends at 2 GiB."""
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for batch in (batch for table in tables for batch in table.to_batches()):
        if not batch.num_rows:
            continue
        ordered = batch.sort_by("window_start_us")
        starts_us = ordered.column("window_start_us").to_numpy()
        cuts = [0, *(np.flatnonzero(starts_us[1:] != starts_us[:-1]) + 1).tolist(), len(starts_us)]
        for first, end in zip(cuts, cuts[1:], strict=False):
            pieces.setdefault(int(starts_us[first]), []).append(ordered.slice(first, end - first))
    return ((start_us, one_batch(pieces[start_us])) for start_us in sorted(pieces))
