"""S7.6: what a subtask does by the clock, between its elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from builders.operators import operator_context
from builders.subtasks import SubtaskHarness

from tidegate.channel.elements import CheckpointBarrier, EndOfData, IdleStatus, Watermark
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.subtask.chain import OperatorFailure

SCHEMA = pa.schema([("n", pa.int64())])


class Delay(StreamOperator):
    """Gives each batch on `ms` after it came; the number -1 makes it fail then."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self.held: list[tuple[int, pa.RecordBatch]] = []

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        self.held.append((self.ctx.processing_time_ms() + self._ms, batch))
        yield from ()

    def next_processing_time_ms(self) -> int | None:
        return self.held[0][0] if self.held else None

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        while self.held and self.held[0][0] <= now_ms:
            batch = self.held.pop(0)[1]
            if -1 in batch["n"].to_pylist():
                raise ValueError("minus one")
            yield batch

    def has_pending_rows(self) -> bool:
        return bool(self.held)


class Delays(SubtaskHarness):
    """A subtask with a chain of delays."""

    def __init__(self, *delays_ms: int) -> None:
        self.delays = [Delay(ms) for ms in delays_ms]
        uids = [f"delay-{n}" for n in range(len(delays_ms))]
        super().__init__(*self.delays, uids=uids)
        for uid, delay in zip(uids, self.delays, strict=True):
            delay.open(operator_context(SCHEMA, uid=uid, processing_time_ms=self.clock))

    def flow(self, *elements: Any) -> list[Any]:
        """What comes out when these come in; batches as numbers."""
        self.send(0, *(pa.record_batch({"n": e}) if isinstance(e, list) else e for e in elements))
        self.pump()
        return self.out()

    def at(self, now_ms: int) -> list[Any]:
        self.clock.now = now_ms
        return self.flow()


def test_what_waits_for_the_clock_comes_out_when_it_has_come_so_far() -> None:
    delays = Delays(10)
    assert delays.flow([1]) == [] and delays.subtask.retry_at_ms(delays.clock.now) == 10
    assert delays.at(9) == []
    delays.flow([2])
    assert delays.at(10) == [[1]] and delays.subtask.retry_at_ms(delays.clock.now) == 19
    assert delays.at(100) == [[2]] and delays.subtask.retry_at_ms(delays.clock.now) is None


def test_a_loop_that_falls_asleep_the_moment_a_time_comes_does_not_fail() -> None:
    """The clock may reach it between two looks."""
    for first_look_ms in (7, 8, 9):
        delays = Delays(10)
        delays.flow([1])
        looks = itertools.count(first_look_ms)
        delays.slot._now_ms = looks.__next__
        assert 0.0 <= delays.slot._sleep_s() <= 0.05


def test_a_chain_asks_every_operator_and_what_one_gives_goes_through_the_others() -> None:
    delays = Delays(10, 5)
    delays.flow([1])
    assert delays.at(10) == [] and delays.subtask.retry_at_ms(delays.clock.now) == 15
    delays.flow([2])
    assert delays.at(15) == [[1]] and delays.subtask.retry_at_ms(delays.clock.now) == 20
    assert delays.at(500) == [] and delays.subtask.retry_at_ms(delays.clock.now) == 505, (
        "the second operator's time runs from now"
    )
    assert delays.at(505) == [[2]]


def test_what_is_due_comes_in_front_of_what_waits_in_the_channels() -> None:
    delays = Delays(10)
    delays.flow([1])
    delays.clock.now = 10
    assert delays.flow(Watermark(7)) == [[1], Watermark(7)]


def test_idleness_is_told_when_the_clock_has_brought_the_last_rows() -> None:
    """S4.4: else they would come from an idle channel, and might be late."""
    delays = Delays(10)
    assert delays.flow([1], IdleStatus(True)) == []
    assert delays.at(10) == [[1], IdleStatus(True)]


def test_after_a_suspend_nothing_is_done_by_the_clock() -> None:
    """S7.2, S7.6: it stays in the savepoint."""
    delays = Delays(10)
    delays.flow([1])
    assert delays.flow(EndOfData(False)) == [EndOfData(False)]
    assert delays.subtask.retry_at_ms(delays.clock.now) is None
    barrier = CheckpointBarrier(1, "stop-savepoint", 0, "suspend")
    delays.clock.now = 1_000
    assert delays.flow(barrier) == [barrier]
    assert len(delays.delays[0].held) == 1


def test_an_operator_that_fails_by_the_clock_is_named() -> None:
    delays = Delays(10)
    delays.flow([-1])
    with pytest.raises(OperatorFailure, match="operator 'delay-0' subtask 0: ValueError: minus one"):
        delays.at(10)
