"""What the loop leaves out because it could have no effect: polls, emissions and whole rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from builders.subtasks import SubtaskHarness

from tidegate.channel.control.protocol import Cancel
from tidegate.channel.elements import MAX_WATERMARK, EndOfData, EndOfPartition, IdleStatus, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.interface import UNSET_RETRY_MS, PollResult, SourceReader, Split
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LoopSignal
from tidegate.subtask.source import MAX_POLL_WAIT_MS, SourceInput, SourceSignal

ROWS = pa.record_batch({"v": [1]})


class Waiting(SourceReader):
    """Returns `first`, and then always that there is nothing before `retry_at_ms`."""

    def __init__(self, retry_at_ms: int, *first: PollResult) -> None:
        self.polled_ms: list[int] = []
        self._retry_at_ms = retry_at_ms
        self._first = list(first)

    def add_splits(self, splits: Sequence[Split]) -> None:
        """There are none."""

    def poll(self, now_ms: int) -> PollResult:
        self.polled_ms.append(now_ms)
        return self._first.pop(0) if self._first else PollResult(state="nothing_now", retry_at_ms=self._retry_at_ms)

    def snapshot(self) -> Sequence[Split]:
        return ()


def sourced(reader: SourceReader, signal: SourceSignal | None = None) -> SubtaskHarness:
    return SubtaskHarness(ports=(), uids=(), source=SourceInput("source", reader, (), 0, signal=signal))


def test_a_source_without_rows_is_not_polled_before_its_time() -> None:
    reader = Waiting(100)
    harness = sourced(reader)
    for now_ms in (0, 10, 99, 100, 101):
        harness.clock.now = now_ms
        harness.pump()
    assert reader.polled_ms == [0, 100, 101], "at 100 it says again: not before 100"


def test_a_source_without_rows_is_polled_each_second() -> None:
    """A reader that forgets to wake the loop is late, but not for ever."""
    reader = Waiting(10**9)
    harness = sourced(reader)
    for now_ms in (0, MAX_POLL_WAIT_MS - 1, MAX_POLL_WAIT_MS, MAX_POLL_WAIT_MS + 1):
        harness.clock.now = now_ms
        harness.pump()
    assert reader.polled_ms == [0, MAX_POLL_WAIT_MS]


def test_a_source_that_names_no_time_for_its_next_poll_is_polled_after_a_pause() -> None:
    """A reader that leaves out `retry_at_ms` must not keep the loop busy."""
    reader = Waiting(0)
    harness = sourced(reader)
    for now_ms in (1_000, 1_001, 999 + UNSET_RETRY_MS, 1_000 + UNSET_RETRY_MS):
        harness.clock.now = now_ms
        harness.pump()
    assert reader.polled_ms == [1_000, 1_000 + UNSET_RETRY_MS]


def test_a_reader_that_wakes_the_loop_is_polled_at_once_and_only_once() -> None:
    woken: list[bool] = []
    signal = SourceSignal(lambda: woken.append(True))
    reader = Waiting(500)
    harness = sourced(reader, signal)
    harness.pump()
    signal()
    harness.pump()
    harness.pump()
    assert (reader.polled_ms, woken) == ([0, 0], [True])


def test_a_batch_may_say_that_nothing_follows_before_a_time() -> None:
    reader = Waiting(50, PollResult(ROWS, "s", "nothing_now", 50))
    harness = sourced(reader)
    harness.pump()
    assert (harness.out(), reader.polled_ms) == ([[1]], [0])
    harness.clock.now = 50
    harness.pump()
    assert reader.polled_ms == [0, 50]


class Progress(StreamOperator):
    """Records the watermarks that reach it."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield batch

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        self.times.append(watermark_us)
        yield from ()


def test_watermarks_that_do_not_advance_the_minimum_cost_no_step() -> None:
    """S4.4: the minimum over the inputs; rows keep their place among the watermarks."""
    operator = Progress()
    harness = SubtaskHarness(operator, ports=(0, 0))
    harness.send(0, Watermark(5), Watermark(7), ROWS)
    assert harness.subtask.step()
    assert harness.out() == [[1]] and operator.times == []
    harness.send(1, Watermark(6), Watermark(8))
    harness.pump()
    assert operator.times == [6, 7]
    assert harness.out() == [Watermark(6), Watermark(7)]


def test_an_idle_input_does_not_hold_back_the_watermark_and_does_again_when_it_is_active() -> None:
    """S4.4."""
    operator = Progress()
    harness = SubtaskHarness(operator, ports=(0, 0))
    harness.send(0, Watermark(5))
    harness.send(1, IdleStatus(True))
    harness.pump()
    assert operator.times == [5]
    harness.send(1, IdleStatus(False))
    harness.pump()
    harness.send(0, Watermark(9))
    harness.pump()
    assert operator.times == [5]
    harness.send(1, Watermark(6))
    harness.pump()
    assert operator.times == [5, 6]


def test_the_end_of_time_passes_like_any_other_end() -> None:
    operator = Progress()
    harness = SubtaskHarness(operator, ports=(0, 0))
    harness.send(0, Watermark(MAX_WATERMARK))
    harness.send(1, Watermark(MAX_WATERMARK - 1), Watermark(MAX_WATERMARK))
    harness.pump()
    assert operator.times == [MAX_WATERMARK - 1, MAX_WATERMARK]


class Rounds(LoopSignal):
    """Cancels the run at its second wait, and counts the rounds until each."""

    def __init__(self) -> None:
        super().__init__()
        self.harness: SubtaskHarness | None = None
        self.until: list[int] = []

    def wait(self, timeout_s: float) -> None:
        assert self.harness is not None
        self.until.append(self.harness.slot.rounds)
        if len(self.until) == 1:
            self.harness.send(0, ROWS, ROWS)
        else:
            self.harness.slot.post(Cancel())


@pytest.mark.parametrize(("last", "rounds"), [(True, 1), (False, 2)])
def test_after_the_last_subtask_the_loop_sleeps_without_another_round(last: bool, rounds: int) -> None:
    """Only the output of a subtask can be work for others in its slot."""
    signal = Rounds()
    harness = signal.harness = SubtaskHarness(Progress(), slot_facts={"wake": signal})
    if last:
        harness.subtask._router = Router([])
    harness.slot.run()
    assert signal.until[1] - signal.until[0] == rounds
    assert harness.subtask.rows_in == 2


def test_the_loop_does_not_sleep_when_its_last_subtask_has_finished() -> None:
    signal = Rounds()
    harness = signal.harness = SubtaskHarness(Progress(), slot_facts={"wake": signal})
    harness.subtask._router = Router([])
    harness.subtask.let_finish()
    harness.send(0, ROWS, EndOfData(True), EndOfPartition())
    harness.slot.run()
    assert harness.subtask.is_finished
    assert signal.until == []


def test_a_subtask_that_waits_for_capacity_gets_another_round() -> None:
    """A subtask of the same slot may have made room in its turn before."""
    small = MemoryChannel(8)
    harness = SubtaskHarness(Progress(), edges=[OutputEdge([small])], slot_facts={"input_steps": 4})
    harness.send(0, ROWS, ROWS)
    assert harness.slot.run_round()
    assert not harness.slot.run_round()
    assert harness.subtask.is_emitting
    assert not harness.slot._is_exhausted
