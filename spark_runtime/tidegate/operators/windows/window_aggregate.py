"""WindowAggregate: aggregates per key over tumbling or sliding event-time windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.batch_sizes import coalesce_batches
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.calendar import CALENDAR
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.late_rows import LATE, LATE_DROPPED, NULL_TIME_DROPPED, check_time_range, late_rows
from tidegate.operators.windows.heap_windows import HeapWindows
from tidegate.operators.windows.pane_groups import PaneGroups
from tidegate.operators.windows.processing_time_window import ProcessingWindowAggregate
from tidegate.operators.windows.row_groups import group_by_number
from tidegate.operators.windows.window_grid import OUTSIDE_DROPPED, calendar_part
from tidegate.operators.windows.window_progress import WindowProgress, changed_window
from tidegate.operators.windows.window_specs import PROCESSING_WINDOWS, PROGRESS, WINDOWS, WindowAggSpec
from tidegate.operators.windows.window_store import new_window_store
from tidegate.snapshot.partial_rows import count_partial_rows, is_partial
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.copy_on_write import Entries
from tidegate.state.keys.key_bytes import Int64s, valid_mask


class WindowAggregate(StreamOperator):
    """Aggregates event-time windows [start, end): a row belongs to the windows that contain its event time.

    If windows leave gaps between them, a row in a gap is dropped and counted under `outside_windows_dropped`.

    A window fires when the watermark reaches its end, and closes when the watermark is `lateness_us` further. Rows that
    arrive in between make it fire again after their batch, for their keys, with the result of all rows so far. A row is
    late if all its windows have closed: it goes to the side output `late`, or is dropped and counted under
    `late_dropped` (S4.4). Null is a key like any other. MAX_WATERMARK fires all unfired windows and closes all. Then
    time starts again: rows that arrive later open new windows, are never late, and their windows fire in `finish`
    (S7.2). Windows fire in order of time; keys within a window in the order in which they arrived, or in the order of
    the back end if state is outside memory (`BackendWindows`).

    State: `windows` (keyed: a row for each pane and key; panes of tumbling windows are the windows) and `progress`
    (keyed: the watermark of each key group, which decides which rows are late). `progress` never contains MAX_WATERMARK
    (S4.4), and after MAX_WATERMARK no watermark at all: drained inputs let the watermark run ahead of the rows that
    they deliver after a restore (S7.5). Rows that were late before are then not late, until every source subtask has
    emitted its watermark again. `snapshot` freezes the columns, whatever their size; the returned function writes them,
    large panes in chunks (S5.2).

    After a restore at another parallelism, key groups may come from subtasks with different watermarks. The operator's
    watermark is then the earliest of them, so that no row becomes late. Until it has caught up, rows are compared with
    the watermark of their own key group, so that no window fires twice.
    """

    _windows: HeapWindows

    def __init__(self, spec: WindowAggSpec) -> None:
        self._spec = spec
        assert spec.time_column is not None, "windows over processing time need ProcessingWindowAggregate"
        self._time = EventTimeColumn(spec.time_column, spec.time_unit)
        self._progress = WindowProgress(spec.shape, spec.lateness_us)

    def open(self, ctx: OperatorContext) -> None:
        """Open the storage of the windows."""
        super().open(ctx)
        self._windows = new_window_store(self._spec, ctx, WINDOWS)
        self._grid = self._windows.grid
        self._panes = PaneGroups(self._time, self._grid)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows to their windows. Emits windows that fire again, and late rows to the side output.

        A batch holds rows of the input, or partial rows: see `WindowPreAggregate`.

        Raises:
            SumOverflowError: a sum of integers does not fit int64.
            DataError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
        """
        if self._spec.is_partial or is_partial(batch.schema):
            self._merge(batch)
            return
        batch, times = self.timed_rows(batch)
        if batch.num_rows:
            yield from self._fired_again(batch, times)

    def timed_rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s]:
        """Return the rows that belong to windows, with their times in the unit of the grid. Counts all others.

        Raises:
            DataError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
        """
        times, nulls = self._time.times(batch)
        if nulls:
            self.ctx.count(NULL_TIME_DROPPED, nulls)
            batch = batch.filter(pa.array(valid_mask(batch.column(self._time.column))))
        if batch.num_rows:
            check_time_range(self._time, times, self.ctx)
            if self._grid.table is not None:
                low_us, high_us = (self._time.to_us(int(time)) for time in (times.min(), times.max()))
                where = f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}"
                self._grid.require_times(self._time.column, low_us, high_us, where)
            if not self._panes.whole_steps:
                times = self._time.as_us(times)
                if (outside := self._grid.outside(times)) is not None and outside.any():
                    self.ctx.count(OUTSIDE_DROPPED, int(outside.sum()))
                    batch, times = batch.filter(pa.array(~outside)), times[~outside]
        return batch, times

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit every window that ends at or before the watermark, in batches of at most `MAX_BATCH_ROWS` rows."""
        # Read before `advance` or `reset`, which drop it.
        passed_us = self._progress.passed_us
        if watermark_us == MAX_WATERMARK:
            yield from coalesce_batches(self._windows.fire(watermark_us, passed_us))
            self._progress.reset()
            self._windows.set_fired(self._progress.watermark_us)
            if self._grid.table is not None:
                self._grid.table.forget(watermark_us)
            return
        self._progress.advance(watermark_us)
        if self._grid.table is not None:
            self._grid.table.forget(self._progress.open_after_us)
        if watermark_us >= self._windows.next_end_us:
            yield from coalesce_batches(self._windows.fire(watermark_us, passed_us))
        else:
            self._windows.advance(watermark_us)

    def finish(self) -> Iterator[Output]:
        """Emit the windows of rows that arrived after MAX_WATERMARK."""
        yield from coalesce_batches(self._windows.fire(MAX_WATERMARK))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze every open window."""
        write = self._windows.snapshot(checkpoint_id, portable=self.portable)
        parts = [self._progress.part(self.ctx), *calendar_part(self._grid, self._progress.open_after_us)]
        return lambda: [*write(), *parts]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the open windows and the watermark.

        Raises:
            SnapshotError: the snapshot's keys, aggregates or windows differ from the pipeline's; names both (S5.5).
        """
        for part in parts:
            if part.name == PROGRESS:
                self._progress.restore(part.table, self.ctx)
            elif part.name == CALENDAR and self._grid.table is not None:
                self._grid.table.restore(part.table, self.ctx.uid)
            elif part.name == PROCESSING_WINDOWS:
                raise changed_window(self.ctx.uid, part.name, "the window is over processing time", "over event time")
        files = [part for part in parts if part.format != "rows"]
        if files:
            self._windows.restore_files(files)
        for part in parts:
            if part.name not in (PROGRESS, CALENDAR) and part.format == "rows":
                renamed = dict(self._spec.renamed)
                checked = single_part(part, self._windows.state_schema, self.ctx.uid, renamed, fills=False)
                self._windows.restore_rows(checked, self._progress)
        self._windows.set_fired(self._progress.watermark_us)
        self._windows.drop_fired(self._progress.watermark_us - self._spec.lateness_us)

    def close(self) -> None:
        """Close the storage of the windows."""
        if hasattr(self, "_windows"):
            self._windows.close()

    def _merge(self, batch: pa.RecordBatch) -> None:
        """Merge rows of `PartialWindowAggregate` or `WindowPreAggregate`. All rows of a pane are late, or none
        (S4.4)."""
        if not batch.num_rows:
            return
        starts_us = batch.column(0).to_numpy()
        if self._grid.table is not None:
            where = f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}"
            self._grid.require_times(self._time.column, int(starts_us.min()), int(starts_us.max()), where)
        keys = batch.schema.names[1 : 1 + len(self._spec.keys)]
        for part, its_starts_us, fired_us in self._progress.split(batch, starts_us, keys):
            self._merge_part(part, its_starts_us, self._progress.closed_at(fired_us))
        self._windows.limit_memory(batch, batch.schema.names)

    def _merge_part(self, batch: pa.RecordBatch, starts_us: Int64s, closed_us: int) -> None:
        """Merge partial rows of keys whose windows have closed up to `closed_us`."""
        width = 1 + len(self._spec.keys)
        end = width + self._windows.state_width
        grouped = group_by_number(self._grid.panes(starts_us))
        rows = batch if grouped.order is None else batch.take(pa.array(grouped.order))
        for number, start, stop in grouped.runs:
            part = rows.slice(start, stop - start)
            if self._windows.last_end_us(number) <= closed_us:
                self.ctx.count(LATE_DROPPED, count_partial_rows(part))
                continue
            self._windows.merge(number, part.columns[1:width], part.columns[width:end])

    def _fired_again(self, batch: pa.RecordBatch, times: Int64s) -> Iterator[Output]:
        """Add rows; rows of key groups with a later watermark are added separately."""
        for part, its_times, fired_us in self._progress.split(batch, times, self._spec.keys):
            closed_us = self._progress.closed_at(fired_us)
            yield from self.add_rows(self._windows, part, its_times, closed_us, fired_us)

    def add_rows(
        self, windows: HeapWindows, batch: pa.RecordBatch, times: Int64s, closed_us: int, fired_us: int
    ) -> Iterator[Output]:
        """Add rows of keys whose windows have fired up to `fired_us`, and closed up to `closed_us`."""
        grouped = self._panes.group(times)
        if grouped.order is not None:
            # Late rows are emitted with all columns. Otherwise only the used columns are copied.
            columns = batch.schema.names if LATE in self.ctx.side_outputs else windows.layout.used_columns
            batch = batch.select(columns).take(pa.array(grouped.order))
        rows = windows.layout.read(batch)
        touched: dict[int, Entries] = {}
        for number, start, stop in grouped.runs:
            if windows.last_end_us(number) <= closed_us:
                yield from late_rows(batch.slice(start, stop - start), self.ctx)
                continue
            entries = windows.add(number, rows, start, stop)
            if self._spec.lateness_us and windows.first_end_us(number, closed_us) <= fired_us:
                touched[number] = entries
        if touched:
            yield from coalesce_batches(windows.refire(touched, closed_us, fired_us))
        windows.limit_memory(batch, windows.layout.used_columns)


def window_operator(spec: WindowAggSpec) -> StreamOperator:
    """Create the operator for event-time or processing-time windows."""
    return ProcessingWindowAggregate(spec) if spec.time_column is None else WindowAggregate(spec)
