"""S3.7 in one subtask: what is captured, when it is written, and how far a barrier may overdraw full outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from builders.subtasks import SubtaskHarness

from tidegate.channel.elements import (
    MAX_WATERMARK,
    CancelBarrier,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    IdleStatus,
    Watermark,
)
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.snapshot.channel_state import PART_NAME, ReplayInput, replay_elements
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.subtask.alignment import AlignmentMode
from tidegate.subtask.host import DeclineCode
from tidegate.subtask.snapshots import in_flight_capture as capture_module
from tidegate.subtask.source import SourceInput

SCHEMA = pa.schema([("v", pa.int64())])
ROW_BYTES = 8


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def barrier(n: int, kind: Any = "checkpoint") -> CheckpointBarrier:
    return CheckpointBarrier(n, kind, 0)


class Host:
    """Stands for the slot; writes snapshots at once."""

    def __init__(self) -> None:
        self.time_ms = 0
        self.written: dict[int, tuple[dict[str, list[StatePart]], dict[str, float], bool]] = {}
        self.declined: list[tuple[int, str, str]] = []

    def now_ms(self) -> int:
        return self.time_ms

    def core_wait_ms(self) -> int:
        return 0

    def wake(self) -> None:
        raise AssertionError("nobody wakes the loop here")

    def restored_files(self, files: Any) -> None:
        """Nothing is shared here."""

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        assert checkpoint_id not in self.written, "acknowledged twice"
        assert len(dict(parts)) == len(parts), "two streams for one operator"
        self.written[checkpoint_id] = ({uid: list(part()) for uid, part in parts}, metrics, finished)
        over(checkpoint_id)

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str, code: DeclineCode = "failed") -> None:
        self.declined.append((checkpoint_id, reason, code))

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        pass

    def finished(self, subtask: tuple[int, int]) -> None:
        pass

    def commit(self, *_: Any) -> None:
        raise AssertionError("nothing to commit here")


class Passing(StreamOperator):
    """Passes records on, each row as `copies` batches of its own; its state is what it has seen."""

    merged_bytes = 0  # the tests count batches

    def __init__(self, copies: int = 1, has_state: bool = True) -> None:
        self.copies = copies
        self.has_state = has_state
        self.seen: list[int] = []

    def process(self, batch_: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        self.seen += batch_["v"].to_pylist()
        for value in batch_["v"].to_pylist():
            for _ in range(self.copies):
                yield batch(value)

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        table = pa.table({"v": self.seen}, schema=SCHEMA)
        return (lambda: [StatePart("seen", "list", table)]) if self.has_state else None


class Counting(SourceReader):
    """0, 1, 2, ... one row a batch."""

    def __init__(self) -> None:
        self.next = 0

    def add_splits(self, splits: Sequence[Split]) -> None:
        pass

    def poll(self, now_ms: int) -> PollResult:
        self.next += 1
        return PollResult(batch(self.next - 1), "s")

    def active_splits(self) -> frozenset[str]:
        return frozenset({"s"})

    def snapshot(self) -> Sequence[Split]:
        return [Split("s", {}, self.next)]

    def close(self) -> None:
        pass


class CapturingSubtask(SubtaskHarness):
    """A subtask with its channels; the output takes one row, and one more as overdraft."""

    def __init__(
        self,
        operator: StreamOperator | None = None,
        *,
        channels: int = 2,
        after_ms: int | None = 0,
        output_bytes: int = ROW_BYTES,
        source: bool = False,
        **more: Any,
    ) -> None:
        self.host = Host()
        self.operator = operator or Passing()
        super().__init__(
            self.operator,
            ports=[0] * (0 if source else channels),
            output=MemoryChannel(output_bytes, output_bytes),
            host=self.host,
            source=SourceInput("source", Counting(), [], 0) if source else None,
            unaligned_after_ms=after_ms,
            parallelism=2,
            **more,
        )

    def pump(self) -> None:
        while self.subtask.step():
            continue

    def flow(self) -> list[Any]:
        """Let everything pass."""
        found = []
        while new := (self.pump(), self.out())[1]:
            found += new
        return found

    def state(self, n: int) -> list[int]:
        """Operator state of snapshot n."""
        parts = [part for part in self.host.written[n][0]["op"] if part.name == "seen"]
        return [v for part in parts for v in part.table["v"].to_pylist()]

    def in_flight(self, n: int) -> list[tuple[int, Any]]:
        """(channel, values or watermark) of snapshot n."""
        replay = replay_elements(self.host.written[n][0]["op"], {0: ReplayInput(SCHEMA)}, 0, 2, where="op")
        return [(e.source, e.element if isinstance(e.element, int) else e.element["v"].to_pylist()) for e in replay]


# ------------------------------------------------------------ what is captured


def test_records_and_watermarks_in_front_of_the_barrier_become_state_and_are_processed_all_the_same() -> None:
    """S3.7."""
    harness = CapturingSubtask(output_bytes=1_000)
    harness.send(0, batch(1), Watermark(5), batch(2), barrier(1), batch(3))
    harness.send(1, batch(10), barrier(1))
    harness.subtask.step()
    assert harness.out() == [barrier(1)]
    assert harness.state(1) == []
    assert harness.in_flight(1) == [(0, [1]), (0, 5), (0, [2]), (1, [10])]
    assert [e for e in harness.flow() if isinstance(e, list)] == [[1], [10], [2], [3]]
    assert list(harness.host.written) == [1]


def test_records_of_a_channel_without_barrier_are_recorded_until_it_comes_and_the_acknowledgement_waits() -> None:
    """S2.1, S3.7: acknowledged when every barrier has arrived."""
    harness = CapturingSubtask(output_bytes=1_000)
    harness.send(0, barrier(1), batch(3))
    harness.send(1, batch(10))
    harness.pump()
    harness.send(1, batch(11))
    harness.pump()
    assert harness.host.written == {}
    harness.send(1, batch(12), Watermark(7), barrier(1), batch(13))
    harness.subtask.step()
    assert harness.in_flight(1) == [(1, [10]), (1, [11]), (1, [12]), (1, 7)]
    assert harness.state(1) == []
    harness.pump()
    assert sorted(harness.operator.seen) == [3, 10, 11, 12, 13]  # type: ignore[attr-defined]


def test_what_upstream_tells_again_after_a_restore_is_not_captured() -> None:
    """S3.7, S4.4: idleness, the end of data, MAX_WATERMARK."""
    harness = CapturingSubtask(channels=1, output_bytes=1_000)
    end = [Watermark(MAX_WATERMARK), EndOfData(True), barrier(1)]
    harness.send(0, IdleStatus(True), batch(1), CancelBarrier(7), *end)
    harness.subtask.step()
    assert harness.in_flight(1) == [(0, [1])]
    assert harness.host.written[1][2] is False, "not finished: its data is not processed yet"


def test_a_snapshot_with_nothing_in_flight_has_no_channel_state() -> None:
    """S3.7."""
    harness = CapturingSubtask(channels=1)
    harness.send(0, barrier(1))
    harness.pump()
    assert [part.name for part in harness.host.written[1][0]["op"]] == ["seen"]
    assert harness.host.written[1][1]["in_flight_bytes"] == 0
    assert harness.host.written[1][1]["unaligned"] == 1


def test_channel_state_needs_no_state_of_the_operator_beside_it() -> None:
    """S3.7."""
    harness = CapturingSubtask(Passing(has_state=False), channels=1)
    harness.send(0, batch(1), barrier(1))
    harness.subtask.step()
    assert [part.name for part in harness.host.written[1][0]["op"]] == [PART_NAME]


def test_the_end_of_a_channel_completes_its_capture() -> None:
    """S3.5, S3.7."""
    harness = CapturingSubtask(output_bytes=1_000)
    harness.send(0, batch(1), barrier(1))
    harness.subtask.step()
    assert harness.host.written == {}
    harness.send(1, batch(2), EndOfData(True), EndOfPartition())
    harness.subtask.step()
    assert harness.in_flight(1) == [(0, [1]), (1, [2])]


def test_metrics_tell_time_to_the_snapshot_bytes_in_flight_and_bytes_processed_meanwhile() -> None:
    """S2.5, S3.7."""
    harness = CapturingSubtask(after_ms=100, output_bytes=1_000)
    harness.host.time_ms = 50
    harness.send(0, batch(1, 2), barrier(1))
    harness.pump()
    harness.host.time_ms = 160
    harness.send(1, batch(3, 4, 5))
    harness.pump()
    harness.send(1, batch(6), barrier(1))
    harness.pump()
    metrics = harness.host.written[1][1]
    assert metrics["unaligned"] == 1
    assert metrics["alignment_ms"] == 110
    assert metrics["start_delay_ms"] == 50
    assert metrics["in_flight_bytes"] == 4 * ROW_BYTES
    assert metrics["alignment_bytes"] == 5 * ROW_BYTES


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_bytes_processed_while_aligning_are_counted_per_checkpoint(mode: AlignmentMode) -> None:
    """S2.5, S3.3: an aborted one leaves nothing behind."""
    harness = CapturingSubtask(mode=mode, after_ms=None, output_bytes=1_000)
    harness.send(0, barrier(1))
    harness.send(1, batch(1, 2))
    harness.pump()
    harness.subtask.aborted(1)
    harness.send(0, barrier(2))
    harness.send(1, batch(3), barrier(1), batch(4), barrier(2))
    harness.pump()
    assert harness.host.written[2][1]["alignment_bytes"] == 2 * ROW_BYTES
    assert harness.host.written[2][1]["unaligned"] == 0


# ------------------------------------------------------------ replay


def test_the_replay_comes_before_anything_new_and_a_checkpoint_holds_what_is_left_of_it() -> None:
    """S3.7."""
    harness = CapturingSubtask(
        replay=[(0, batch(1)), (0, Watermark(5)), (1, batch(2)), (1, batch(3))], output_bytes=1_000
    )
    harness.send(0, batch(4))
    harness.send(1, batch(5), barrier(1))
    harness.inputs[0].send(barrier(1))
    harness.subtask.step()
    assert harness.in_flight(1) == [(0, [1]), (0, 5), (0, [4]), (1, [2]), (1, [3]), (1, [5])]
    assert [e for e in harness.flow() if isinstance(e, list)] == [[1], [2], [3], [4], [5]]


def test_replayed_records_are_not_captured_twice_while_a_barrier_is_missing() -> None:
    """S3.7: what is left of the replay is taken with the snapshot; from then on only the channel is recorded."""
    harness = CapturingSubtask(replay=[(1, batch(1)), (1, batch(2))], output_bytes=1_000)
    harness.send(0, barrier(1))
    harness.pump()
    harness.send(1, batch(3), barrier(1))
    harness.pump()
    assert harness.in_flight(1) == [(1, [1]), (1, [2]), (1, [3])]


def test_an_aligned_barrier_waits_for_the_replay() -> None:
    """S3.1, S3.7."""
    harness = CapturingSubtask(channels=1, after_ms=None, replay=[(0, batch(1)), (0, batch(2))], output_bytes=1_000)
    harness.send(0, barrier(1))
    harness.pump()
    assert harness.state(1) == [1, 2]
    assert harness.in_flight(1) == []


# ------------------------------------------------------------ aborts


def test_an_aborted_capture_is_dropped_and_the_barriers_that_still_come_are_ignored() -> None:
    """S2.2, S3.7."""
    harness = CapturingSubtask(output_bytes=1_000)
    harness.send(0, batch(1), barrier(1))
    harness.pump()
    harness.subtask.aborted(1)
    harness.send(1, batch(2), barrier(1))
    harness.pump()
    assert harness.host.written == {}
    assert harness.host.declined == []
    harness.send(0, batch(3), barrier(2))
    harness.send(1, barrier(2))
    harness.subtask.step()
    assert harness.in_flight(2) == [(0, [3])]


def test_an_abort_while_the_barrier_waits_for_room_takes_no_snapshot() -> None:
    """S2.2, S3.7."""
    harness = CapturingSubtask(Passing(copies=4), channels=1)
    harness.send(0, batch(1))
    harness.pump()
    harness.send(0, barrier(1))
    harness.pump()
    harness.subtask.aborted(1)
    assert harness.flow() == [[1]] * 4
    assert harness.host.written == {}


def test_a_checkpoint_that_would_keep_too_much_in_memory_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.2, S3.7: bounded memory."""
    monkeypatch.setattr(capture_module, "MAX_RECORDED_BYTES", 3 * ROW_BYTES)
    harness = CapturingSubtask(output_bytes=1_000)
    harness.send(0, barrier(1))
    harness.send(1, batch(1, 2))
    harness.pump()
    assert harness.host.declined == []
    harness.send(1, batch(3, 4), batch(5))
    harness.pump()
    harness.send(1, barrier(1))
    harness.pump()
    assert [(n, code) for n, _, code in harness.host.declined] == [(1, "failed")]
    assert "before the last barrier" in harness.host.declined[0][1]
    assert harness.host.written == {}
    harness.send(0, barrier(2))
    harness.send(1, barrier(2))
    harness.pump()
    assert list(harness.host.written) == [2]


def test_a_checkpoint_that_a_newer_one_passed_over_is_reported_and_cancelled_downstream() -> None:
    """S3.4, S3.7: not a failure that counts."""
    harness = CapturingSubtask(output_bytes=1_000)
    harness.send(0, barrier(1))
    harness.pump()
    harness.send(1, batch(9), barrier(2))
    harness.pump()
    assert harness.host.declined == [
        (1, "a barrier of checkpoint 2 arrived before all barriers of checkpoint 1", "alignment_aborted")
    ]
    assert harness.out() == [barrier(1), CancelBarrier(1), barrier(2), [9]]
    harness.send(0, barrier(2))
    harness.pump()
    assert harness.in_flight(2) == [(1, [9])]


# ------------------------------------------------------------ overdraft


def test_a_barrier_lets_a_parked_emission_overdraw_the_output_and_passes() -> None:
    """S3.7: it waits for the end of the emission, not for the receiver."""
    harness = CapturingSubtask(Passing(copies=2), channels=1)
    harness.send(0, batch(1), batch(2))
    harness.pump()
    assert harness.output.queued_bytes == ROW_BYTES
    harness.send(0, barrier(1))
    harness.pump()
    assert harness.state(1) == [1]
    assert harness.in_flight(1) == [(0, [2])]
    assert harness.out() == [[1], [1], barrier(1)]


def test_a_barrier_needs_no_room_even_where_the_overdraft_is_used_up() -> None:
    """S3.7."""
    harness = CapturingSubtask(Passing(copies=2), channels=1)
    harness.send(0, batch(1), batch(2))
    harness.pump()
    harness.send(0, barrier(1), barrier(2), barrier(3))
    harness.pump()
    assert [harness.in_flight(n) for n in (1, 2, 3)] == [[(0, [2])]] * 3
    assert harness.out() == [[1], [1], barrier(1), barrier(2), barrier(3)]


def test_without_an_urgent_barrier_nothing_is_overdrawn() -> None:
    """S3.7."""
    for kind, after_ms in (("savepoint", 0), ("checkpoint", None), ("checkpoint", 1_000)):
        harness = CapturingSubtask(Passing(copies=3), channels=1, after_ms=after_ms)
        harness.send(0, batch(1), barrier(1, kind))
        harness.pump()
        assert harness.output.queued_bytes == ROW_BYTES


def test_an_emission_larger_than_the_overdraft_waits_for_the_receiver() -> None:
    """S3.7: bounded memory."""
    harness = CapturingSubtask(Passing(copies=10), channels=1)
    harness.send(0, batch(1), batch(2))
    harness.pump()
    harness.send(0, barrier(1))
    harness.pump()
    polled = 0
    while not harness.host.written:
        assert harness.output.queued_bytes <= 2 * ROW_BYTES
        assert harness.subtask.retry_at_ms(harness.host.time_ms) is None, "nothing to wait for but room"
        assert harness.output.poll() is not None
        polled += 1
        harness.pump()
    assert polled == 8
    assert harness.state(1) == [1]


def test_the_overdraft_is_closed_again_after_the_barrier() -> None:
    """S3.7."""
    harness = CapturingSubtask(Passing(copies=2), channels=1)
    harness.send(0, batch(1), batch(2), batch(3))
    harness.pump()
    harness.send(0, barrier(1))
    harness.pump()
    assert harness.out() == [[1], [1], barrier(1)]
    harness.pump()
    assert harness.output.queued_bytes == ROW_BYTES


def test_a_timeout_that_passes_while_the_emission_is_parked_makes_its_barrier_urgent() -> None:
    """S3.7."""
    harness = CapturingSubtask(Passing(copies=2), channels=1, after_ms=100)
    harness.send(0, batch(1), batch(2), barrier(1))
    harness.pump()
    assert harness.subtask.retry_at_ms(harness.host.time_ms) == 100
    harness.host.time_ms = 99
    harness.pump()
    assert harness.output.queued_bytes == ROW_BYTES
    harness.host.time_ms = 100
    harness.pump()
    assert harness.out() == [[1], [1], barrier(1)]
    assert harness.in_flight(1) == [(0, [2])]


@pytest.mark.parametrize("after_ms", [0, 100])
def test_a_trigger_makes_the_parked_emission_of_a_source_urgent(after_ms: int) -> None:
    """S3.7."""
    harness = CapturingSubtask(Passing(copies=2), source=True, after_ms=after_ms)
    harness.pump()
    harness.subtask.trigger(barrier(1))
    harness.pump()
    if after_ms:
        assert harness.output.queued_bytes == ROW_BYTES
        assert harness.subtask.retry_at_ms(harness.host.time_ms) == after_ms
        harness.host.time_ms = after_ms
        harness.pump()
    assert harness.out() == [[0], [0], barrier(1)]
    assert harness.state(1) == [0]
    assert harness.host.written[1][1]["unaligned"] == 0


# ------------------------------------------------------------ ends


def test_a_triggered_subtask_whose_inputs_have_ended_takes_what_is_queued_as_state() -> None:
    """S1.3, S3.7: nothing buffered is skipped."""
    harness = CapturingSubtask(channels=2, output_bytes=1_000)
    harness.subtask.trigger(barrier(5))
    harness.send(0, batch(1), EndOfData(True), EndOfPartition())
    harness.pump()
    assert harness.host.written == {}
    harness.send(1, batch(2), EndOfData(True), EndOfPartition())
    harness.subtask.step()
    assert harness.in_flight(5) == [(1, [2])]
    assert harness.state(5) == [1]
    harness.pump()
    assert sorted(harness.operator.seen) == [1, 2]  # type: ignore[attr-defined]


def test_a_final_snapshot_waits_until_everything_is_processed() -> None:
    """S1.3, S7.3: aligned, whatever the option."""
    harness = CapturingSubtask(channels=1, output_bytes=1_000)
    harness.send(0, batch(1), EndOfData(True), EndOfPartition())
    harness.subtask.trigger(barrier(5, "final"))
    harness.pump()
    assert harness.state(5) == [1]
    assert harness.in_flight(5) == []
    assert harness.host.written[5][2] is True


def test_a_subtask_that_was_finished_before_answers_an_unaligned_barrier() -> None:
    """S3.7, S6.4."""
    harness = CapturingSubtask(channels=1, output_bytes=1_000, restored_finished=True)
    harness.send(0, Watermark(MAX_WATERMARK), EndOfData(True), barrier(1))
    harness.pump()
    assert harness.in_flight(1) == []
    assert harness.host.written[1][2] is True
    assert harness.out() == [Watermark(MAX_WATERMARK), EndOfData(True), barrier(1)]


def test_switched_off_a_subtask_declines_triggers_and_barriers() -> None:
    """S3.3: at most once."""
    harness = CapturingSubtask(mode="off", after_ms=None)
    harness.subtask.trigger(barrier(1))
    harness.send(0, barrier(2))
    harness.pump()
    assert [n for n, _, _ in harness.host.declined] == [1, 2]
    assert harness.out() == [CancelBarrier(2)]
