"""Pacing of sources: how many rows are due, computed from the injected clock alone, without sleeping."""

from __future__ import annotations

import math

BATCHES_PER_S = 200
"""Batches of one paced split in a second, at most: one each 5 ms.

A batch has a fixed cost in every operator and every channel. Without this limit, a busy loop polls so often that
batches shrink to single rows, and their cost keeps the loop busy. All splits emit at the same times of the clock: the
batches are then merged after an exchange, and no watermark waits for another split. 100 ms hold a whole number of
batches, so windows that end at such a time are complete without a wait for the next batch.
"""


FEW_ROWS = 64
"""Rows of a batch up to which it costs the same, whatever their number. Splits with fewer rows in each interval emit
less often: a sixth of the CPU time for half a millisecond of latency."""
FEW_ROWS_BATCHES_PER_S = 170
"""Batches of such a split in a second, at most."""


class BatchPacer:
    """Limits one paced split to one batch in each interval, however often the source is polled.

    Attributes:
        opens_ms: no batch is emitted before this time.
    """

    __slots__ = ("_per_s", "opens_ms")

    def __init__(self, batches_per_s: int = BATCHES_PER_S) -> None:
        self._per_s = batches_per_s
        self.opens_ms = 0

    def next_tick_ms(self, now_ms: int) -> int:
        """Return the first multiple of the interval after `now_ms`, rounded up to a whole millisecond."""
        ticks = now_ms * self._per_s // 1000 + 1
        return -(ticks * 1000 // -self._per_s)

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
        has_few_rows = rows_per_s < FEW_ROWS * BATCHES_PER_S
        self._tick = BatchPacer(FEW_ROWS_BATCHES_PER_S if has_few_rows else BATCHES_PER_S)

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
