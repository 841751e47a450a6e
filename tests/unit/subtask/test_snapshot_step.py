"""One subtask: where barriers are born, what happens in the step of a snapshot, and what close and finish are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    Complete,
    Declined,
    DriverMessage,
    Durable,
    SubtaskEndedData,
    SubtaskFinished,
    Trigger,
)
from tidegate.channel.elements import MAX_WATERMARK, CheckpointBarrier, EndOfData, EndOfPartition, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.connectors.split_documents import splits_from_parts
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.store import Store
from tidegate.operators.stream_operator import CommitPermit, Output, StreamOperator
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, Blob, StatePart
from tidegate.snapshot.streams import decode_parts
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.source import SourceInput
from tidegate.subtask.subtask import InputPort, Subtask

FLUSHED = pa.record_batch({"v": [99]})


class Recording(StreamOperator):
    """Passes records on, and writes down what it is asked."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked
        self.frozen_fails = False

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        self.asked.append(f"process {batch['v'].to_pylist()}")
        yield batch

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[Output]:
        self.asked.append(f"prepare {checkpoint_id}")
        yield FLUSHED

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot:
        self.asked.append(f"freeze {checkpoint_id}{' portably' if self.portable else ''}")

        def write() -> list[StatePart]:
            self.asked.append(f"write {checkpoint_id}")
            if self.frozen_fails:
                raise OSError("disk full")
            return [StatePart("v", "list", pa.table({"v": [1]}))]

        return write

    def end_input(self, input_index: int) -> Iterator[Output]:
        self.asked.append("end_input")
        yield from ()

    def finish(self) -> Iterator[Output]:
        self.asked.append("finish")
        yield FLUSHED

    def close(self) -> None:
        self.asked.append("close")


class Writers(Executor):
    """Keeps the asynchronous phase until the test lets it run."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.work.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        work, self.work = self.work, []
        for todo in work:
            todo()


class Numbers(SourceReader):
    """One record a poll, for ever; its position is how many."""

    def __init__(self) -> None:
        self.at = 0

    def add_splits(self, splits: Sequence[Split]) -> None:
        (split,) = splits
        self.at = split.position or 0

    def poll(self, now_ms: int) -> PollResult:
        self.at += 1
        return PollResult(pa.record_batch({"v": [self.at]}), "s")

    def snapshot(self) -> Sequence[Split]:
        return [Split("s", {}, self.at)]


class Rig:
    """A subtask in a slot; `inputs` 0: the head is a source. `finished`: restored as finished, without operators."""

    def __init__(self, inputs: int = 0, *, finished: bool = False) -> None:
        self.asked: list[str] = []
        self.sent: list[Any] = []
        self.writers = Writers()
        self.store: Store = MemoryStore("snapshot-step")
        self.slot = Slot(
            run_id="r",
            generation=1,
            send=self.sent.append,
            open_location=lambda location: (self.store, location),
            threshold_bytes=1_000_000,
            writers=self.writers,
            now_ms=lambda: 0,
            wake=LoopSignal(),
        )
        self.inputs = [MemoryChannel(1_000_000) for _ in range(inputs)]
        self.output = MemoryChannel(1_000_000)
        self.operator = Recording(self.asked)
        self.subtask = Subtask(
            (1, 0),
            OperatorChain([] if finished else [self.operator], [] if finished else ["op"], 0),
            [] if finished else ["op"],
            [InputPort(channel, 0) for channel in self.inputs],
            Router([OutputEdge([self.output])]),
            self.slot,
            source=None if inputs else SourceInput("numbers", Numbers(), [], 0),
            mode="exactly_once",
            wait_for_final=True,
            restored_finished=finished,
        )
        if not inputs:
            source = self.subtask.source_input
            assert source is not None
            source.start([Split("s", {})])
        self.slot.start([self.subtask])

    def trigger(self, checkpoint_id: int, stop: Any = None) -> None:
        kind: Any = "checkpoint" if stop is None else "stop-savepoint"
        self.slot.post(Trigger(checkpoint_id, kind, stop, f"chk-{checkpoint_id}", 0, ((1, 0),)))

    def told(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def out(self) -> list[Any]:
        found: list[Any] = []
        while (element := self.output.poll()) is not None:
            found.append(element["v"].to_pylist() if isinstance(element, pa.RecordBatch) else element)
        return found


def barrier(n: int) -> CheckpointBarrier:
    return CheckpointBarrier(n, "checkpoint", 0, None)


def test_a_barrier_is_born_at_the_triggered_source_behind_what_its_position_covers() -> None:
    """S3.1, S4.1, S4.2: exactly the records in front of the barrier are in the position."""
    rig = Rig()
    rig.slot.run_round()
    rig.slot.run_round()
    rig.trigger(1)
    rig.slot.run_round()
    rig.slot.run_round()
    assert rig.out() == [[1], [2], [99], barrier(1), [3]]
    rig.writers.run()
    (ack,) = rig.told(Acknowledged)
    assert set(ack.operators) == {"numbers", "op"}
    stream = SnapshotStreams(rig.store, "chk-1", 0).load(StateHandle.from_json(ack.operators["numbers"]))
    assert [split.position for split in splits_from_parts(decode_parts(stream))] == [2]


def test_a_snapshot_flushes_then_sends_the_barrier_then_freezes_and_acknowledges_when_written() -> None:
    """S3.6: one step; nothing is processed between the flush and the freeze."""
    rig = Rig(inputs=1)
    rig.inputs[0].send(pa.record_batch({"v": [1]}))
    rig.inputs[0].send(barrier(1))
    rig.inputs[0].send(pa.record_batch({"v": [2]}))
    rig.trigger(1)
    while rig.slot.run_round():
        continue
    assert rig.asked == ["process [1]", "prepare 1", "freeze 1", "process [2]"]
    assert rig.out() == [[1], [99], barrier(1), [2]]
    assert rig.told(Acknowledged) == []
    rig.writers.run()
    assert rig.asked[-1] == "write 1"
    assert [message.checkpoint_id for message in rig.told(Acknowledged)] == [1]


def test_a_snapshot_that_cannot_be_written_is_declined() -> None:
    """S2.2, S3.6: acknowledged only when durable."""
    rig = Rig(inputs=1)
    rig.operator.frozen_fails = True
    rig.inputs[0].send(barrier(1))
    rig.trigger(1)
    while rig.slot.run_round():
        continue
    rig.writers.run()
    assert rig.told(Acknowledged) == []
    (declined,) = rig.told(Declined)
    assert declined.checkpoint_id == 1 and "disk full" in declined.reason


def test_a_subtask_that_has_finished_declines_a_trigger() -> None:
    """S1.5, S3.6: a checkpoint planned before that is aborted, and does not hang."""
    rig = Rig()
    rig.trigger(1, stop="suspend")
    rig.slot.run_round()
    rig.writers.run()
    rig.slot.post(Complete(1, 1, 7))
    while rig.slot.run_round():
        continue
    assert rig.subtask.is_finished
    rig.trigger(2)
    rig.slot.run_round()
    assert [(m.checkpoint_id, m.reason) for m in rig.told(Declined)] == [(2, "the subtask has finished")]


def test_a_triggered_subtask_that_is_no_source_holds_the_trigger_until_every_input_has_ended() -> None:
    """S1.3: what its finished predecessors sent and it has not read yet belongs to the snapshot."""
    rig = Rig(inputs=2)
    rig.trigger(1)
    rig.inputs[0].send(pa.record_batch({"v": [1]}))
    for channel in rig.inputs:
        channel.send(EndOfData(drain=True))
    rig.inputs[1].send(EndOfPartition())
    while rig.slot.run_round():
        continue
    assert "freeze 1" not in rig.asked
    rig.inputs[0].send(EndOfPartition())
    while rig.slot.run_round():
        continue
    assert rig.asked == ["process [1]", "end_input", "finish", "prepare 1", "freeze 1"]


@pytest.mark.parametrize(("stop", "asked"), [("suspend", []), ("drain", ["end_input", "finish"])])
def test_finish_is_called_on_a_drain_and_not_on_a_suspend_and_the_end_is_in_front_of_the_barrier(
    stop: str, asked: list[str]
) -> None:
    """S7.1, S7.2: only a real end finishes; the savepoint starts behind EndOfData."""
    rig = Rig()
    rig.trigger(1, stop=stop)
    rig.slot.run_round()
    assert rig.asked == [*asked, "prepare 1", "freeze 1 portably"]
    elements = [element for element in rig.out() if not isinstance(element, Watermark)]
    drained = [[99]] if stop == "drain" else []
    assert elements == [*drained, EndOfData(stop == "drain"), [99], CheckpointBarrier(1, "stop-savepoint", 0, stop)]
    assert not rig.slot.run_round(), "it reads nothing behind its end, and waits for the savepoint (S7.3)"


def test_a_subtask_waits_for_the_snapshot_behind_its_end_then_closes_and_ends_its_partition() -> None:
    """S7.3: close comes before EndOfPartition, and only once the stop-savepoint is complete."""
    rig = Rig()
    rig.trigger(1, stop="suspend")
    rig.slot.run_round()
    rig.out()
    rig.subtask.completed(CommitPermit(1, 1, 7))
    while rig.slot.run_round():
        continue
    assert rig.asked[-1] != "close", "its own part is not acknowledged"
    rig.writers.run()
    while rig.slot.run_round():
        continue
    assert rig.asked[-1] == "close" and rig.out() == [EndOfPartition()]
    ends = (SubtaskEndedData, SubtaskFinished)
    assert [type(message) for message in rig.sent if isinstance(message, ends)] == [*ends]


def test_a_subtask_restored_as_finished_runs_no_user_code_acknowledges_and_ends() -> None:
    """S6.2, S6.4: it tells downstream its end at once, and forwards the barriers of those still upstream of it."""
    rig = Rig(inputs=1, finished=True)
    rig.inputs[0].send(Watermark(MAX_WATERMARK))
    rig.inputs[0].send(EndOfData(drain=True))
    rig.inputs[0].send(barrier(1))
    rig.trigger(1)
    while rig.slot.run_round():
        continue
    rig.writers.run()
    assert rig.asked == []
    assert rig.out() == [Watermark(MAX_WATERMARK), EndOfData(drain=True), barrier(1)]
    (ack,) = rig.told(Acknowledged)
    assert (ack.operators, ack.finished) == ({}, True)


def test_close_releases_a_subtask_that_never_came_to_its_end() -> None:
    """S7.1: in every case, and once."""
    rig = Rig()
    rig.slot.run_round()
    rig.slot.close()
    assert rig.asked == ["process [1]", "close"]


def test_an_operator_is_told_when_its_state_is_for_a_savepoint() -> None:
    """S5.2: any back end restores that one; what comes after is again as the back end likes it."""
    rig = Rig(inputs=1)
    for n, kind in ((1, "checkpoint"), (2, "savepoint"), (3, "final")):
        rig.inputs[0].send(CheckpointBarrier(n, kind, 0, None))  # type: ignore[arg-type]
    while rig.slot.run_round():
        continue
    assert [what for what in rig.asked if "freeze" in what] == ["freeze 1", "freeze 2 portably", "freeze 3"]


def test_blobs_of_a_completed_checkpoint_are_not_written_again() -> None:
    """S5.2: `complete`, or behind a commit gate `durable`, says that it has completed; `abort`, that it has not."""
    rig = Rig(inputs=1)
    reads: list[int] = []
    table = pa.table({KEY_GROUP_COLUMN: pa.array([], pa.uint16())})
    rig.operator.snapshot = lambda n: (
        lambda: [  # type: ignore[method-assign, assignment, return-value]
            StatePart("v", "keyed", table, (), (Blob("chunk", lambda: bytes(reads.append(n) or 2_000_000)),))
        ]
    )
    told: list[DriverMessage] = [Abort(1), Durable(2, last=False), Complete(3, 1, 9)]
    for n in range(1, 5):
        rig.trigger(n)
        rig.inputs[0].send(barrier(n))
        while rig.slot.run_round():
            continue
        while rig.writers.work:
            rig.writers.run()
        if n < 4:
            rig.slot.post(told[n - 1])
    assert reads == [1, 2]
    assert [ack.metrics["persisted_bytes"] > 2_000_000 for ack in rig.told(Acknowledged)] == [True, True, False, False]
    assert all(ack.metrics["bytes"] > 2_000_000 for ack in rig.told(Acknowledged))
