"""KeyedProcessOperator: runs a user's KeyedProcess, with keyed state in a back end."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.processes.checked_states import checked_state
from tidegate.operators.processes.process_outputs import ProcessOutputCheck
from tidegate.operators.processes.process_specs import KeyedProcessSpec
from tidegate.operators.processes.process_states import OwnStates
from tidegate.operators.processes.process_timers import Phase, UserTimers, count_dropped
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.passed_watermarks import PASSED_STATE, WatermarkByKeyGroup
from tidegate.operators.user_functions.context import Rows
from tidegate.operators.user_functions.keyed_process import FiredTimers, KeyedRows, ProcessContext
from tidegate.operators.user_functions.process_inputs import ProcessInput, overrides
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import KeyedStateBackend, TimerKind


class KeyedProcessOperator(StreamOperator):
    """Calls the user's process with rows of one or two inputs, and with due timers.

    Event timers fire when the watermark reaches them, in order of time, before the watermark is forwarded. Processing
    timers fire when the clock reaches them; while one waits, idleness is not forwarded (S4.4).

    The input ends at MAX_WATERMARK, and again in `finish` for rows that arrived between the two. At the end all event
    timers fire, including timers that are registered while they fire. Then the existing processing timers fire once.
    With `processing_time_on_end="drop"` they are dropped, counted and logged instead. All other timers that are
    registered at the end are counted and dropped (S7.6). On suspend, timers stay in the savepoint.

    State: the states of the back end, the states of the subtask, and `watermark:passed`.
    """

    def __init__(self, spec: KeyedProcessSpec) -> None:
        self._spec = spec
        self._process: Any = copy.copy(spec.process)
        self._inputs = spec.inputs
        self._times = [event_time(given) for given in spec.inputs]
        self._back_end: KeyedStateBackend | None = None
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end and its states, then the process."""
        super().open(ctx)
        self._where = f"operator {ctx.uid!r} subtask {ctx.subtask}"
        self._passed = WatermarkByKeyGroup(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self._own = OwnStates(self._spec.subtask_states, self._inputs, self._process, ctx)
        self._given = ProcessOutputCheck(self._process, self._spec.schema, self._spec.side_outputs, self._where)
        spec = self._spec
        self._back_end = back_end = open_keyed_backend(
            ctx, spec.key_schema, columns=spec.keys, renamed=spec.renamed, drops=True
        )
        states = {d.name: checked_state(back_end, d, self._where) for d in spec.descriptors}
        self._event, self._processing = self._timers(back_end, "event"), self._timers(back_end, "processing")
        self._context = ProcessContext(
            ctx.uid,
            ctx.subtask,
            ctx.parallelism,
            key_groups=self._own.key_groups,
            own=self._own.operator,
            states=states,
            event_timers=self._event,
            processing_timers=self._processing,
            now_ms=ctx.processing_time_ms,
            watermarks_us=lambda keys: self._passed.of(keys.groups),
            all_keys=lambda name, limit: back_end.all_keys(states[name][0], limit),
            count=ctx.count,
        )
        self._is_open = True
        self._process.open(self._context)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit what the process returns for the rows."""
        if batch.num_rows:
            method = self._inputs[input_index].method
            rows = self._rows(batch, input_index)
            with self._own.processing(input_index):
                yield from self._given.of(method, getattr(self._process, method)(rows, self._context))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Fire event timers up to the watermark; at MAX_WATERMARK fire all timers."""
        self._passed.advance(watermark_us)
        self._context.watermark_us = self._passed.watermark_us
        if watermark_us == MAX_WATERMARK:
            yield from self._end()
        else:
            yield from self._fire("event", watermark_us)

    def next_processing_time_ms(self) -> int | None:
        """Return the time of the first processing timer."""
        next_us = self._processing.next_us()
        return None if next_us is None else -(-next_us // 1000)

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Fire due processing timers."""
        yield from self._fire("processing", now_ms * 1000)

    def has_pending_rows(self) -> bool:
        """True while a timer waits for the clock: it may emit rows."""
        return self._processing.next_us() is not None

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Emit what the process returns for the end of one of two inputs."""
        method = self._inputs[input_index].end_method
        if method is not None:
            with self._own.processing(input_index):
                yield from self._given.of(method, getattr(self._process, method)(self._context))

    def forwards_end(self) -> bool:
        """False: MAX_WATERMARK is forwarded after the rows of `finish`."""
        return False

    def finish(self) -> Iterator[Output]:
        """Fire the remaining timers, then emit what the process returns from `finish`. Later timers are dropped
        (S7.6)."""
        yield from self._end()
        self._turn("over")
        yield from self._given.of("finish", self._process.finish(self._context))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the back end and the states of the subtask."""
        assert self._back_end is not None
        own, passed = self._own.freeze(), self._passed.part()
        write = self._back_end.snapshot(checkpoint_id, portable=self.portable)
        return lambda: [*write(), *own(), passed]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore states and timers, with the columns that the process declares now (S5.5).

        Raises:
            SnapshotError: a state's columns cannot be adapted, or the process no longer declares the state.
        """
        assert self._back_end is not None
        passed = [part for part in parts if part.name == PASSED_STATE]
        if passed:
            self._passed.restore(passed)
        self._context.watermark_us = self._passed.watermark_us
        of_subtask = self._own.names
        states = [part for part in parts if part.name != PASSED_STATE and part.name not in of_subtask]
        rows = [part for part in states if part.format == "rows"]
        spec = self._spec
        changed = evolved_parts(rows, spec.descriptors, spec.key_schema, self.ctx.uid, dict(spec.renamed), drops=True)
        self._back_end.restore([*changed, *(part for part in states if part.format != "rows")])
        self._own.restore([part for part in parts if part.name in of_subtask])
        self._process.restored(self._context)

    def close(self) -> None:
        """Close the process, then the back end, even if the process raises an error."""
        try:
            if self._is_open:
                self._is_open = False
                self._process.close()
        finally:
            if self._back_end is not None:
                self._back_end.close()

    def _rows(self, batch: pa.RecordBatch, input_index: int) -> Rows:
        given, time = self._inputs[input_index], self._times[input_index]
        if not given.keys:
            return Rows(batch, _time=time)
        assert self._back_end is not None
        keyed = batch
        if given.keys != self._spec.keys:
            keyed = pa.RecordBatch.from_arrays([batch.column(key) for key in given.keys], names=self._spec.keys)
        return KeyedRows(batch, self._back_end.keys(keyed), _time=time)

    # ------------------------------------------------------------ timers

    def _timers(self, back_end: KeyedStateBackend, kind: TimerKind) -> UserTimers:
        answered = overrides(self._process, "on_timers")
        dropped = partial(count_dropped, self.ctx, kind)
        return UserTimers(kind, back_end.timers(kind), self._where, dropped, answered=answered)

    def _fire(self, kind: TimerKind, until_us: int) -> Iterator[Output]:
        timers = self._event if kind == "event" else self._processing
        while (due := timers.due(until_us, MAX_BATCH_ROWS)) is not None:
            fired = FiredTimers(kind, due.keys, due.owners, due.times_us)
            yield from self._given.of("on_timers", self._process.on_timers(fired, self._context))

    def _end(self) -> Iterator[Output]:
        self._turn("ending")
        while self._event.next_us() is not None or self._processing.next_us() is not None:
            yield from self._fire("event", MAX_WATERMARK)
            if self.ctx.processing_time_on_end == "fire":
                yield from self._fire("processing", MAX_WATERMARK)
            while (due := self._processing.due(MAX_WATERMARK, MAX_BATCH_ROWS)) is not None:
                count_dropped(self.ctx, "processing", len(due.times_us))
        self._turn("open")

    def _turn(self, phase: Phase) -> None:
        self._event.enter_phase(phase)
        self._processing.enter_phase(phase)


def event_time(given: ProcessInput) -> EventTimeColumn | None:
    """Return the event time column of an input; None: its rows have none."""
    return EventTimeColumn(given.time_column, given.time_unit) if given.time_column is not None else None
