"""S7.6: what a subtask does by the clock, between its elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.elements import CheckpointBarrier, EndOfData, IdleStatus, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.subtask.chain import OperatorChain, OperatorFailure
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.subtask import InputPort, Subtask
from tidegate.testing.in_process_job import InlineExecutor

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


class Rig:
    """A subtask with a chain of delays, driven by hand."""

    def __init__(self, *delays_ms: int) -> None:
        self.now_ms = 0
        self.channel, self.output = MemoryChannel(1_000_000), MemoryChannel(1_000_000)
        self.slot = Slot(
            run_id="r",
            generation=1,
            send=lambda message: None,
            open_location=lambda location: (MemoryStore("timers"), location),
            threshold_bytes=1_000_000,
            writers=InlineExecutor(),
            now_ms=lambda: self.now_ms,
            wake=LoopSignal(),
        )
        self.delays = [Delay(ms) for ms in delays_ms]
        uids = [f"delay-{n}" for n in range(len(delays_ms))]
        for uid, delay in zip(uids, self.delays, strict=True):
            delay.open(OperatorContext("job", "l", uid, 0, 1, 128, 1, "r", (SCHEMA,), lambda: self.now_ms))
        self.subtask = Subtask(
            (0, 0),
            OperatorChain(self.delays, uids, 0),
            uids,
            [InputPort(self.channel, 0)],
            Router([OutputEdge([self.output])]),
            self.slot,
            source=None,
            mode="exactly_once",
            wait_for_final=True,
        )
        self.slot.start([self.subtask])

    def send(self, *elements: Any) -> list[Any]:
        """What comes out when these come in; batches as numbers."""
        for element in elements:
            self.channel.send(pa.record_batch({"n": element}) if isinstance(element, list) else element)
        return self.out()

    def out(self) -> list[Any]:
        while self.slot.run_round():
            continue
        out: list[Any] = []
        while (element := self.output.poll()) is not None:
            out.append(element["n"].to_pylist() if isinstance(element, pa.RecordBatch) else element)
        return out

    def at(self, now_ms: int) -> list[Any]:
        self.now_ms = now_ms
        return self.out()


def test_what_waits_for_the_clock_comes_out_when_it_has_come_so_far() -> None:
    rig = Rig(10)
    assert rig.send([1]) == [] and rig.subtask.retry_at_ms == 10
    assert rig.at(9) == []
    rig.send([2])
    assert rig.at(10) == [[1]] and rig.subtask.retry_at_ms == 19
    assert rig.at(100) == [[2]] and rig.subtask.retry_at_ms is None


def test_a_loop_that_falls_asleep_the_moment_a_time_comes_does_not_fail() -> None:
    """The clock may reach it between two looks."""
    for first_look_ms in (7, 8, 9):
        rig = Rig(10)
        rig.send([1])
        looks = itertools.count(first_look_ms)
        rig.slot._now_ms = looks.__next__
        assert 0.0 <= rig.slot._sleep_s() <= 0.05


def test_a_chain_asks_every_operator_and_what_one_gives_goes_through_the_others() -> None:
    rig = Rig(10, 5)
    rig.send([1])
    assert rig.at(10) == [] and rig.subtask.retry_at_ms == 15
    rig.send([2])
    assert rig.at(15) == [[1]] and rig.subtask.retry_at_ms == 20
    assert rig.at(500) == [] and rig.subtask.retry_at_ms == 505, "the second operator's time runs from now"
    assert rig.at(505) == [[2]]


def test_what_is_due_comes_in_front_of_what_waits_in_the_channels() -> None:
    rig = Rig(10)
    rig.send([1])
    rig.now_ms = 10
    assert rig.send(Watermark(7)) == [[1], Watermark(7)]


def test_idleness_is_told_when_the_clock_has_brought_the_last_rows() -> None:
    """S4.4: else they would come from an idle channel, and might be late."""
    rig = Rig(10)
    assert rig.send([1], IdleStatus(True)) == []
    assert rig.at(10) == [[1], IdleStatus(True)]


def test_after_a_suspend_nothing_is_done_by_the_clock() -> None:
    """S7.2, S7.6: it stays in the savepoint."""
    rig = Rig(10)
    rig.send([1])
    assert rig.send(EndOfData(False)) == [EndOfData(False)]
    assert rig.subtask.retry_at_ms is None
    barrier = CheckpointBarrier(1, "stop-savepoint", 0, "suspend")
    rig.now_ms = 1_000
    assert rig.send(barrier) == [barrier]
    assert len(rig.delays[0].held) == 1


def test_an_operator_that_fails_by_the_clock_is_named() -> None:
    rig = Rig(10)
    rig.send([-1])
    with pytest.raises(OperatorFailure, match="operator 'delay-0' subtask 0: ValueError: minus one"):
        rig.at(10)
