"""Aggregates windows before the rows are sent to the subtasks of their keys, in batch mode."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.operators.batch_sizes import coalesce_batches
from tidegate.operators.stream_operator import Output
from tidegate.operators.windows.heap_windows import HeapWindows
from tidegate.operators.windows.window_aggregate import WindowAggregate
from tidegate.operators.windows.window_specs import PartialWindowSpec

MAX_ENTRIES = 1 << 20
"""Keys, in all panes together, after which the rows are emitted. About 100 MB with a few numbers for each."""
MIN_ROWS_PER_ENTRY = 2
"""If fewer rows share an entry, aggregating saves no rows of the exchange: the memory is then emptied more often."""
FEW_ENTRIES = 1 << 16
"""Keys after which the rows are emitted if keys hardly repeat. They fit into the processor's cache."""


class PartialWindowAggregate(WindowAggregate):
    """Emits the state of panes: a row for each pane and key, possibly several times. The operator of the windows merges
    them. Stateless for snapshots, because batch mode takes none."""

    def __init__(self, spec: PartialWindowSpec) -> None:
        super().__init__(spec.window)
        self._limit = MAX_ENTRIES
        self._rows = 0

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows to their panes. Emits all panes if the memory is full.

        Raises:
            SumOverflowError: a sum of integers does not fit int64.
            DataError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
        """
        windows = self._windows
        assert isinstance(windows, HeapWindows), "batch mode keeps windows in memory"
        batch, times = self.timed_rows(batch)
        if not batch.num_rows:
            return
        yield from self.add_rows(windows, batch, times, MIN_WATERMARK, MIN_WATERMARK)
        self._rows += batch.num_rows
        entries = windows.entries
        if entries >= self._limit:
            self._limit = FEW_ENTRIES if self._rows < MIN_ROWS_PER_ENTRY * entries else MAX_ENTRIES
            self._rows = 0
            yield from coalesce_batches(windows.take_panes())

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit nothing: rows are emitted in `finish`."""
        return iter(())

    def finish(self) -> Iterator[Output]:
        """Emit all panes."""
        assert isinstance(self._windows, HeapWindows)
        yield from coalesce_batches(self._windows.take_panes())
