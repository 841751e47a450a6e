"""How fast a source may emit, computed from the injected clock alone (no sleeping, no clock of its own)."""

from __future__ import annotations

import math

PACING_TICK_MS = 5
"""A paced source emits at most one batch per tick, so that a low rate makes few batches and a high one adds little
latency."""


class RowPacer:
    """Rows that are due at a steady rate since the first question asked.

    A source that was held up (full output, alignment) catches up: due rows are counted from the start, not from the
    last batch. Not durable: after a restore the count starts anew with the first poll.

    Args:
        rows_per_s: rate, > 0.
    """

    __slots__ = ("_emitted", "_per_ms", "_start_ms")

    def __init__(self, rows_per_s: float) -> None:
        self._per_ms = rows_per_s / 1000.0
        self._start_ms: int | None = None
        self._emitted = 0

    def due(self, now_ms: int) -> int:
        """Rows that may be emitted at `now_ms`; the first call starts the clock and gives one row."""
        if self._start_ms is None:
            self._start_ms = now_ms
        return max(0, 1 + math.floor((now_ms - self._start_ms) * self._per_ms) - self._emitted)

    def emitted(self, rows: int) -> None:
        """`rows` were emitted."""
        self._emitted += rows

    def next_due_ms(self, now_ms: int) -> int:
        """When to ask again: the time of the next row, at least one tick from now."""
        if self._start_ms is None:
            return now_ms
        return max(now_ms + PACING_TICK_MS, self._start_ms + math.ceil(self._emitted / self._per_ms))
