"""Operators outside a slot: where they are, and a harness that drives one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from builders.clock import ManualClock
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import OperatorContext, StreamOperator
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import decode_parts, encode_parts

Result = TypeVar("Result")


def operator_context(*input_schemas: pa.Schema, **facts: Any) -> OperatorContext:
    """The context of the only subtask of an operator at time 0, where `facts` say nothing else."""
    place: dict[str, Any] = {
        "job_id": "job",
        "lineage": "lineage",
        "uid": "op",
        "subtask": 0,
        "parallelism": 1,
        "max_parallelism": 128,
        "generation": 1,
        "run_id": "1-1",
        "processing_time_ms": lambda: 0,
    }
    return OperatorContext(**{**place, "input_schemas": input_schemas, **facts})


def open_operator(spec: OperatorSpec, *input_schemas: pa.Schema, **facts: Any) -> Any:
    """The operator of `spec`, opened in an `operator_context`. Its type is left to the test, which knows it."""
    operator = create_operator(spec)
    operator.open(operator_context(*input_schemas, **facts))
    return operator


def stored_parts(operator: StreamOperator) -> list[StatePart]:
    """The operator's state, after a way through a state stream."""
    written = operator.snapshot(1)
    assert written is not None
    return list(decode_parts(encode_parts(written())))


class OperatorHarness(Generic[Result]):
    """Drives one operator, and a clock that only the test moves.

    Args:
        read: makes of an emission what the test compares.
        restored: state that the operator takes over.
        now_ms: where its clock starts.
        facts: of the operator's context.
    """

    def __init__(
        self,
        operator: StreamOperator,
        read: Callable[[Iterable[Any]], Result],
        *input_schemas: pa.Schema,
        restored: Sequence[StatePart] | None = None,
        now_ms: int = 0,
        **facts: Any,
    ) -> None:
        self.operator, self.read = operator, read
        self.clock = ManualClock(now_ms)
        self.context = operator_context(*input_schemas, processing_time_ms=self.clock, **facts)
        operator.open(self.context)
        if restored is not None:
            operator.restore(restored)

    def process(self, batch: pa.RecordBatch, input_index: int = 0) -> Result:
        """What the operator emits for a batch."""
        return self.read(self.operator.process(batch, input_index))

    def watermark(self, time_us: int) -> Result:
        """What it emits when event time has come to `time_us`."""
        return self.read(self.operator.on_watermark(time_us))

    def at(self, now_ms: int) -> Result:
        """What it emits when the loop looks at the clock at `now_ms`: nothing, unless something is due."""
        self.clock.now = now_ms
        due_ms = self.operator.next_processing_time_ms()
        return self.read(self.operator.on_processing_time(now_ms) if due_ms is not None and due_ms <= now_ms else ())

    def finish(self) -> Result:
        """What it emits at the end of all input."""
        return self.read(self.operator.finish())

    def state(self) -> list[StatePart]:
        """Its state in the portable form, as a savepoint keeps it."""
        self.operator.portable = True
        return stored_parts(self.operator)
