"""The operators of one subtask of a batch stage: rows in, rows out, then the watermark at the end (S8.1).

Operators have the same interface as in streaming (`StreamOperator`), but other guarantees about their input: broadcast
inputs are complete before the first other row, keyed rows are sorted by key and event time, no row is late, and the
only watermark is MAX_WATERMARK. There are no barriers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.operators.stream_operator import EmissionPaused, Output, SideOutput, StreamOperator, TurnOver
from tidegate.spark.batch.exchange import SortedBlock
from tidegate.subtask.chain import SIDE_OUTPUT_DROPPED, OperatorFailure

BLOCK_ROWS = 256 * 1024
"""Rows after which a keyed head ends with the present key and is replaced by a new one.

The cost of opening a head is shared by this many rows, and its state is limited to this many rows, or to one key.
"""


Emitted: TypeAlias = pa.RecordBatch | SideOutput
"""Output of the operators: rows of the main output, or of a side output that has a reader."""

WAIT_S = 0.05
"""Longest time, in seconds, that a waiting operator is not called, unless it wakes the task."""


class StageChain:
    """Operators in order, as in an `OperatorChain`, but only the last watermark passes."""

    def __init__(
        self, operators: Sequence[tuple[str, StreamOperator]], subtask: int, roused: threading.Event | None = None
    ) -> None:
        """Create the chain.

        Args:
            operators: (uid, open operator), head first; without operators, rows pass unchanged.
            roused: set by operators that can continue.
        """
        self._roused = roused or threading.Event()
        self._uids = [uid for uid, _ in operators]
        self._operators = [operator for _, operator in operators]
        self._subtask = subtask

    def rows(self, batch: pa.RecordBatch, input_index: int = 0) -> Iterator[Emitted]:
        """Push a batch into the head."""
        if not self._operators:
            yield batch
            return
        yield from self._after(0, self._operators[0].process(batch, input_index))

    def input_ends(self, input_index: int) -> Iterator[Emitted]:
        """End one input of the head."""
        if self._operators:
            yield from self._after(0, self._operators[0].end_input(input_index))

    def end(self, inputs: Iterable[int]) -> Iterator[Emitted]:
        """End all input: MAX_WATERMARK, `end_input` of inputs that have not ended yet, `finish` (S7.2)."""
        yield from self._through(0, Watermark(MAX_WATERMARK))
        for input_index in inputs:
            yield from self.input_ends(input_index)
        for place, operator in enumerate(self._operators):
            # The inputs of the head have ended above. Each of the other operators has one input.
            if place:
                yield from self._after(place, operator.end_input(0))
            yield from self._after(place, operator.finish())
            if not operator.forwards_end():
                yield from self._through(place + 1, Watermark(MAX_WATERMARK))

    def close(self) -> None:
        """Close every operator; the first error is raised after all have been closed."""
        errors: list[Exception] = []
        for operator in self._operators:
            try:
                operator.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _through(self, place: int, element: Output) -> Iterator[Emitted]:
        """Yield what follows from an element that the operator before `place` emitted."""
        if isinstance(element, pa.RecordBatch):
            if place == len(self._operators):
                yield element
            else:
                yield from self._after(place, self._operators[place].process(element, 0))
        elif isinstance(element, SideOutput):
            context = self._operators[place - 1].ctx
            if element.name in context.side_outputs:
                yield element
            else:
                context.count(SIDE_OUTPUT_DROPPED, element.batch.num_rows)
        elif isinstance(element, TurnOver):
            return  # nothing else runs in a stage
        elif isinstance(element, EmissionPaused):
            self._roused.wait(WAIT_S)
            self._roused.clear()
        elif element.time_us == MAX_WATERMARK and place < len(self._operators):
            yield from self._after(place, self._operators[place].on_watermark(MAX_WATERMARK))
            if self._operators[place].forwards_end():
                yield from self._through(place + 1, element)

    def _after(self, place: int, emission: Iterable[Output]) -> Iterator[Emitted]:
        elements = iter(emission)
        while True:
            try:
                element = next(elements, None)
            except OperatorFailure:
                raise
            except Exception as error:
                raise OperatorFailure(self._uids[place], self._subtask, error) from error
            if element is None:
                return
            yield from self._through(place + 1, element)


def run_rows(
    pipe: StageChain,
    batches: Iterable[Emitted],
    broadcasts: Mapping[int, Iterable[pa.RecordBatch]],
    input_index: int | None = 0,
) -> Iterator[Emitted]:
    """Process rows of one input, or of several equivalent ones, to their end.

    Args:
        broadcasts: broadcast inputs of the head, by input.
        input_index: input of the rows; None: there are only broadcast inputs.
    """
    yield from _broadcast(pipe, broadcasts)
    for batch in batches:
        assert input_index is not None, "rows for a stage without row input"
        if isinstance(batch, SideOutput):  # the output of a source that is also the tail
            yield batch
        elif batch.num_rows:
            yield from pipe.rows(batch, input_index)
    yield from pipe.end([] if input_index is None else [input_index])


def run_exchanged(
    new_head: Callable[[], StageChain],
    tail: StageChain,
    blocks: Iterable[SortedBlock],
    inputs: Sequence[int],
    broadcasts: Mapping[int, Iterable[pa.RecordBatch]],
) -> Iterator[Emitted]:
    """Process sorted rows of a subtask to their end, with a new head for each block.

    There is one head even without rows, because an operator may emit rows for empty input.
    """
    any_block = False
    for block in blocks:
        any_block = True
        yield from _one_head(new_head(), tail, ((run.input_index, run.batch) for run in block.runs), inputs, broadcasts)
    if not any_block:
        yield from _one_head(new_head(), tail, (), inputs, broadcasts)
    yield from tail.end([0])


def _one_head(
    head: StageChain,
    tail: StageChain,
    runs: Iterable[tuple[int, pa.RecordBatch]],
    inputs: Sequence[int],
    broadcasts: Mapping[int, Iterable[pa.RecordBatch]],
) -> Iterator[Emitted]:
    try:
        for emission in (_broadcast(head, broadcasts), _runs(head, runs), head.end(inputs)):
            for emitted in emission:
                if isinstance(emitted, SideOutput):  # the output of a head that is also the tail
                    yield emitted
                else:
                    yield from tail.rows(emitted)
    finally:
        head.close()


def _runs(head: StageChain, runs: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[Emitted]:
    for input_index, batch in runs:
        yield from head.rows(batch, input_index)


def _broadcast(pipe: StageChain, broadcasts: Mapping[int, Iterable[pa.RecordBatch]]) -> Iterator[Emitted]:
    """Process broadcast inputs completely, and end them, before any other input."""
    for input_index, batches in broadcasts.items():
        for batch in batches:
            yield from pipe.rows(batch, input_index)
        yield from pipe.input_ends(input_index)
