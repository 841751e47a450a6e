"""TransformWithState: runs a PySpark StatefulProcessor, with keyed state in a back end."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import TimerValues

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark, batch_bytes
from tidegate.compat.pyspark_stateful.initial_state import InitialState
from tidegate.compat.pyspark_stateful.processor_calls import CurrentTimes, OutputEventTime, ProcessorCalls
from tidegate.compat.pyspark_stateful.processor_handle import ProcessorHandle
from tidegate.compat.pyspark_stateful.processor_rows import PandasFrames, RowObjects
from tidegate.compat.pyspark_stateful.processor_specs import (
    COMPLETE_STATE,
    INITIAL,
    WAITING_STATE,
    StatefulProcessorSpec,
)
from tidegate.compat.pyspark_stateful.timer_overlay import TimerOverlay
from tidegate.errors import SnapshotError
from tidegate.log_format import context
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.processes.process_timers import Phase, UserTimers, count_dropped
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.late_rows import LATE_DROPPED
from tidegate.operators.time.passed_watermarks import PASSED_STATE, WatermarkByKeyGroup
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import KeyedStateBackend, KeySet, TimerKind

logger = logging.getLogger("tidegate.compat")

LEAST_MERGED_BYTES, MERGED_BYTES_OF_ROWS, MERGED_BYTES_OF_FRAMES = 2**20, 16 * 2**20, 64 * 2**20
"""Sizes of merged batches: the least, the first and the most for `Row` objects, the most for frames.

A call costs as much as ten rows, with frames as a thousand, and a larger batch has more rows for each key. But a
barrier waits until the batch is processed. A batch whose keys hardly repeat should be small, because a large one has
nearly as many calls for each row."""
REPEATED = 1.5
"""Rows for each key of a merged batch from which on a larger batch has clearly fewer calls for each row."""

INITIAL_IGNORED = "initial_state_ignored"
"""Counter: rows of an initial state that are ignored because the operator was restored from a snapshot."""


class TransformWithState(StreamOperator):
    """Calls the processor once for each key and batch, then with the timers that are due.

    Event timers fire when the watermark has reached them, before it is forwarded; processing timers when the clock has
    reached them. If a handler registers a timer for a time that is already reached, it fires the next time. At the end
    of the input all event timers fire, and processing timers according to `processing_time_on_end` (S7.6); see
    `KeyedProcessOperator`.

    With time mode "eventtime", rows before the watermark are counted and dropped (S4.4).

    State: the states of the back end, `watermark:passed`, and for an initial state `initial:complete` and
    `initial:waiting`.
    """

    def __init__(self, spec: StatefulProcessorSpec) -> None:
        self.merged_bytes = MERGED_BYTES_OF_ROWS
        self._most_merged_bytes = MERGED_BYTES_OF_FRAMES if spec.pandas else MERGED_BYTES_OF_ROWS
        self._spec = spec
        self._processor = copy.deepcopy(spec.processor)
        self._back_end: KeyedStateBackend | None = None
        self._is_open = False
        self._not_before_ms = MIN_WATERMARK
        self._last_ms = 0

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end and its states, then call `init` of the processor."""
        super().open(ctx)
        spec = self._spec
        self._where = f"operator {ctx.uid!r} subtask {ctx.subtask}"
        groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self._passed = WatermarkByKeyGroup(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self._initial = InitialState(spec, groups, ctx.uid)
        self._back_end = back_end = open_keyed_backend(
            ctx,
            spec.key_schema,
            columns=spec.keys,
            forgotten=frozenset(spec.deleted),
            renamed=spec.renamed,
            drops=True,
        )
        self._timers = {kind: self._user_timers(back_end, kind) for kind in get_args(TimerKind)}
        own: TimerKind = "event" if spec.time_mode == "eventtime" else "processing"
        self._kind = own
        self._overlaid = TimerOverlay(self._timers[own])
        declared = {state.descriptor.name: state for state in spec.declared}
        timers = None if spec.time_mode == "none" else self._overlaid
        self._handle = ProcessorHandle(declared, back_end, timers, spec.time_mode, self._where, spec.deleted)
        name = type(self._processor).__name__
        rows = (PandasFrames if spec.pandas else RowObjects)(spec.schema, name, self._where)
        self._calls = ProcessorCalls(self._processor, self._handle, self._overlaid, rows)
        self._time = EventTimeColumn(spec.time_column, spec.time_unit) if spec.time_column is not None else None
        self._output: OutputEventTime | None = None
        if spec.output_time is not None:
            output = EventTimeColumn(spec.output_time, spec.output_unit)
            self._output = OutputEventTime(output, name, self._where, MIN_WATERMARK)
        self._is_open = True
        self._processor.init(self._handle)
        self._handle.opened()

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the processor's results for the rows, and for due timers."""
        if not batch.num_rows:
            return
        if input_index == INITIAL:
            yield from self._take_initial(batch)
        elif self._initial.complete:
            yield from self._checked(self._handled(batch))
        else:
            assert self._back_end is not None
            self._initial.hold_rows(batch, self._back_end.keys(batch))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Fire event timers up to the watermark; at MAX_WATERMARK fire all timers."""
        if watermark_us == MAX_WATERMARK:
            yield from self._complete()
            self._passed.advance(watermark_us)
            yield from self._checked(self._end())
        elif self._initial.complete:
            self._passed.advance(watermark_us)
            yield from self._checked(self._fire_due())
        else:
            self._initial.held_us = watermark_us

    def forwards_watermarks(self) -> bool:
        """False until the initial state is complete."""
        return self._initial.complete

    def next_processing_time_ms(self) -> int | None:
        """Return the time of the first processing timer."""
        if self._spec.time_mode != "processingtime" or not self._initial.complete:
            return None
        next_us = self._timers["processing"].next_us()
        return None if next_us is None else max(-(-next_us // 1000), self._not_before_ms)

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Fire due processing timers."""
        yield from self._checked(self._fire_due())

    def has_pending_rows(self) -> bool:
        """True while a timer waits for the clock, or rows wait for the initial state."""
        return self._initial.has_held_rows or self._timers["processing"].next_us() is not None

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Process the waiting rows if the initial state has ended."""
        if input_index == INITIAL:
            yield from self._complete()

    def finish(self) -> Iterator[Output]:
        """Fire the remaining timers. Later timers are dropped (S7.6)."""
        yield from self._complete()
        yield from self._checked(self._end())
        self._turn("over")

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the back end."""
        assert self._back_end is not None
        passed, initial = self._passed.part(), self._initial.freeze()
        write = self._back_end.snapshot(checkpoint_id, portable=self.portable)
        return lambda: [*write(), passed, *initial()]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore states and timers, with the columns that the processor declares now (S5.5).

        Raises:
            SnapshotError: columns cannot be adapted, a state is no longer declared, or timers have another time mode.
        """
        assert self._back_end is not None
        own = (PASSED_STATE, COMPLETE_STATE, WAITING_STATE)
        passed = [part for part in parts if part.name == PASSED_STATE]
        if passed:
            self._passed.restore(passed)
            self._initial.restore([part for part in parts if part.name in own], drained=self.ctx.drained)
        spec = self._spec
        states = [part for part in parts if part.name not in own and part.name not in spec.deleted]
        rows = [part for part in states if part.format == "rows"]
        descriptors = [state.descriptor for state in spec.declared]
        changed = evolved_parts(rows, descriptors, spec.key_schema, self.ctx.uid, dict(spec.renamed), drops=True)
        self._back_end.restore([*changed, *(part for part in states if part.format != "rows")])
        if self._output is not None:
            self._output.passed_us = self._passed.watermark_us
        foreign = next((kind for kind in self._timers if kind != self._kind or spec.time_mode == "none"), None)
        if foreign is not None and self._timers[foreign].next_us() is not None:
            raise SnapshotError(
                f"the snapshot has timers over {foreign} time, but timeMode is {spec.time_mode}",
                where=self._where,
                cause="with the new timeMode, the timers of the snapshot would never fire",
                remedy="Restore with the former timeMode, or give the operator a new uid",
            )

    def close(self) -> None:
        """Close the processor, then the back end, even if the processor raises an error."""
        try:
            if self._is_open:
                self._is_open = False
                self._processor.close()
        finally:
            if self._back_end is not None:
                self._back_end.close()

    # ------------------------------------------------------------ rows

    def _handled(self, batch: pa.RecordBatch) -> Iterator[Output]:
        batch = self._on_time(batch)
        if batch.num_rows:
            values = self._values()
            for part, keys in self._by_keys(batch):
                yield from self._calls.rows(part, keys, values)
        yield from self._fire_due()

    def _on_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not late; a row without event time is not late."""
        if self._time is None or self._passed.watermark_us == MIN_WATERMARK:
            return batch
        assert self._back_end is not None
        keys = self._back_end.keys(batch)
        passed = self._passed.of(keys.groups)[keys.rows]
        late = pc.fill_null(pc.less(self._time.microseconds(batch), pa.array(passed)), False)
        dropped = int(pc.sum(late).as_py() or 0)
        if not dropped:
            return batch
        self.ctx.count(LATE_DROPPED, dropped)
        return batch.filter(pc.invert(late))

    def _by_keys(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, KeySet]]:
        """Divide the batch if it has more keys than should be processed together; a key's rows stay together."""
        assert self._back_end is not None
        keys = self._back_end.keys(batch)
        self._resize(batch, keys)
        if keys.size <= self._calls.limit:
            yield batch, keys
            return
        order = np.argsort(keys.rows, kind="stable")
        numbers, size, first = keys.rows[order], keys.size, 0
        while first < size:
            last = min(first + self._calls.limit, size)
            start, stop = np.searchsorted(numbers, [first, last])
            part = batch.take(pa.array(order[start:stop]))
            yield part, self._back_end.keys(part)
            first = last

    def _resize(self, batch: pa.RecordBatch, keys: KeySet) -> None:
        """Adapt `merged_bytes` to the number of rows for each key, if the batch is as large as it permits."""
        if batch_bytes(batch) >= self.merged_bytes // 2:
            repeated = batch.num_rows / keys.size
            size = int(self.merged_bytes * (repeated if repeated >= REPEATED else 0.5))
            self.merged_bytes = min(max(size, LEAST_MERGED_BYTES), self._most_merged_bytes)

    # ------------------------------------------------------------ the initial state

    def _take_initial(self, batch: pa.RecordBatch) -> Iterator[Output]:
        if self._initial.complete:
            if INITIAL_IGNORED not in self.ctx.counters:
                logger.warning(
                    "the operator was restored from a snapshot, so rows of initialState are ignored and "
                    "counted as %s; nothing to do",
                    INITIAL_IGNORED,
                    extra=context(operator=self.ctx.uid, subtask=self.ctx.subtask),
                )
            self.ctx.count(INITIAL_IGNORED, batch.num_rows)
            return
        assert self._back_end is not None
        columns = [batch.column(key) for key in self._spec.initial_keys]
        keyed = pa.RecordBatch.from_arrays(columns, names=list(self._spec.keys))
        yield from self._calls.initial(batch, self._back_end.keys(keyed), self._values())

    def _complete(self) -> Iterator[Output]:
        if self._initial.complete:
            return
        for batch in self._initial.release_rows():
            yield from self._checked(self._handled(batch))
        if self._initial.held_us > self._passed.watermark_us:
            self._passed.advance(self._initial.held_us)
            yield from self._checked(self._fire_due())
            yield Watermark(self._initial.held_us)

    # ------------------------------------------------------------ timers

    def _fire_due(self) -> Iterator[Output]:
        """Fire due timers of the processor's time mode."""
        if self._spec.time_mode == "eventtime":
            if self._passed.watermark_us > MIN_WATERMARK:
                yield from self._fire("event", self._passed.watermark_us)
        elif self._spec.time_mode == "processingtime":
            now_ms = self.ctx.processing_time_ms()
            if now_ms >= self._not_before_ms:
                yield from self._fire("processing", now_ms * 1000)
                self._not_before_ms = now_ms + 1

    def _fire(self, kind: TimerKind, until_us: int) -> Iterator[Output]:
        assert self._back_end is not None
        timers, late = self._timers[kind], []
        while (due := timers.due(until_us, self._calls.limit)) is not None:
            for given in self._calls.timers(due, until_us, self._values):
                if isinstance(given, tuple):
                    late.append(given)
                else:
                    yield given
        for keys, times_ms in late:
            self._overlaid.register_late(self._back_end.keys(keys), times_ms)

    def _end(self) -> Iterator[Output]:
        self._turn("ending")
        timers = self._timers[self._kind]
        while timers.next_us() is not None:
            if self._kind == "event" or self.ctx.processing_time_on_end == "fire":
                yield from self._fire(self._kind, MAX_WATERMARK)
            if self._kind == "processing":
                while (due := timers.due(MAX_WATERMARK, self._calls.limit)) is not None:
                    count_dropped(self.ctx, "processing", len(due.times_us))
        self._turn("open")

    def _turn(self, phase: Phase) -> None:
        for timers in self._timers.values():
            timers.enter_phase(phase)

    def _user_timers(self, back_end: KeyedStateBackend, kind: TimerKind) -> UserTimers:
        dropped = partial(count_dropped, self.ctx, kind)
        return UserTimers(kind, back_end.timers(kind), self._where, dropped, answered=True)

    def _values(self, fired_ms: int | None = None) -> TimerValues:
        """Return the times for the processor, as in Spark: -1 without time mode, and 0 before the first watermark.

        At the end of the input, the watermark is the time of the latest timer that fired.
        """
        if self._spec.time_mode == "none":
            return TimerValues(-1, -1)
        watermark_us = self._passed.watermark_us
        if watermark_us == MAX_WATERMARK:
            self._last_ms = max(self._last_ms, fired_ms or 0)
        else:
            self._last_ms = max(0, watermark_us // 1000)
        return CurrentTimes(self.ctx.processing_time_ms, self._last_ms)

    # ------------------------------------------------------------ results

    def _checked(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Yield the outputs and the remaining results; check that none is late downstream."""
        for batch in chain(outputs, self._calls.results()):
            if self._output is not None and isinstance(batch, pa.RecordBatch):
                self._output.check(batch)
            yield batch
        if self._output is not None:
            self._output.passed_us = self._passed.watermark_us
