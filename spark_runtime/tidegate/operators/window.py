"""WindowAggregate: aggregates per key over tumbling event-time windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.contract.errors import SnapshotError, TidegateError
from tidegate.operators.batches import MAX_BATCH_ROWS, coalesced, one_batch
from tidegate.operators.contract import Output, StreamOperator
from tidegate.operators.eventtime import EventTime
from tidegate.operators.keyed_window import FrozenWindow, KeyedWindow, WindowLayout
from tidegate.operators.restoring import checked_schema
from tidegate.operators.specs import WindowAggSpec
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.keybytes import Int64s, valid_mask
from tidegate.state.keyhash import hash_keys, key_groups, subtask_of_key_groups
from tidegate.state.rows import group_by_window

LATE_DROPPED = "late_dropped"
"""Counter: rows of windows that had fired already."""
NULL_TIME_DROPPED = "null_event_time_dropped"
"""Counter: rows without an event time, which belong to no window."""

MIN_TIME_US, MAX_TIME_US = -(2**62), 2**62
"""Event times beyond these (some 146,000 years from 1970) are refused: window bounds must fit timestamp[us]."""

PROGRESS_SCHEMA = pa.schema(
    [
        pa.field(KEY_GROUP_COLUMN, pa.uint16(), nullable=False),
        pa.field("watermark_us", pa.int64(), nullable=False),
        pa.field("size_us", pa.int64(), nullable=False),
        pa.field("offset_us", pa.int64(), nullable=False),
    ]
)


class WindowAggregate(StreamOperator):
    """Tumbling windows [start, end): a row belongs to the window its event time falls in.

    A window fires once, when the watermark reaches its end, and its state goes; rows that come for it later are late:
    counted under `late_dropped` and dropped (S4.4, no allowed lateness). Null is a key like any other. MAX_WATERMARK
    fires all windows (S7.2). Windows fire in order of time; keys within one in order of first sight.

    State: `windows` (keyed: a row for each window and key) and `progress` (keyed: for each key group the watermark that
    decides what is late, never MAX, S4.4). `snapshot` copies the columns, some milliseconds a million keys; tables are
    built by the returned function.

    After a restore at another parallelism key groups may come from subtasks whose watermarks differed. The watermark is
    then the earliest of them, so that no row is called late that was not; and until it has caught up, a row is late
    where its key group's own watermark had passed, so that no window fires twice.
    """

    def __init__(self, spec: WindowAggSpec) -> None:
        self._spec = spec
        self._layout = WindowLayout(spec)
        self._time = EventTime(spec.time_column, spec.time_unit)
        steps = spec.size_us * self._time.per_second, spec.offset_us * self._time.per_second
        self._whole_steps = steps[0] % 1_000_000 == 0 and steps[1] % 1_000_000 == 0
        self._size, self._offset = (
            (steps[0] // 1_000_000, steps[1] // 1_000_000) if self._whole_steps else (spec.size_us, spec.offset_us)
        )
        self._windows: dict[int, KeyedWindow] = {}  # by window number
        self._next_end_us = MAX_WATERMARK
        self._watermark_us = MIN_WATERMARK
        self._passed_us: Int64s | None = None  # by key group, where some restored watermark is ahead
        self._expected = 0
        self._state_schema = pa.schema(
            [
                pa.field(KEY_GROUP_COLUMN, pa.uint16()),
                pa.field("window_start_us", pa.int64()),
                *self._layout.state_fields(),
            ]
        )

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Take the rows into their windows; emits nothing.

        Raises:
            SumOverflowError: a sum of integers left int64.
            TidegateError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
        """
        times, nulls = self._time.times(batch)
        if nulls:
            self.ctx.count(NULL_TIME_DROPPED, nulls)
            batch = batch.filter(pa.array(valid_mask(batch.column(self._time.column))))
        if batch.num_rows:
            self._take(batch, times)
        yield from ()

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit every window that ends at or before the watermark, in batches of at most `MAX_BATCH_ROWS`."""
        if watermark_us < MAX_WATERMARK:
            self._watermark_us = max(self._watermark_us, watermark_us)
            if self._passed_us is not None and self._passed_us.max() <= self._watermark_us:
                self._passed_us = None
        if watermark_us < self._next_end_us:
            return
        yield from coalesced(self._fire(watermark_us))
        self._next_end_us = min(map(self._end_us, self._windows), default=MAX_WATERMARK)

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Copy the columns of every open window."""
        frozen = [(self._start_us(number), window.freeze()) for number, window in sorted(self._windows.items())]
        watermark_us, passed_us = self._watermark_us, self._passed_us
        return lambda: [
            StatePart("windows", "keyed", self._state_table(frozen)),
            StatePart("progress", "keyed", self._progress_table(watermark_us, passed_us)),
        ]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back the open windows and the watermark.

        Raises:
            SnapshotError: the state is of other keys, aggregates or windows than the pipeline's; names both (S5.5).
        """
        for part in parts:
            if part.name == "progress":
                self._restore_progress(part.table)
            else:
                checked_schema(part, self._state_schema, self.ctx.uid)
                self._restore_windows(part.table)

    def _take(self, batch: pa.RecordBatch, times: Int64s) -> None:
        low, high = self._time.to_us(int(times.min())), self._time.to_us(int(times.max()))
        if low < MIN_TIME_US or high > MAX_TIME_US:
            raise TidegateError(
                f"Column {self._time.column!r} has an event time of {low if low < MIN_TIME_US else high} us since 1970",
                where=f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}",
                cause="the column's unit is not what the pipeline says, or the value is a placeholder",
                remedy="Give with_watermark the right unit, or filter such rows first",
            )
        if not self._whole_steps:
            times = times * (1_000_000 // self._time.per_second)
        if self._passed_us is not None:
            batch, times = self._not_passed(batch, times, self._passed_us)
            if not batch.num_rows:
                return
        grouped = group_by_window(times, self._size, self._offset)
        if grouped.order is not None:
            batch = batch.select(self._layout.used_columns).take(pa.array(grouped.order))
        rows = self._layout.read(batch)
        for number, start, stop in grouped.runs:
            end_us = self._end_us(number)
            if end_us <= self._watermark_us:
                self.ctx.count(LATE_DROPPED, stop - start)
                continue
            window = self._windows.get(number)
            if window is None:
                window = self._windows[number] = KeyedWindow(self._layout, self._expected)
                self._next_end_us = min(self._next_end_us, end_us)
            window.add(rows, start, stop)

    def _fire(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        for number in sorted(number for number in self._windows if self._end_us(number) <= watermark_us):
            window = self._windows.pop(number)
            self._expected = window.size
            yield from self._emit(number, window)

    def _emit(self, number: int, window: KeyedWindow) -> Iterator[pa.RecordBatch]:
        bound = pa.timestamp("us")
        schema = self._spec.schema
        for start in range(0, window.size, MAX_BATCH_ROWS):
            stop = min(start + MAX_BATCH_ROWS, window.size)
            keys, aggregates = window.result(start, stop)
            bounds = [
                pa.array(np.full(stop - start, us)).view(bound) for us in (self._start_us(number), self._end_us(number))
            ]
            yield pa.RecordBatch.from_arrays([*keys, *bounds, *aggregates], schema=schema)

    def _start_us(self, number: int) -> int:
        return number * self._spec.size_us + self._spec.offset_us

    def _end_us(self, number: int) -> int:
        return self._start_us(number + 1)

    def _state_table(self, frozen: Sequence[tuple[int, FrozenWindow]]) -> pa.Table:
        if not frozen:
            return self._state_schema.empty_table()
        starts, windows = [], []
        for start_us, freeze in frozen:
            keys, columns = freeze()
            starts.append(np.full(keys.num_rows, start_us))
            windows.append([*keys.columns, *columns])
        columns = [pa.concat_arrays(pieces) for pieces in zip(*windows, strict=True)]
        keys = pa.RecordBatch.from_arrays(columns[: len(self._spec.keys)], names=list(self._spec.keys))
        groups = key_groups(hash_keys(keys, self._spec.keys), self.ctx.max_parallelism)
        return pa.table([pa.array(groups), pa.array(np.concatenate(starts)), *columns], schema=self._state_schema)

    def _not_passed(self, batch: pa.RecordBatch, times: Int64s, passed_us: Int64s) -> tuple[pa.RecordBatch, Int64s]:
        """The rows whose window had not fired for their key group before the restore; the others are late. Rows that
        are late by the watermark, too, are left to `_take`."""
        ends_us = ((times - self._offset) // self._size + 1) * self._spec.size_us + self._spec.offset_us
        groups = key_groups(hash_keys(batch, self._spec.keys), self.ctx.max_parallelism)
        late = (ends_us <= passed_us[groups]) & (ends_us > self._watermark_us)
        if not late.any():
            return batch, times
        self.ctx.count(LATE_DROPPED, int(late.sum()))
        return batch.filter(pa.array(~late)), times[~late]

    def _progress_table(self, watermark_us: int, passed_us: Int64s | None) -> pa.Table:
        groups = key_group_range(self.ctx.subtask, self.ctx.parallelism, self.ctx.max_parallelism)
        marks = np.full(len(groups), watermark_us, np.int64)
        if passed_us is not None:
            marks = np.maximum(marks, passed_us[groups.start : groups.stop])
        columns = [np.array(groups, np.uint16), marks, *(np.full(len(groups), us) for us in self._size_and_offset_us)]
        return pa.table([pa.array(column) for column in columns], schema=PROGRESS_SCHEMA)

    @property
    def _size_and_offset_us(self) -> tuple[int, int]:
        return self._spec.size_us, self._spec.offset_us

    def _restore_progress(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        wanted = self._size_and_offset_us
        for found in set(zip(table["size_us"].to_pylist(), table["offset_us"].to_pylist(), strict=True)):
            if found != wanted:
                raise SnapshotError(
                    f"The window of operator {self.ctx.uid!r} has changed",
                    where=f"state 'progress' of operator {self.ctx.uid!r}",
                    cause=f"size, offset in us were {found[0]}, {found[1]}, now {wanted[0]}, {wanted[1]}",
                    remedy="Restore with the window of the snapshot, or give the operator a new uid",
                )
        marks = table.column("watermark_us").to_numpy()
        self._watermark_us = int(marks.min())
        if marks.max() > self._watermark_us:
            self._passed_us = np.full(self.ctx.max_parallelism, MIN_WATERMARK, np.int64)
            self._passed_us[table.column(KEY_GROUP_COLUMN).to_numpy()] = marks

    def _restore_windows(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        groups = table.column(KEY_GROUP_COLUMN).to_numpy()
        owners = subtask_of_key_groups(self.ctx.parallelism, self.ctx.max_parallelism)
        assert groups.max() < len(owners) and np.all(owners[groups] == self.ctx.subtask), "keys of another subtask"
        width = 2 + len(self._spec.keys)
        for start_us, rows in _by_window(table):
            keys = pa.RecordBatch.from_arrays(rows.columns[2:width], schema=self._layout.keys.schema)
            number = (start_us - self._spec.offset_us) // self._spec.size_us
            assert number not in self._windows, "one window comes in two parts"
            window = self._windows[number] = KeyedWindow(self._layout, keys.num_rows)
            window.restore(keys, rows.columns[width:])
            self._next_end_us = min(self._next_end_us, self._end_us(number))


def _by_window(table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(start, rows) of each window, ascending. Batch by batch: not every table can be sorted, or put together, as a
    whole, since a chunk of text ends at 2 GiB."""
    pieces: dict[int, list[pa.RecordBatch]] = {}
    for batch in table.to_batches():
        if not batch.num_rows:
            continue
        ordered = batch.sort_by("window_start_us")
        starts_us = ordered.column("window_start_us").to_numpy()
        cuts = [0, *(np.flatnonzero(starts_us[1:] != starts_us[:-1]) + 1).tolist(), len(starts_us)]
        for first, end in zip(cuts, cuts[1:], strict=False):
            pieces.setdefault(int(starts_us[first]), []).append(ordered.slice(first, end - first))
    return ((start_us, one_batch(pieces[start_us])) for start_us in sorted(pieces))
