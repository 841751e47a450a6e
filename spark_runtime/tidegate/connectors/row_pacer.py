"""Pacing of sources: how many rows are due, computed from the injected clock alone, without sleeping."""

from __future__ import annotations

import math

MIN_BATCH_INTERVAL_MS = 5
"""Time between two batches of one paced split, milliseconds.

A batch has a fixed cost in every operator and every channel. Without this limit, a busy loop polls so often that
batches shrink to single rows, and their cost keeps the loop busy. Batches are emitted at multiples of this time, so
that all splits emit at once: the batches are then merged after an exchange, and no watermark waits for another split.
"""


FEW_ROWS = 64
"""Rows of a batch up to which it costs the same, whatever their number. Splits with fewer rows in each interval have a
longer one: a sixth of the CPU time for half a millisecond of latency."""
FEW_ROWS_INTERVAL_MS = 6
"""Time between two batches of such a split, milliseconds."""


class BatchPacer:
    """Limits one paced split to one batch in each interval, however often the source is polled.

    Attributes:
        opens_ms: no batch is emitted before this time.
    """

    __slots__ = ("_interval_ms", "opens_ms")

    def __init__(self, interval_ms: int = MIN_BATCH_INTERVAL_MS) -> None:
        self._interval_ms = interval_ms
        self.opens_ms = 0

    def next_tick_ms(self, now_ms: int) -> int:
        """Return the first multiple of the interval after `now_ms`."""
        return (now_ms // self._interval_ms + 1) * self._interval_ms

    def is_open(self, now_ms: int) -> bool:
        """Return whether a batch may be emitted at `now_ms`."""
        return now_ms >= self.opens_ms

    def emitted(self, now_ms: int, *, rows_left: bool) -> None:
        """Record a batch. `rows_left`: more rows were due than fit the batch; then the next batch need not wait."""
        if not rows_left:
            self.opens_ms = self.next_tick_ms(now_ms)


class RowPacer:
    """Counts rows that are due at a steady rate since the first call of `due`, at most one batch per interval.

    A source that was held up (full output, alignment) catches up: due rows are counted from the start, not from the
    last batch. The count is not durable: after a restore it starts again with the first poll.

    Args:
        rows_per_s: rate, > 0.
    """

    __slots__ = ("_emitted", "_per_ms", "_start_ms", "_tick")

    def __init__(self, rows_per_s: float) -> None:
        self._per_ms = rows_per_s / 1000.0
        self._start_ms: int | None = None
        self._emitted = 0
        has_few_rows = self._per_ms * MIN_BATCH_INTERVAL_MS < FEW_ROWS
        self._tick = BatchPacer(FEW_ROWS_INTERVAL_MS if has_few_rows else MIN_BATCH_INTERVAL_MS)

    def due(self, now_ms: int) -> int:
        """Return the number of rows that may be emitted at `now_ms`. The first call starts the clock and returns one
        row.
        """
        if self._start_ms is None:
            self._start_ms = now_ms
        return self._rows_due(self._start_ms, now_ms) if self._tick.is_open(now_ms) else 0

    def emitted(self, rows: int, now_ms: int) -> None:
        """Record that `rows` were emitted at `now_ms`."""
        assert self._start_ms is not None, "emitted() called before due()"
        self._emitted += rows
        self._tick.emitted(now_ms, rows_left=self._rows_due(self._start_ms, now_ms) > 0)

    def next_due_ms(self, now_ms: int) -> int:
        """Return when to call `due` again: the time of the next row, but not before the next tick."""
        if self._start_ms is None:
            return now_ms
        next_row_ms = self._start_ms + math.ceil(self._emitted / self._per_ms)
        if self._tick.is_open(now_ms):
            return max(self._tick.next_tick_ms(now_ms), next_row_ms)
        return max(self._tick.opens_ms, next_row_ms)

    def _rows_due(self, start_ms: int, now_ms: int) -> int:
        return max(0, 1 + math.floor((now_ms - start_ms) * self._per_ms) - self._emitted)
