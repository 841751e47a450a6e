"""IdlingWatermarkOperator: watermarks that do not wait for silent splits (S4.4)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.operators.stream_operator import OperatorContext, Output
from tidegate.operators.specs import WatermarkSpec
from tidegate.operators.time.watermark import WatermarkOperator

TICKS = 8
"""Looks at the clock in the time after which a split is idle."""


class IdlingWatermarkOperator(WatermarkOperator):
    """A split that has brought nothing for `idle_after_ms` is left out of the minimum until it brings something; what
    that is, may be late. When all are silent the subtask says downstream that it is idle.

    Silence is counted in ticks, of which each counts for no more than its length however much later it comes, and none
    while the source is paused or rows wait for a checkpoint to align: a subtask that stood still, since what is
    downstream was full, has not heard that there is nothing, and its watermark must not run away from rows that wait in
    front of it. It is no state: after a restore every split counts as one that has just been heard of.
    """

    def __init__(self, spec: WatermarkSpec) -> None:
        super().__init__(spec)
        assert spec.idle_after_ms is not None, "then it is a WatermarkOperator"
        self._idle_after_ms = spec.idle_after_ms
        self._tick_ms = max(1, spec.idle_after_ms // TICKS)
        self._silent_ms: dict[str | None, int] = {}
        self._counted_ms = 0

    def open(self, ctx: OperatorContext) -> None:
        """Count from now on."""
        super().open(ctx)
        self._counted_ms = ctx.processing_time_ms()

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """The split is active."""
        self._count(self.ctx.processing_time_ms())
        self._silent_ms[self.ctx.current_split] = 0
        yield from super().process(batch, input_index)

    def next_processing_time_ms(self) -> int | None:
        """The next tick, while some split is not idle."""
        return None if self.idles() else self._counted_ms + self._tick_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """The watermark advances when what held it back has become idle."""
        self._count(now_ms)
        yield from self._advance()

    def idles(self) -> bool:
        """Every split is idle."""
        return all(self._is_idle(split) for split in self._heeded())

    def _is_idle(self, split: str | None) -> bool:
        return self._silent_ms.get(split, 0) >= self._idle_after_ms

    def _count(self, now_ms: int) -> None:
        past_ms = min(now_ms - self._counted_ms, self._tick_ms)
        self._counted_ms = now_ms
        splits = self._heeded()
        if past_ms > 0 and not self.ctx.input_held:
            self._silent_ms = {split: self._silent_ms.get(split, 0) + past_ms for split in splits}
