"""An operator of simulated jobs that waits for the clock: rows go on as they are, later (S7.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from simulator.rows import SCHEMA, Pass, Row, RowSpec, batch_of, owners, rows_of
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.operator_registry import register_operator
from tidegate.operators.stream_operator import OperatorContext, Output
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.snapshot.streams import decode_parts

DELAY_MS = 400
"""Rows wait for the next multiple of this."""
STATE = "delayed"
STATE_SCHEMA = pa.schema([*SCHEMA, pa.field("due_ms", pa.int64()), pa.field(KEY_GROUP_COLUMN, pa.uint16())])


class DelaySpec(RowSpec):
    """Description of a `Delay`."""


register_operator(DelaySpec, "simulator.delay:Delay")


class Delay(Pass):
    """Keyed state: rows, each with the processing time at which it goes on, in order of arrival. They go on early when
    their input ends, and stay in a savepoint when it is suspended."""

    def __init__(self, spec: RowSpec) -> None:
        super().__init__(spec)
        self._held: deque[tuple[int, Row]] = deque()
        self._has_ended = False

    def open(self, ctx: OperatorContext) -> None:
        """Learn which keys are its own."""
        super().open(ctx)
        self._owners = owners(ctx.parallelism, ctx.max_parallelism)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take rows back, the earliest due first, so that those of a key stay in order."""
        held: list[tuple[int, Row]] = []
        for part in parts:
            for batch in part.table.to_batches():
                rows = rows_of(batch.select(SCHEMA.names))
                held += zip(batch.column("due_ms").to_pylist(), rows, strict=True)
        self._held.extend(sorted(held, key=lambda item: item[0]))
        if any(self._owners[row[3]][1] != self.ctx.subtask for _, row in self._held):
            self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] was given rows of another subtask")

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Keep them."""
        if self._has_ended:
            self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] got rows behind its end")
        now_ms = self.ctx.processing_time_ms()
        if now_ms != self._spec.observer.now_ms():
            self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] was told {now_ms} for the time")
        due_ms = (now_ms // DELAY_MS + 1) * DELAY_MS
        self._held.extend((due_ms, row) for row in rows_of(batch))
        yield from ()

    def next_processing_time_ms(self) -> int | None:
        """Of the first row."""
        return self._held[0][0] if self._held else None

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Those that are due go on."""
        if self._has_ended or not self._held or now_ms < self._held[0][0]:
            self._spec.observer.violation(f"{self.ctx.uid}[{self.ctx.subtask}] was called at {now_ms} for nothing")
        yield from self._pass_on(now_ms)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """The end of every input."""
        if watermark_us == MAX_WATERMARK:
            yield from self._pass_on(None)

    def finish(self) -> Iterator[Output]:
        """Nothing waits any more."""
        yield from self._pass_on(None)
        self._has_ended = True

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """One keyed part."""
        frozen = tuple(self._held)
        return lambda: [StatePart(STATE, "keyed", self._table(frozen))]

    def _pass_on(self, until_ms: int | None) -> Iterator[Output]:
        rows: list[Row] = []
        while self._held and (until_ms is None or self._held[0][0] <= until_ms):
            rows.append(self._held.popleft()[1])
        if rows:
            yield batch_of(self._through(rows))

    def _table(self, held: Sequence[tuple[int, Row]]) -> pa.Table:
        rows = batch_of([row for _, row in held])
        groups = np.array([self._owners[row[3]][0] for _, row in held], np.uint16)
        return pa.table([*rows.columns, pa.array([due for due, _ in held], pa.int64()), groups], schema=STATE_SCHEMA)


def rows_delayed(stream: bytes) -> list[Row]:
    """The rows that a state stream of a `Delay` holds: they have still to pass it."""
    tables = [part.table for part in decode_parts(stream) if part.name == STATE]
    return [row for table in tables for batch in table.to_batches() for row in rows_of(batch.select(SCHEMA.names))]
