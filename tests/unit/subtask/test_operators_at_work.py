"""S7.7: which operators of a chain have not done yet what they were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from tidegate.operators.stream_operator import CommitPermit, EmissionPaused, Output, StreamOperator
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.subtask.chain import OperatorChain

ROWS = pa.record_batch({"v": [1, 2]})


class Noting(StreamOperator):
    """Passes rows on, and notes who is at work when it is asked for something."""

    def __init__(self) -> None:
        self.chain: OperatorChain
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def note(self, what: str) -> None:
        self.seen.append((what, self.chain.busy_operators()))

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        self.note("process")
        yield batch
        self.note("resumed")

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot:
        def write() -> Sequence[StatePart]:
            self.note("write")
            return ()

        return write

    def commit(self, permit: CommitPermit) -> Callable[[], None]:
        return lambda: self.note("commit")


class Refusing(Noting):
    """Waits until it is let; cannot write."""

    waits = True

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        while self.waits:
            yield EmissionPaused()
        yield batch

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot:
        def write() -> Sequence[StatePart]:
            raise OSError("the disk is full")

        return write


def chained(*operators: Noting) -> OperatorChain:
    chain = OperatorChain(operators, ["a", "b", "c"][: len(operators)], 0)
    for operator in operators:
        operator.chain = chain
    return chain


def test_the_operator_that_is_called_is_at_work_and_none_when_all_is_done() -> None:
    a, b = Noting(), Noting()
    chain = chained(a, b)
    assert chain.busy_operators() == ()
    assert list(chain.batch(ROWS, 0)) == [ROWS]
    assert a.seen == [("process", ("a",)), ("resumed", ("a",))]
    assert b.seen == [("process", ("b",)), ("resumed", ("b",))]
    assert chain.busy_operators() == ()


def test_one_that_keeps_the_loop_waiting_is_at_work_until_it_does_not() -> None:
    """Also between two calls, when the loop does something else."""
    waiting = Refusing()
    chain = chained(Noting(), waiting, Noting())
    emission = chain.batch(ROWS, 0)
    assert isinstance(next(emission), EmissionPaused) and chain.busy_operators() == ("b",)
    assert isinstance(next(emission), EmissionPaused) and chain.busy_operators() == ("b",)
    waiting.waits = False
    assert list(emission) == [ROWS] and chain.busy_operators() == ()


def test_those_whose_state_is_written_or_committed_are_at_work() -> None:
    a, b = Noting(), Noting()
    chain = chained(a, b)
    parts = chain.snapshot(1, portable=False)
    commits = chain.commits(CommitPermit(1, 1, 1))
    assert chain.busy_operators() == ()
    for work in (*(part for _, part in parts), *commits):
        work()
    assert a.seen == [("write", ("a",)), ("commit", ("a",))] and b.seen == [("write", ("b",)), ("commit", ("b",))]
    assert chain.busy_operators() == ()


def test_one_that_has_failed_is_not_at_work_any_more() -> None:
    chain = chained(Refusing())
    ((_, write),) = chain.snapshot(1, portable=False)
    with pytest.raises(OSError, match="the disk is full"):
        write()
    assert chain.busy_operators() == ()
