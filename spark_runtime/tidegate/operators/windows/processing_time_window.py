"""ProcessingWindowAggregate: aggregates per key over tumbling or sliding processing-time windows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.log_format import context
from tidegate.operators.batch_sizes import coalesce_batches
from tidegate.operators.restored_parts import evolve_rows, single_part
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.calendar import CALENDAR
from tidegate.operators.time.late_rows import PROCESSING_TIME_DROPPED
from tidegate.operators.windows.heap_windows import HeapWindows
from tidegate.operators.windows.window_grid import OUTSIDE_DROPPED, FixedGrid, calendar_part
from tidegate.operators.windows.window_progress import WindowProgress, changed_window
from tidegate.operators.windows.window_specs import PROCESSING_WINDOWS, PROGRESS, WindowAggSpec
from tidegate.operators.windows.window_store import new_window_store
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keys.key_bytes import Int64s

END_COLUMN = "window_end_us"

logger = logging.getLogger("tidegate.operators")


class ProcessingWindowAggregate(StreamOperator):
    """Aggregates processing-time windows [start, end): a batch belongs to the windows that contain the current time.

    A window fires when the clock has reached its end, or when the input really ends, and its state is deleted. No row
    is late. If the clock was set back between two runs, rows may arrive in a window that has fired: it fires again,
    with these rows only. Null is a key like any other. Windows fire in order of time; keys within a window in the order
    in which they arrived, or in the order of the back end if state is outside memory (`BackendWindows`). Watermarks are
    forwarded, and have no effect here except MAX_WATERMARK.

    At the end of the input open windows fire once. With `processing_time_on_end="drop"` they are dropped, counted under
    `processing_time_dropped`, and logged. Rows that arrive after the end are dropped and counted (S7.6). MAX_WATERMARK
    is this end, because it means that every input has ended: later results would be late for event-time windows
    downstream. On suspend there is no MAX_WATERMARK, and open windows stay in the savepoint.

    State: `processing_windows` (keyed: a row for each pane and key, with both bounds; panes of tumbling windows are the
    windows). Sliding windows also have `progress`: how far they have fired. A restored window whose end has passed
    fires at once.
    """

    _windows: HeapWindows

    def __init__(self, spec: WindowAggSpec) -> None:
        self._spec = spec
        self._progress = WindowProgress(spec.shape, spec.lateness_us)
        self._has_ended = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the storage of the windows."""
        super().open(ctx)
        self._windows = new_window_store(self._spec, ctx, PROCESSING_WINDOWS)
        self._grid = self._windows.grid
        self._state_schema = self._windows.state_schema.append(pa.field(END_COLUMN, pa.int64()))

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows to the windows of the current time. Emits nothing. Raises SumOverflowError."""
        if self._has_ended:
            self.ctx.count(PROCESSING_TIME_DROPPED, batch.num_rows)
        elif batch.num_rows:
            self._add(batch)
        return iter(())

    def next_processing_time_ms(self) -> int | None:
        """Return the end of the first open window."""
        end_us = self._windows.next_end_us
        # Rounded up, because in the millisecond before its end the window is still open.
        return None if end_us == MAX_WATERMARK else -(-end_us // 1000)

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Emit every window that has ended, in batches of at most `MAX_BATCH_ROWS` rows."""
        # Read before `advance`, which drops it when all key groups have caught up.
        passed_us = self._progress.passed_us
        self._progress.advance(now_ms * 1000)
        yield from coalesce_batches(self._windows.fire(now_ms * 1000, passed_us))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """At MAX_WATERMARK emit or drop every open window, so that the results precede MAX_WATERMARK (S7.6)."""
        if watermark_us == MAX_WATERMARK:
            yield from self._end()

    def has_pending_rows(self) -> bool:
        """True while a window is open: the clock will emit its rows."""
        return bool(self._windows)

    def finish(self) -> Iterator[Output]:
        """Close all windows. Later rows open no window (S7.6)."""
        yield from self._end()
        self._has_ended = True

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze every open window."""
        write = self._windows.snapshot(checkpoint_id, portable=self.portable, finish=self._with_end)
        progress = [self._progress.part(self.ctx)] if self._keeps_progress else []
        progress += calendar_part(self._grid, self._progress.watermark_us)
        return lambda: [*write(), *progress]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the open windows.

        Raises:
            SnapshotError: the snapshot's keys, aggregates or windows differ from the pipeline's; names both (S5.5).
        """
        rows = [part for part in parts if part.format == "rows"]
        for part in rows:
            if part.name == PROGRESS and self._keeps_progress:
                self._progress.restore(part.table, self.ctx)
            elif part.name == CALENDAR and self._grid.table is not None:
                self._grid.table.restore(part.table, self.ctx.uid)
            elif part.name != PROCESSING_WINDOWS:
                raise changed_window(self.ctx.uid, part.name, "the window is over event time", "over processing time")
        if len(rows) < len(parts):
            self._windows.restore_files([part for part in parts if part.format != "rows"])
        for part in rows:
            if part.name == PROCESSING_WINDOWS:
                renamed = dict(self._spec.renamed)
                checked = single_part(part, self._state_schema, self.ctx.uid, renamed, fills=False)
                self._windows.restore_rows(evolve_rows(checked, self._without_end), self._progress)
        self._windows.set_fired(self._progress.watermark_us)

    def close(self) -> None:
        """Close the storage of the windows."""
        if hasattr(self, "_windows"):
            self._windows.close()

    def _add(self, batch: pa.RecordBatch) -> None:
        now_us = self.ctx.processing_time_ms() * 1000
        moment = np.array([now_us])
        if (outside := self._grid.outside(moment)) is not None and outside[0]:
            self.ctx.count(OUTSIDE_DROPPED, batch.num_rows)
            return
        number = int(self._grid.panes(moment)[0])
        if now_us < self._progress.watermark_us:
            self._set_back(now_us)
        self._windows.add(number, self._windows.layout.read(batch), 0, batch.num_rows)
        self._windows.limit_memory(batch, self._windows.layout.used_columns)

    def _set_back(self, now_us: int) -> None:
        self._progress.watermark_us, self._progress.passed_us = now_us, None
        self._windows.set_fired(now_us)

    def _with_end(self, table: pa.Table) -> pa.Table:
        return table.append_column(self._state_schema.field(-1), [self._ends_us(table)])

    def _without_end(self, table: pa.Table) -> pa.Table:
        self._check_bounds(table)
        return table.drop_columns([END_COLUMN])

    def _ends_us(self, table: pa.Table) -> Int64s:
        """Return the ends of the panes of rows."""
        starts_us = table["window_start_us"].to_numpy()
        if isinstance(self._grid, FixedGrid):
            return starts_us + self._grid.pane_us
        return self._grid.window_end(starts_us)

    @property
    def _keeps_progress(self) -> bool:
        """Return whether windows overlap or follow a calendar, so that their bounds do not show whether they have
        fired."""
        return self._spec.slide_us > 0 or self._spec.calendar is not None

    def _end(self) -> Iterator[Output]:
        if self.ctx.processing_time_on_end == "drop":
            self._drop()
        else:
            yield from coalesce_batches(self._windows.fire(MAX_WATERMARK))

    def _drop(self) -> None:
        results = self._windows.drop()
        if not results:
            return
        self.ctx.count(PROCESSING_TIME_DROPPED, results)
        logger.warning(
            "the input has ended; %d results of open windows are dropped, because processing_time_on_end='drop' "
            "is set; nothing to do",
            results,
            extra=context(operator=self.ctx.uid, subtask=self.ctx.subtask),
        )

    def _check_bounds(self, table: pa.Table) -> None:
        """Check that restored windows fit this pipeline: a window with other bounds would have too few or too many
        rows."""
        if not isinstance(self._grid, FixedGrid):  # its part `calendar` was compared already
            return
        starts_us = table["window_start_us"].to_numpy()
        sizes_us = table[END_COLUMN].to_numpy() - starts_us
        size_us, offset_us = self._grid.pane_us, self._grid.offset_us
        foreign = np.flatnonzero((sizes_us != size_us) | ((starts_us - offset_us) % size_us != 0))
        if foreign.size:
            size, start = int(sizes_us[foreign[0]]), int(starts_us[foreign[0]])
            was = f"size, offset in us were {size}, {start % size}"
            raise changed_window(self.ctx.uid, PROCESSING_WINDOWS, was, f"{size_us}, {offset_us}")
