"""WatermarkOperator: derives watermarks from event times (S4.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart

NULL_EVENT_TIME = "null_event_time"
"""Counter: rows without an event time; they are emitted, and do not change the watermark."""

PROGRESS_SCHEMA = pa.schema(
    [
        pa.field("split", pa.string()),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("untold", pa.bool_(), nullable=False),
        pa.field(OWNER_COLUMN, pa.int32()),
    ]
)
"""State `progress`: the latest time seen in each split.

`split` is null outside a source's chain. `untold` is true if no watermark of the split was emitted since a drain (ADR
0016); older snapshots do not have this column, which means false. Every subtask restores all rows, and uses the rows of
its own splits.
"""
IDLE_CHECKS_PER_TIMEOUT = 8
"""How often a split's idle time is checked until its timeout."""


class WatermarkOperator(StreamOperator):
    """Emits the watermark: the minimum over the active splits of the latest time seen in each, minus the delay.

    The watermark is emitted after the batch that advanced it, and never decreases. An active split without a record
    holds it back. A finished split is ignored. Outside a source's chain all input counts as one split. Watermarks from
    upstream stop here, except MAX_WATERMARK, which is never part of the state (S4.4).

    State: the progress of each split, so that a restored run continues with the same watermark. Outside a source's
    chain, at another parallelism, it continues with the earliest of the old subtasks' times.

    After a drain, no operator downstream remembers its watermark, and no row is in flight. A run then emits its
    restored watermark before its first batch (S7.5). In other cases that watermark could overtake rows in flight. A run
    that ends before its first batch keeps the obligation in its state, for the next run.
    """

    def __init__(self, spec: WatermarkSpec) -> None:
        self._time = EventTimeColumn(spec.column, spec.unit)
        self._delay_us = spec.delay_us
        self._progress: dict[str | None, int] = {}
        self._current_us = MIN_WATERMARK
        self._unannounced: frozenset[str | None] = frozenset()

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the progress of each split. If the state has a split twice, the earlier time is used, and the split
        counts as `untold` only if both rows are."""
        announced: set[str | None] = set()
        for row in (row for part in parts for row in part.table.to_pylist()):
            known = self._progress.get(row["split"], MAX_WATERMARK)
            self._progress[row["split"]] = min(known, row["time_us"])
            if not (self.ctx.after_drain or row.get("untold", False)):
                announced.add(row["split"])
        self._unannounced = frozenset(self._progress) - announced

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the batch, then a watermark if it advanced."""
        if self._unannounced:
            is_due = self._unannounced.issuperset(split for split in self._relevant_splits() if split in self._progress)
            self._unannounced = frozenset()
            if is_due:
                yield from self._advance()
        yield batch
        times, nulls = self._time.times(batch)
        if nulls:
            self.ctx.count(NULL_EVENT_TIME, nulls)
        if len(times):
            split = self.ctx.current_split
            # MAX_WATERMARK itself would mean the end of the input.
            latest = min(self._time.to_us(int(np.maximum.reduce(times))), MAX_WATERMARK - 1)
            self._progress[split] = max(self._progress.get(split, MIN_WATERMARK), latest)
        yield from self._advance()

    def _advance(self) -> Iterator[Output]:
        low = self._least()
        if low is not None and low - self._delay_us > self._current_us:
            self._current_us = low - self._delay_us
            yield Watermark(self._current_us)

    def forwards_watermarks(self) -> bool:
        """False: watermarks from upstream stop here."""
        return False

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the progress of active splits.

        An input without splits and without a record is stored too, with MIN_WATERMARK: at another parallelism it may be
        merged with others, and must hold the watermark back.
        """
        active = self.ctx.active_splits
        kept = {split: time_us for split, time_us in self._progress.items() if split is None or split in active}
        if not active:
            kept.setdefault(None, MIN_WATERMARK)
        untold = [split in self._unannounced for split in kept]
        columns = [list(kept), list(kept.values()), untold, [None] * len(kept)]
        table = pa.table(columns, schema=PROGRESS_SCHEMA)
        return lambda: [StatePart("progress", "list", table)]

    def _relevant_splits(self) -> frozenset[str | None]:
        """Return the active splits; outside a source's chain all input is one split."""
        return frozenset(self.ctx.active_splits) or frozenset((self.ctx.current_split,))

    def _is_idle(self, split: str | None) -> bool:
        """Return whether the split is ignored in the minimum."""
        return False

    def _least(self) -> int | None:
        splits = self.ctx.active_splits
        if not splits:
            return self._progress.get(self.ctx.current_split)
        active = [split for split in splits if not self._is_idle(split)]
        if not active:
            return None
        if not all(split in self._progress for split in active):
            return None
        return min(self._progress[split] for split in active)


class IdleAwareWatermarkOperator(WatermarkOperator):
    """Ignores a split in the minimum if it has had no rows for `idle_after_ms`, until it has rows again.

    These rows may be late. When all splits are idle, the subtask reports itself idle downstream.

    Idle time is counted in ticks. A tick counts for at most its length, however late it comes. No time is counted while
    the source is paused or rows wait for a checkpoint to align: a subtask that was blocked by a full output has not
    checked for rows, and its watermark must not overtake rows that wait upstream. Idle time is not part of the state:
    after a restore it starts at zero.
    """

    def __init__(self, spec: WatermarkSpec) -> None:
        super().__init__(spec)
        assert spec.idle_after_ms is not None, "without a timeout, WatermarkOperator is used"
        self._idle_after_ms = spec.idle_after_ms
        self._tick_ms = max(1, spec.idle_after_ms // IDLE_CHECKS_PER_TIMEOUT)
        self._silent_ms: dict[str | None, int] = {}
        self._counted_ms = 0

    def open(self, ctx: OperatorContext) -> None:
        """Start counting idle time."""
        super().open(ctx)
        self._counted_ms = ctx.processing_time_ms()

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Process rows: their split is active."""
        self._count(self.ctx.processing_time_ms())
        self._silent_ms[self.ctx.current_split] = 0
        yield from super().process(batch, input_index)

    def next_processing_time_ms(self) -> int | None:
        """Return the time of the next tick, while a split is not idle."""
        return None if self.is_idle() else self._counted_ms + self._tick_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Advance the watermark if the split that held it back has become idle."""
        self._count(now_ms)
        yield from self._advance()

    def is_idle(self) -> bool:
        """Return whether every split is idle."""
        return all(self._is_idle(split) for split in self._relevant_splits())

    def _is_idle(self, split: str | None) -> bool:
        return self._silent_ms.get(split, 0) >= self._idle_after_ms

    def _count(self, now_ms: int) -> None:
        past_ms = min(now_ms - self._counted_ms, self._tick_ms)
        self._counted_ms = now_ms
        splits = self._relevant_splits()
        if past_ms > 0 and not self.ctx.input_held:
            self._silent_ms = {split: self._silent_ms.get(split, 0) + past_ms for split in splits}


def watermark_operator(spec: WatermarkSpec) -> StreamOperator:
    """Create the operator; with an idle timeout, it ignores idle splits."""
    return WatermarkOperator(spec) if spec.idle_after_ms is None else IdleAwareWatermarkOperator(spec)
