"""S2.2, S3.2: aborts that reach a subtask whose outputs are full; snapshots of aborted checkpoints; S4.4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from builders.operators import operator_context
from builders.subtasks import SubtaskHarness, no_location

from tidegate.channel.control.protocol import Abort, Acknowledged, Trigger
from tidegate.channel.elements import MAX_WATERMARK, CheckpointBarrier, IdleStatus, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import Output, SideOutput, StreamOperator
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.subtask.router import OutputEdge
from tidegate.subtask.source import SourceInput
from tidegate.subtask.watermarks import WatermarkTracker

BATCH = pa.record_batch({"v": [1, 2, 3]})


class Flushing(StreamOperator):
    """Holds a pre-aggregate back until a barrier."""

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield from ()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[Output]:
        yield BATCH


class Splitting(StreamOperator):
    """Gives each batch to both of its outputs."""

    merged_bytes = 0  # the tests count batches

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield SideOutput("side", batch)
        yield batch


class ParkedSubtask(SubtaskHarness):
    """A subtask with two inputs and two outputs, main and `side`, each full with one batch; without operators it passes
    all on."""

    def __init__(self, *operators: StreamOperator) -> None:
        self.messages: list[Any] = []
        self.side = MemoryChannel(1)
        super().__init__(
            *operators,
            uids=["op"] * len(operators),
            ports=(0, 0),
            output=MemoryChannel(1),
            edges=[OutputEdge([self.side], output="side")],
            slot_facts={"send": self.messages.append, "open_location": no_location},
        )
        for operator in operators:
            operator.open(
                operator_context(BATCH.schema, processing_time_ms=self.clock, side_outputs=frozenset({"side"}))
            )

    def drained(self, channel: MemoryChannel) -> list[Any]:
        """What comes out of a channel when the subtask goes on after each element."""
        found = []
        while (element := channel.poll()) is not None:
            found.append(element)
            self.pump()
        return found


def barrier(n: int) -> CheckpointBarrier:
    return CheckpointBarrier(n, "checkpoint", 0, None)


def test_an_abort_while_the_output_is_full_leaves_no_channel_blocked() -> None:
    """S2.2, S3.2."""
    harness = ParkedSubtask()
    harness.inputs[0].send(BATCH)
    harness.inputs[0].send(barrier(1))
    harness.inputs[0].send(BATCH)
    harness.pump()
    harness.slot.post(Abort(1))
    harness.pump()
    assert sum(isinstance(element, pa.RecordBatch) for element in harness.drained(harness.output)) == 2


def test_the_snapshot_of_an_aborted_checkpoint_is_not_kept() -> None:
    """S2.2."""
    harness = ParkedSubtask(Flushing())
    for channel in harness.inputs:
        channel.send(barrier(1))
    harness.pump()
    harness.slot.post(Trigger(1, "checkpoint", None, "chk-1", 0, ()))
    harness.slot.post(Abort(1))
    harness.drained(harness.output)
    assert harness.slot._held == {}
    assert not any(isinstance(message, Acknowledged) for message in harness.messages)


def test_the_end_of_an_idle_channel_counts() -> None:
    """S4.4."""
    tracker = WatermarkTracker(2)
    tracker.idle(0, True)
    tracker.idle(1, True)
    assert tracker.watermark(0, MAX_WATERMARK) is None
    assert tracker.watermark(1, MAX_WATERMARK) == MAX_WATERMARK


def test_ended_channels_do_not_end_time_for_idle_ones() -> None:
    """S4.4."""
    tracker = WatermarkTracker(2)
    tracker.watermark(0, 5)
    tracker.watermark(1, MAX_WATERMARK)
    assert tracker.idle(0, True) is None
    assert tracker.all_idle
    tracker.idle(0, False)
    assert tracker.watermark(0, 9) == 9


def test_a_subtask_is_idle_when_its_last_active_channel_ends() -> None:
    """S4.4."""
    harness = ParkedSubtask()
    harness.inputs[0].send(IdleStatus(True))
    harness.inputs[1].send(Watermark(7))
    harness.inputs[1].send(Watermark(MAX_WATERMARK))
    harness.pump()
    assert harness.drained(harness.output) == [Watermark(7), IdleStatus(True)]
    harness.inputs[0].send(IdleStatus(False))
    harness.inputs[0].send(Watermark(9))
    harness.pump()
    assert harness.drained(harness.output) == [IdleStatus(False), Watermark(9)]


def test_a_subtask_whose_rows_wait_for_a_barrier_of_others_is_not_silent() -> None:
    """S4.4, S3.2: behind an exchange, too, its watermark does not run away from rows that it has got."""
    harness = ParkedSubtask(create_operator(WatermarkSpec("v", 0, "us", 800)))
    for element in (barrier(1), BATCH):
        harness.inputs[0].send(element)

    def wait(ms: int) -> list[Any]:
        found = []
        for _ in range(0, ms, 100):
            harness.clock.now += 100
            harness.pump()
            found += harness.drained(harness.output)
        return found

    assert wait(10_000) == []
    harness.inputs[1].send(barrier(1))
    harness.pump()
    assert harness.drained(harness.output) == [barrier(1), BATCH, Watermark(3)]
    assert wait(700) == [] and wait(200) == [IdleStatus(True)]


class Once(SourceReader):
    """One batch, and then nothing for a long time."""

    given = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        raise AssertionError

    def poll(self, now_ms: int) -> PollResult:
        if self.given:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + 100)
        self.given = True
        return PollResult(BATCH, "split")

    def snapshot(self) -> Sequence[Split]:
        return ()


def test_a_source_whose_batch_found_no_room_for_long_has_not_been_silent_meanwhile() -> None:
    """S4.4: before the first poll that brings nothing, nobody has looked whether there is something."""
    source = SourceInput("source", Once(), [], 0, idle_after_ms=800)
    assert not source.is_idle(source.poll(0), 0)
    for now_ms, idle in ((60_000, False), (60_700, False), (60_800, True)):
        assert source.is_idle(source.poll(now_ms), now_ms) == idle


def test_a_full_side_output_parks_the_subtask_and_events_go_to_both_outputs() -> None:
    """S3.1, S3.6: nothing is lost or overtakes though only one of them is read."""
    harness = ParkedSubtask(Splitting())
    for element in (BATCH, BATCH, Watermark(7), BATCH):
        harness.inputs[0].send(element)
    harness.inputs[1].send(Watermark(9))
    for channel in harness.inputs:
        channel.send(barrier(1))
    harness.pump()
    main, side = harness.drained(harness.output), harness.drained(harness.side)
    assert len(main) < 3, "the side output was full"
    for _ in range(5):
        main += harness.drained(harness.output)
        side += harness.drained(harness.side)
    assert main == side
    kinds = [type(element).__name__ for element in main]
    assert sorted(kinds[:-1]) == [*["RecordBatch"] * 3, "Watermark"] and kinds[-1] == "CheckpointBarrier"
    assert harness.subtask.rows_out == 6 * BATCH.num_rows
