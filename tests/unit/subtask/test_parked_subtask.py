"""S2.2, S3.2: aborts that reach a subtask whose outputs are full; snapshots of aborted checkpoints; S4.4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.channel.control.protocol import Abort, Acknowledged, Trigger
from tidegate.channel.elements import MAX_WATERMARK, CheckpointBarrier, IdleStatus, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext, Output, SideOutput, StreamOperator
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.source import SourceInput
from tidegate.subtask.subtask import InputPort, Subtask
from tidegate.subtask.watermarks import WatermarkTracker
from tidegate.testing.in_process_job import InlineExecutor

BATCH = pa.record_batch({"v": [1, 2, 3]})


class Flushing(StreamOperator):
    """Holds a pre-aggregate back until a barrier."""

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield from ()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[Output]:
        yield BATCH


class Splitting(StreamOperator):
    """Gives each batch to both of its outputs."""

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield SideOutput("side", batch)
        yield batch


class Rig:
    """A subtask with two inputs and two outputs, main and `side`, each full with one batch; without operators it passes
    all on."""

    def __init__(self, *operators: StreamOperator) -> None:
        self.sent: list[dict[str, Any]] = []
        self.now_ms = 0
        self.slot = Slot(
            run_id="r",
            generation=1,
            send=self.sent.append,
            open_location=lambda location: (_ for _ in ()).throw(AssertionError(location)),
            threshold_bytes=1,
            writers=InlineExecutor(),
            now_ms=lambda: self.now_ms,
            wake=LoopSignal(),
        )
        self.inputs = [MemoryChannel(1_000_000), MemoryChannel(1_000_000)]
        self.output = MemoryChannel(1)
        self.side = MemoryChannel(1)
        for operator in operators:
            operator.open(replace(context(), processing_time_ms=lambda: self.now_ms))
        self.subtask = Subtask(
            (1, 0),
            OperatorChain(operators, ["op"] * len(operators), 0),
            ["op"] * len(operators),
            [InputPort(channel, 0) for channel in self.inputs],
            Router([OutputEdge([self.output]), OutputEdge([self.side], output="side")]),
            self.slot,
            source=None,
            mode="exactly_once",
            wait_for_final=True,
        )
        self.slot.start([self.subtask])

    def pump(self) -> None:
        while self.slot.run_round():
            continue

    def out(self, channel: MemoryChannel | None = None) -> list[Any]:
        found = []
        while (element := (channel or self.output).poll()) is not None:
            found.append(element)
            self.pump()
        return found


def context() -> OperatorContext:
    place = {"job_id": "job", "lineage": "l", "uid": "op", "subtask": 0, "parallelism": 1, "max_parallelism": 128}
    run: dict[str, Any] = {"generation": 1, "run_id": "r", "input_schemas": (BATCH.schema,)}
    return OperatorContext(**place, **run, processing_time_ms=lambda: 0, side_outputs=frozenset({"side"}))


def barrier(n: int) -> CheckpointBarrier:
    return CheckpointBarrier(n, "checkpoint", 0, None)


def test_an_abort_while_the_output_is_full_leaves_no_channel_blocked() -> None:
    """S2.2, S3.2."""
    rig = Rig()
    rig.inputs[0].send(BATCH)
    rig.inputs[0].send(barrier(1))
    rig.inputs[0].send(BATCH)
    rig.pump()
    rig.slot.post(Abort(1))
    rig.pump()
    assert sum(isinstance(element, pa.RecordBatch) for element in rig.out()) == 2


def test_the_snapshot_of_an_aborted_checkpoint_is_not_kept() -> None:
    """S2.2."""
    rig = Rig(Flushing())
    for channel in rig.inputs:
        channel.send(barrier(1))
    rig.pump()
    rig.slot.post(Trigger(1, "checkpoint", None, "chk-1", 0, ()))
    rig.slot.post(Abort(1))
    rig.out()
    assert rig.slot._held == {}
    assert not any(isinstance(message, Acknowledged) for message in rig.sent)


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
    rig = Rig()
    rig.inputs[0].send(IdleStatus(True))
    rig.inputs[1].send(Watermark(7))
    rig.inputs[1].send(Watermark(MAX_WATERMARK))
    rig.pump()
    assert rig.out() == [Watermark(7), IdleStatus(True)]
    rig.inputs[0].send(IdleStatus(False))
    rig.inputs[0].send(Watermark(9))
    rig.pump()
    assert rig.out() == [IdleStatus(False), Watermark(9)]


def test_a_subtask_whose_rows_wait_for_a_barrier_of_others_is_not_silent() -> None:
    """S4.4, S3.2: behind an exchange, too, its watermark does not run away from rows that it has got."""
    rig = Rig(create_operator(WatermarkSpec("v", 0, "us", 800)))
    for element in (barrier(1), BATCH):
        rig.inputs[0].send(element)

    def wait(ms: int) -> list[Any]:
        found = []
        for _ in range(0, ms, 100):
            rig.now_ms += 100
            rig.pump()
            found += rig.out()
        return found

    assert wait(10_000) == []
    rig.inputs[1].send(barrier(1))
    rig.pump()
    assert rig.out() == [barrier(1), BATCH, Watermark(3)]
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
    rig = Rig(Splitting())
    for element in (BATCH, BATCH, Watermark(7), BATCH):
        rig.inputs[0].send(element)
    rig.inputs[1].send(Watermark(9))
    for channel in rig.inputs:
        channel.send(barrier(1))
    rig.pump()
    main, side = rig.out(), rig.out(rig.side)
    assert len(main) < 3, "the side output was full"
    for _ in range(5):
        main += rig.out()
        side += rig.out(rig.side)
    assert main == side
    kinds = [type(element).__name__ for element in main]
    assert sorted(kinds[:-1]) == [*["RecordBatch"] * 3, "Watermark"] and kinds[-1] == "CheckpointBarrier"
    assert rig.subtask.rows_out == 6 * BATCH.num_rows
