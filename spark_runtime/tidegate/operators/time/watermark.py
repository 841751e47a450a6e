"""WatermarkOperator: makes watermarks from event times (S4.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart

NULL_EVENT_TIME = "null_event_time"
"""Counter: rows without an event time; they are passed on and move no watermark."""

PROGRESS_SCHEMA = pa.schema(
    [
        pa.field("split", pa.string()),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("untold", pa.bool_(), nullable=False),
        pa.field(OWNER_COLUMN, pa.int32()),
    ]
)
"""State `progress`: the latest time seen in each split; split null: outside a source's chain; `untold`: nothing of it
has been emitted since a drain (ADR 0020; absent in snapshots of before: told). No row has an owner: at another
parallelism every subtask learns the times of all splits, and heeds those of its own."""


class WatermarkOperator(StreamOperator):
    """Watermark = minimum over the active splits of the latest time seen in each, minus the delay; emitted after the
    batch that advanced it, never going back.

    An active split without a record yet holds it back; a finished one drops out. Outside a source's chain all input
    counts as one split. Watermarks from upstream stop here, but MAX_WATERMARK, which is never state (S4.4). State: the
    progress of each split, so that a restored run holds back as the old one did; at another parallelism outside a
    source's chain as the furthest behind of the old subtasks did. Behind a drain, where nobody downstream remembers its
    watermark and no row is in flight, a run tells it ahead of the first batch (S7.5); elsewhere it could pass such.
    What a run owes that has not come to its first batch, the next one owes: it is state.
    """

    def __init__(self, spec: WatermarkSpec) -> None:
        self._time = EventTimeColumn(spec.column, spec.unit)
        self._delay_us = spec.delay_us
        self._progress: dict[str | None, int] = {}
        self._current_us = MIN_WATERMARK
        self._untold: frozenset[str | None] = frozenset()

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back the progress of each split; of one that the state tells twice the earlier time, and untold only
        where both say so."""
        told: set[str | None] = set()
        for row in (row for part in parts for row in part.table.to_pylist()):
            known = self._progress.get(row["split"], MAX_WATERMARK)
            self._progress[row["split"]] = min(known, row["time_us"])
            if not (self.ctx.after_drain or row.get("untold", False)):
                told.add(row["split"])
        self._untold = frozenset(self._progress) - told

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """The batch, then a watermark when it advanced."""
        if self._untold:
            is_due = self._untold.issuperset(split for split in self._relevant_splits() if split in self._progress)
            self._untold = frozenset()
            if is_due:
                yield from self._advance()
        yield batch
        times, nulls = self._time.times(batch)
        if nulls:
            self.ctx.count(NULL_EVENT_TIME, nulls)
        if len(times):
            split = self.ctx.current_split
            latest = min(self._time.to_us(int(times.max())), MAX_WATERMARK - 1)
            self._progress[split] = max(self._progress.get(split, MIN_WATERMARK), latest)
        yield from self._advance()

    def _advance(self) -> Iterator[Output]:
        low = self._least()
        if low is not None and low - self._delay_us > self._current_us:
            self._current_us = low - self._delay_us
            yield Watermark(self._current_us)

    def forwards_watermarks(self) -> bool:
        """They stop here."""
        return False

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Progress of the splits that still matter. Of none, an input that has had no record tells so: at another
        parallelism it may be joined by others."""
        active = self.ctx.active_splits
        kept = {split: time_us for split, time_us in self._progress.items() if split is None or split in active}
        if not active:
            kept.setdefault(None, MIN_WATERMARK)
        untold = [split in self._untold for split in kept]
        columns = [list(kept), list(kept.values()), untold, [None] * len(kept)]
        table = pa.table(columns, schema=PROGRESS_SCHEMA)
        return lambda: [StatePart("progress", "list", table)]

    def _relevant_splits(self) -> frozenset[str | None]:
        """Splits that matter; outside a source's chain all input is one."""
        return frozenset(self.ctx.active_splits) or frozenset((self.ctx.current_split,))

    def _is_idle(self, split: str | None) -> bool:
        """It is left out of the minimum."""
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


IDLE_CHECKS_PER_TIMEOUT = 8
"""Looks at the clock in the time after which a split is idle."""


class IdleAwareWatermarkOperator(WatermarkOperator):
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
        self._tick_ms = max(1, spec.idle_after_ms // IDLE_CHECKS_PER_TIMEOUT)
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
        return None if self.is_idle() else self._counted_ms + self._tick_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """The watermark advances when what held it back has become idle."""
        self._count(now_ms)
        yield from self._advance()

    def is_idle(self) -> bool:
        """Every split is idle."""
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
    """One that leaves silent splits out, where the spec says after which time."""
    return WatermarkOperator(spec) if spec.idle_after_ms is None else IdleAwareWatermarkOperator(spec)
