"""ProcessOperator: runs a user's process without keys, with states of its subtask."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.operators.processes.keyed_process_operator import event_time
from tidegate.operators.processes.process_outputs import ProcessOutputCheck
from tidegate.operators.processes.process_specs import ProcessSpec
from tidegate.operators.processes.process_states import OwnStates
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.passed_watermarks import PASSED_STATE, SubtaskWatermark
from tidegate.operators.user_functions.context import Rows, SubtaskContext
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.operator_descriptor import OperatorDescriptor
from tidegate.state.state_layout import unknown_state


class ProcessOperator(StreamOperator):
    """Calls the user's process with rows of one or two inputs, with watermarks, and at the interval `every`.

    Rows that wait for the clock are in the process's list states: while one holds rows, idleness is not forwarded
    (S4.4). After the end of the input the clock no longer calls the process; `finish` emits the waiting rows (S7.6).

    State: the states of the subtask, and `watermark:passed`.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self._spec = spec
        self._process: Any = copy.copy(spec.process)
        self._inputs = spec.inputs
        self._times = [event_time(given) for given in spec.inputs]
        self._passed = SubtaskWatermark()
        self._next_ms: int | None = None
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the states, then the process."""
        super().open(ctx)
        self._own = OwnStates(self._spec.subtask_states, self._inputs, self._process, ctx)
        where = f"operator {ctx.uid!r} subtask {ctx.subtask}"
        self._given = ProcessOutputCheck(self._process, self._spec.schema, self._spec.side_outputs, where)
        self._context = SubtaskContext(
            ctx.uid,
            ctx.subtask,
            ctx.parallelism,
            key_groups=self._own.key_groups,
            own=self._own.operator,
            now_ms=ctx.processing_time_ms,
            count=ctx.count,
        )
        if self._spec.every_ms is not None:
            self._next_ms = ctx.processing_time_ms() + self._spec.every_ms
        declared = self._spec.subtask_states
        lists = [s.name for s in declared if isinstance(s, OperatorDescriptor) and s.kind == "list"]
        self._waiting = [self._own.operator.list(name) for name in lists]
        self._is_open = True
        self._process.open(self._context)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit what the process returns for the rows."""
        if batch.num_rows:
            method = self._inputs[input_index].method
            rows = Rows(batch, _time=self._times[input_index])
            with self._own.processing(input_index):
                yield from self._given.of(method, getattr(self._process, method)(rows, self._context))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit what the process returns for the watermark."""
        self._passed.advance(watermark_us)
        self._context.watermark_us = self._passed.watermark_us
        yield from self._given.of("on_watermark", self._process.on_watermark(watermark_us, self._context))

    def next_processing_time_ms(self) -> int | None:
        """Return when the interval `every` has passed."""
        return self._next_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Emit what the process returns when the interval `every` has passed."""
        assert self._spec.every_ms is not None
        self._next_ms = now_ms + self._spec.every_ms
        yield from self._given.of("on_processing_time", self._process.on_processing_time(now_ms, self._context))

    def has_pending_rows(self) -> bool:
        """True while rows wait for the clock."""
        return self._next_ms is not None and any(state.holds_rows for state in self._waiting)

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
        """Emit what the process returns from `finish`."""
        yield from self._given.of("finish", self._process.finish(self._context))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the states of the subtask."""
        own, passed = self._own.freeze(), self._passed.part()
        return lambda: [*own(), passed]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the states, with the columns that the process declares now (S5.5).

        Raises:
            SnapshotError: a state's columns cannot be adapted, or the process no longer declares the state.
        """
        known = self._own.names
        for part in parts:
            if part.name == PASSED_STATE:
                self._passed.restore(part)
            elif part.name not in known:
                raise unknown_state(part.name, self.ctx.uid)
        self._context.watermark_us = self._passed.watermark_us
        self._own.restore([part for part in parts if part.name in known])
        self._process.restored(self._context)

    def close(self) -> None:
        """Close the process."""
        if self._is_open:
            self._is_open = False
            self._process.close()
