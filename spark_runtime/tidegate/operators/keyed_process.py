"""KeyedProcessOperator: runs a user's KeyedProcess over a back end of keyed state."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.contract.errors import PipelineError
from tidegate.operators.batches import MAX_BATCH_ROWS
from tidegate.operators.contract import OperatorContext, Output, SideOutput, StreamOperator
from tidegate.operators.declared import checked_outputs
from tidegate.operators.eventtime import EventTime
from tidegate.operators.passed_watermarks import PASSED_STATE, PassedWatermarks
from tidegate.operators.processing_window import PROCESSING_TIME_DROPPED
from tidegate.operators.specs import KeyedProcessSpec
from tidegate.operators.user_process import FiredTimers, KeyedProcess, KeyedRows, ProcessContext
from tidegate.operators.user_states import checked_state
from tidegate.operators.user_timers import Phase, UserTimers
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.backends import new_backend
from tidegate.state.contract import BackendContext, KeyedStateBackend, TimerKind
from tidegate.state.evolving import evolved_parts

EVENT_TIMERS_DROPPED = "event_timers_dropped"
"""Counter: event timers that were registered when the input had ended, and did not fire (S7.6)."""

log = logging.getLogger(__name__)


class KeyedProcessOperator(StreamOperator):
    """Calls the user's process with rows and with timers that are due.

    Event timers fire when the watermark comes to them, in order of time, before it is passed on. Timers over processing
    time fire when the clock comes to them; while one waits, idleness is kept back (S4.4).

    At the end of the input - MAX_WATERMARK, and again `finish` for what came between the two - all event timers fire,
    with those that are registered in answer, and then the processing timers that are there, once; with
    `processing_time_on_end="drop"` these are dropped, counted and logged instead. Whatever else is registered then is
    counted and dropped (S7.6). On suspend timers stay in the savepoint.

    State: that of the back end, and `watermark:passed`.
    """

    def __init__(self, spec: KeyedProcessSpec) -> None:
        self._spec = spec
        self._process: KeyedProcess = copy.copy(spec.process)
        self._side_outputs = dict(spec.side_outputs)
        self._time = EventTime(spec.time_column, spec.time_unit) if spec.time_column is not None else None
        self._back_end: KeyedStateBackend | None = None
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end and its states, then the process."""
        super().open(ctx)
        self._where = f"operator {ctx.uid!r} subtask {ctx.subtask}"
        self._passed = PassedWatermarks(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self._back_end = back_end = new_backend(ctx.state_backend)
        spec = self._spec
        back_end.open(
            BackendContext(
                uid=ctx.uid,
                key_schema=spec.key_schema,
                key_columns=spec.keys,
                max_parallelism=ctx.max_parallelism,
                key_groups=key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism),
                now_ms=ctx.processing_time_ms,
                scratch=ctx.scratch,
                memory_bytes=ctx.state_memory_bytes,
            )
        )
        states = {d.name: checked_state(back_end, d, self._where) for d in spec.descriptors}
        self._event, self._processing = self._timers(back_end, "event"), self._timers(back_end, "processing")
        self._context = ProcessContext(
            ctx.uid,
            ctx.subtask,
            ctx.parallelism,
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
        """What the process gives for the rows."""
        if batch.num_rows:
            assert self._back_end is not None
            rows = KeyedRows(batch, self._back_end.keys(batch), self._time)
            yield from self._given("process", self._process.process(rows, self._context))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Event timers up to the watermark fire; at MAX_WATERMARK all there are."""
        self._passed.advance(watermark_us)
        self._context.watermark_us = self._passed.watermark_us
        if watermark_us == MAX_WATERMARK:
            yield from self._end()
        else:
            yield from self._fire("event", watermark_us)

    def next_processing_time_ms(self) -> int | None:
        """The first timer over processing time."""
        next_us = self._processing.next_us()
        return None if next_us is None else -(-next_us // 1000)

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Timers over processing time that are due fire."""
        yield from self._fire("processing", now_ms * 1000)

    def withholds(self) -> bool:
        """While a timer waits for the clock: it may bring rows."""
        return self._processing.next_us() is not None

    def finish(self) -> Iterator[Output]:
        """What is left fires, then the process may emit for the last time; no timer is taken any more (S7.6)."""
        yield from self._end()
        self._turn("over")
        yield from self._given("finish", self._process.finish(self._context))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the back end."""
        assert self._back_end is not None
        write, passed = self._back_end.snapshot(checkpoint_id, portable=self.portable), self._passed.part()
        return lambda: [*write(), passed]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back states and timers, with the columns that the process declares now (S5.5).

        Raises:
            SnapshotError: they cannot become those, or nobody declares them.
        """
        assert self._back_end is not None
        passed = [part for part in parts if part.name == PASSED_STATE]
        if passed:
            self._passed.restore(passed)
        self._context.watermark_us = self._passed.watermark_us
        states = [part for part in parts if part.name != PASSED_STATE]
        rows = [part for part in states if part.format == "rows"]
        spec = self._spec
        changed = evolved_parts(rows, spec.descriptors, spec.key_schema, self.ctx.uid, dict(spec.renamed))
        self._back_end.restore([*changed, *(part for part in states if part.format != "rows")])

    def close(self) -> None:
        """Close the process, and the back end whatever the process does."""
        try:
            if self._is_open:
                self._is_open = False
                self._process.close()
        finally:
            if self._back_end is not None:
                self._back_end.close()

    # ------------------------------------------------------------ timers

    def _timers(self, back_end: KeyedStateBackend, kind: TimerKind) -> UserTimers:
        counter = EVENT_TIMERS_DROPPED if kind == "event" else PROCESSING_TIME_DROPPED
        answered = type(self._process).on_timers is not KeyedProcess.on_timers
        return UserTimers(
            kind, back_end.timers(kind), self._where, lambda n: self._dropped(counter, n), answered=answered
        )

    def _fire(self, kind: TimerKind, until_us: int) -> Iterator[Output]:
        timers = self._event if kind == "event" else self._processing
        while (due := timers.due(until_us, MAX_BATCH_ROWS)) is not None:
            fired = FiredTimers(kind, due.keys, due.owners, due.times_us)
            yield from self._given("on_timers", self._process.on_timers(fired, self._context))

    def _end(self) -> Iterator[Output]:
        self._turn("ending")
        while self._event.next_us() is not None or self._processing.next_us() is not None:
            yield from self._fire("event", MAX_WATERMARK)
            if self.ctx.processing_time_on_end == "fire":
                yield from self._fire("processing", MAX_WATERMARK)
            while (due := self._processing.due(MAX_WATERMARK, MAX_BATCH_ROWS)) is not None:
                self._dropped(PROCESSING_TIME_DROPPED, len(due.times_us))
        self._turn("open")

    def _turn(self, phase: Phase) -> None:
        self._event.turn(phase)
        self._processing.turn(phase)

    def _dropped(self, counter: str, timers: int) -> None:
        if counter not in self.ctx.counters:
            log.warning(
                "Operator %r, subtask %d: the input has ended; timers that are left or new are dropped, counted as %s",
                self.ctx.uid,
                self.ctx.subtask,
                counter,
            )
        self.ctx.count(counter, timers)

    # ------------------------------------------------------------ what the user's code gives

    def _given(self, method: str, results: Iterable[pa.RecordBatch | SideOutput] | None) -> Iterator[Output]:
        if results is None:
            return
        if isinstance(results, pa.RecordBatch | SideOutput) or not isinstance(results, Iterable):
            raise self._refused(
                method, results, f"it gave a {type(results).__name__}", "Yield pyarrow.RecordBatch objects"
            )
        for result in results:
            yield from checked_outputs(
                result,
                self._spec.schema,
                self._side_outputs,
                lambda cause, remedy: self._refused(method, results, cause, remedy),
            )

    def _refused(self, method: str, results: object, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"{method} of the process {type(self._process).__name__} broke the declared schema",
            where=f"{self._where}, {_line(results, getattr(type(self._process), method))}",
            cause=cause,
            remedy=remedy,
        )


def _line(results: object, method: Any) -> str:
    """`file:line` of the `yield` that a generator stands at, else of the method."""
    if isinstance(results, GeneratorType) and results.gi_frame is not None:
        return f"{results.gi_code.co_filename}:{results.gi_frame.f_lineno}"
    code = method.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
