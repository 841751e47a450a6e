"""WindowAggregate: aggregates per key over tumbling event-time windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.contract.errors import TidegateError
from tidegate.operators.batches import coalesced
from tidegate.operators.contract import Output, SideOutput, StreamOperator
from tidegate.operators.eventtime import EventTime
from tidegate.operators.open_windows import PROCESSING_WINDOWS, OpenWindows, changed_window
from tidegate.operators.restoring import checked_part
from tidegate.operators.specs import WindowAggSpec
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.keybytes import Int64s, valid_mask
from tidegate.state.keyhash import hash_keys, key_groups
from tidegate.state.rows import group_by_window

LATE = "late"
"""Side output: the rows of windows that had fired already."""
LATE_DROPPED = "late_dropped"
"""Counter: such rows, where nothing reads the side output."""
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
    they go to the side output `late`, or are dropped and counted under `late_dropped` (S4.4, no allowed lateness). Null
    is a key like any other. MAX_WATERMARK fires all windows (S7.2). Windows fire in order of time; keys within one in
    order of first sight.

    State: `windows` (keyed: a row for each window and key) and `progress` (keyed: for each key group the watermark that
    decides what is late, never MAX, S4.4; after MAX none at all: inputs that are drained let the watermark run ahead of
    what they bring after a restore, S7.5; what had been late before it is not, until watermarks come again). `snapshot`
    marks the columns, whatever their size; they are written by the returned function, large windows in chunks (S5.2).

    After a restore at another parallelism key groups may come from subtasks whose watermarks differed. The watermark is
    then the earliest of them, so that no row is called late that was not; and until it has caught up, a row is late
    where its key group's own watermark had passed, so that no window fires twice.
    """

    def __init__(self, spec: WindowAggSpec) -> None:
        self._spec = spec
        self._windows = OpenWindows(spec)
        assert spec.time_column is not None, "windows over processing time are another operator's"
        self._time = EventTime(spec.time_column, spec.time_unit)
        steps = spec.size_us * self._time.per_second, spec.offset_us * self._time.per_second
        self._whole_steps = steps[0] % 1_000_000 == 0 and steps[1] % 1_000_000 == 0
        self._size, self._offset = (
            (steps[0] // 1_000_000, steps[1] // 1_000_000) if self._whole_steps else (spec.size_us, spec.offset_us)
        )
        self._watermark_us = MIN_WATERMARK
        self._is_over = False  # MAX_WATERMARK came
        self._passed_us: Int64s | None = None  # by key group, where some restored watermark is ahead

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Take the rows into their windows; emits late ones to the side output.

        Raises:
            SumOverflowError: a sum of integers left int64.
            TidegateError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
        """
        times, nulls = self._time.times(batch)
        if nulls:
            self.ctx.count(NULL_TIME_DROPPED, nulls)
            batch = batch.filter(pa.array(valid_mask(batch.column(self._time.column))))
        if batch.num_rows:
            yield from self._take(batch, times)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit every window that ends at or before the watermark, in batches of at most `MAX_BATCH_ROWS`."""
        if watermark_us < MAX_WATERMARK:
            self._watermark_us = max(self._watermark_us, watermark_us)
            if self._passed_us is not None and self._passed_us.max() <= self._watermark_us:
                self._passed_us = None
        else:
            self._is_over = True
        if watermark_us >= self._windows.next_end_us:
            yield from coalesced(self._windows.fire(watermark_us))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Mark the columns of every open window."""
        frozen = self._windows.freeze(self.ctx)
        watermark_us, passed_us = self._watermark_us, self._passed_us
        if self._is_over:
            watermark_us, passed_us = MIN_WATERMARK, None
        return lambda: [
            frozen.part("windows"),
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
            elif part.name == PROCESSING_WINDOWS:
                raise changed_window(self.ctx.uid, part.name, "it was over processing time", "over event time")
            else:
                renamed = dict(self._spec.renamed)
                checked = checked_part(part, self._windows.state_schema, self.ctx.uid, renamed, fills=False)
                self._windows.restore(checked.tables(), self.ctx)

    def _take(self, batch: pa.RecordBatch, times: Int64s) -> Iterator[Output]:
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
            is_late = self._passed_already(batch, times, self._passed_us)
            if is_late.any():
                yield from self._late(batch.filter(pa.array(is_late)))
                batch, times = batch.filter(pa.array(~is_late)), times[~is_late]
            if not batch.num_rows:
                return
        grouped = group_by_window(times, self._size, self._offset)
        in_order = batch
        if grouped.order is not None:
            columns = batch.schema.names if LATE in self.ctx.side_outputs else self._windows.layout.used_columns
            in_order = batch.select(columns).take(pa.array(grouped.order))
        rows = self._windows.layout.read(in_order)
        for number, start, stop in grouped.runs:
            if self._windows.end_us(number) <= self._watermark_us:
                yield from self._late(in_order.slice(start, stop - start))
            else:
                self._windows.add(number, rows, start, stop)

    def _late(self, rows: pa.RecordBatch) -> Iterator[Output]:
        if LATE in self.ctx.side_outputs:
            yield SideOutput(LATE, rows)
        else:
            self.ctx.count(LATE_DROPPED, rows.num_rows)

    def _passed_already(self, batch: pa.RecordBatch, times: Int64s, passed_us: Int64s) -> npt.NDArray[np.bool_]:
        """Of which rows the window had fired for their key group before the restore: they are late. Those that are late
        by the watermark, too, are left to `_take`."""
        ends_us = ((times - self._offset) // self._size + 1) * self._spec.size_us + self._spec.offset_us
        groups = key_groups(hash_keys(batch, self._spec.keys), self.ctx.max_parallelism)
        return np.asarray((ends_us <= passed_us[groups]) & (ends_us > self._watermark_us))

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
                was = f"size, offset in us were {found[0]}, {found[1]}"
                raise changed_window(self.ctx.uid, "progress", was, f"{wanted[0]}, {wanted[1]}")
        marks = table.column("watermark_us").to_numpy()
        self._watermark_us = int(marks.min())
        if marks.max() > self._watermark_us:
            self._passed_us = np.full(self.ctx.max_parallelism, MIN_WATERMARK, np.int64)
            self._passed_us[table.column(KEY_GROUP_COLUMN).to_numpy()] = marks
