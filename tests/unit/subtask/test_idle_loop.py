"""The sleep of a slot's loop that has nothing to do: every cause of work ends it, so it may be long."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from builders.subtasks import SubtaskHarness, memory_slot

from tidegate.channel.control.protocol import Cancel, SourceWatermarks
from tidegate.channel.failures import PeerLostError
from tidegate.connectors import push
from tidegate.connectors.interface import PollResult, SourceContext, SourceReader, Split
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.operators.time.watermark_specs import AlignmentGroup
from tidegate.subtask import slot as slot_module
from tidegate.subtask.slot import IDLE_WAIT_S, REPORT_INTERVAL_MS, AlignedSources, LoopSignal, Slot
from tidegate.subtask.source import SourceInput, SourceSignal

SCHEMA = pa.schema([("n", pa.int64())])
PATIENCE_S = 60
"""For what another thread does at once; only a defect makes a test wait so long."""
FOREVER_S = 3_600.0


class At(StreamOperator):
    """Has work at one time, and emits nothing."""

    def __init__(self, due_ms: int | None) -> None:
        self.due_ms = due_ms

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield batch

    def next_processing_time_ms(self) -> int | None:
        return self.due_ms

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        self.due_ms = None
        yield from ()


class Silent(SourceReader):
    """Never has records; is to be polled again after `pause_ms`."""

    def __init__(self, pause_ms: int = 5_000) -> None:
        self.pause_ms = pause_ms
        self.polled_ms: list[int] = []

    def add_splits(self, splits: Sequence[Split]) -> None:
        """There are none."""

    def poll(self, now_ms: int) -> PollResult:
        self.polled_ms.append(now_ms)
        return PollResult(state="nothing_now", retry_at_ms=now_ms + self.pause_ms)

    def snapshot(self) -> Sequence[Split]:
        return ()


def idle(harness: SubtaskHarness) -> float:
    """Let the slot work until it would sleep, and return for how many seconds."""
    harness.pump()
    return harness.slot._sleep_s()


def test_a_loop_without_work_sleeps_long() -> None:
    assert idle(SubtaskHarness(At(None))) == IDLE_WAIT_S


def test_a_timer_ends_the_sleep() -> None:
    """S7.6."""
    harness = SubtaskHarness(At(40))
    assert idle(harness) == 0.04
    harness.clock.now = 40
    assert idle(harness) == IDLE_WAIT_S


def test_a_timer_that_becomes_due_between_the_step_and_the_sleep_is_not_missed() -> None:
    """S7.6: the step did not see it, so it does not count as work that waits for something else."""
    harness = SubtaskHarness(At(40))
    harness.clock.now = 39
    harness.pump()
    harness.clock.now = 41
    assert harness.slot._sleep_s() == 0.0


def test_work_that_was_due_in_a_step_and_waits_for_capacity_does_not_keep_the_loop_awake() -> None:
    harness = SubtaskHarness(At(None))
    harness.clock.now = 41
    harness.pump()
    harness.subtask._timers.due_ms = lambda: 40  # type: ignore[method-assign]
    assert harness.slot._sleep_s() == IDLE_WAIT_S


def test_a_source_is_polled_when_its_reader_says() -> None:
    """S4.1."""
    harness = SubtaskHarness(At(None), source=SourceInput("rows", Silent(300), [], 0), ports=())
    assert idle(harness) == 0.3


def test_a_source_that_becomes_idle_by_silence_ends_the_sleep() -> None:
    """S4.4: its reader would be polled only later."""
    source = SourceInput("rows", Silent(), [], 0, idle_after_ms=200)
    harness = SubtaskHarness(At(None), source=source, ports=())
    assert idle(harness) == 0.2
    harness.clock.now = 200
    assert idle(harness) == IDLE_WAIT_S, "it is idle, and is polled again when the reader says"
    assert len(harness.out()) == 1


def test_a_paused_source_is_not_waited_for() -> None:
    harness = SubtaskHarness(At(None), source=SourceInput("rows", Silent(10), [], 0), ports=())
    harness.pump()
    assert harness.slot._sleep_s() == 0.01
    assert harness.subtask.source_input is not None
    harness.subtask.source_input.pause("test", True)
    assert harness.slot._sleep_s() == IDLE_WAIT_S


def test_a_watermark_that_may_not_be_reported_yet_ends_the_sleep() -> None:
    """S4.4: sources of the group in other slots wait for the report."""
    sent: list[SourceWatermarks] = []
    now = SimpleNamespace(ms=1_000)
    subtask: Any = SimpleNamespace(
        subtask=(0, 0),
        watermark_us=1,
        watermarks=SimpleNamespace(reported_idle=False),
        source_input=SourceInput("rows", Silent(), [], 0, group=AlignmentGroup("g", 10)),
    )
    aligned = AlignedSources([subtask], sent.append, lambda: now.ms)  # type: ignore[arg-type]
    aligned.update()
    assert len(sent) == 1 and aligned.due_ms is None, "the first report is sent at once"
    subtask.watermark_us, now.ms = 2, 1_050
    aligned.update()
    assert len(sent) == 1 and aligned.due_ms == 1_000 + REPORT_INTERVAL_MS
    now.ms = aligned.due_ms
    aligned.update()
    assert len(sent) == 2 and aligned.due_ms is None


class Running:
    """A slot's loop on a thread of its own, which sleeps for an hour if nothing wakes it."""

    def __init__(self, slot: Slot, wake: LoopSignal) -> None:
        self.slot = slot
        self.asleep = threading.Event()
        wait = wake.wait
        wake.wait = lambda timeout_s: (self.asleep.set(), wait(timeout_s))[1]  # type: ignore[method-assign, func-returns-value]
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.asleep.wait(PATIENCE_S), "the loop does not fall asleep"

    def _run(self) -> None:
        try:
            self.slot.run()
        except BaseException as error:
            self._failure.append(error)

    def end(self) -> BaseException | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "nothing woke the loop"
        return self._failure[0] if self._failure else None


@pytest.fixture
def asleep_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "IDLE_WAIT_S", FOREVER_S)
    monkeypatch.setattr(push, "PUSH_RETRY_MS", int(FOREVER_S * 1000))


@pytest.mark.usefixtures("asleep_forever")
def test_a_message_of_the_driver_wakes_the_loop() -> None:
    wake = LoopSignal()
    harness = SubtaskHarness(At(None), slot_facts={"wake": wake})
    loop = Running(harness.slot, wake)
    harness.slot.post(Cancel())
    assert loop.end() is None and harness.slot.was_cancelled


@pytest.mark.usefixtures("asleep_forever")
def test_a_failure_of_a_connection_wakes_the_loop() -> None:
    """S9.1. The transport records the failure, and calls `wake`."""
    wake, failures = LoopSignal(), list[BaseException]()
    slot = memory_slot(wake=wake, transport_failure=lambda: failures[0] if failures else None)
    slot.start([SubtaskHarness(At(None)).subtask])
    loop = Running(slot, wake)
    failures.append(PeerLostError("slot 1 was lost"))
    wake.set()
    assert isinstance(loop.end(), PeerLostError)


@pytest.mark.usefixtures("asleep_forever")
def test_pushed_rows_wake_the_loop() -> None:
    """S4.1."""
    wake, go = LoopSignal(), threading.Event()
    arrived = threading.Event()

    class Later(push.Pusher):
        def run(self, push: push.PushContext) -> None:
            assert go.wait(PATIENCE_S)
            push.emit(pa.record_batch({"n": [7]}), split_id="s", position=1)
            push.wait_until_closed()

    class Arrived(At):
        def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
            arrived.set()
            yield batch

    place = SourceContext("rows", 0, 1, signal := SourceSignal(wake.set))
    reader = push.PushReader(Later(), place, schema=SCHEMA, boundedness="unbounded")
    source = SourceInput("rows", reader, [], 0, signal=signal)
    source.start([Split("s", {})])
    harness = SubtaskHarness(Arrived(None), source=source, ports=(), slot_facts={"wake": wake})
    loop = Running(harness.slot, wake)
    try:
        go.set()
        assert arrived.wait(PATIENCE_S), "the rows did not wake the loop"
        harness.slot.post(Cancel())
        assert loop.end() is None
    finally:
        reader.close()
