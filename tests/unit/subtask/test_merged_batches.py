"""Queued batches are merged before an operator sees them: results, watermarks, barriers and snapshots stay the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from builders.subtasks import ROOM_BYTES, SubtaskHarness

from tidegate.channel.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    IdleStatus,
    Watermark,
)
from tidegate.channel.memory import MemoryChannel
from tidegate.operators.stream_operator import MERGED_BYTES, TURN_OVER, Output, StreamOperator
from tidegate.snapshot.channel_state import ReplayInput, replay_elements
from tidegate.snapshot.partial_rows import is_partial, partial_schema
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.subtask.host import DeclineCode

SCHEMA = pa.schema([("channel", pa.int64()), ("v", pa.int64())])
ROW_BYTES = 16
Row = tuple[int, int]


def batch(channel: int, *values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([channel] * len(values), pa.int64()), pa.array(values, pa.int64())], schema=SCHEMA)


def rows_of(table: Any) -> list[Row]:
    return list(zip(table["channel"].to_pylist(), table["v"].to_pylist(), strict=True))


def barrier(n: int) -> CheckpointBarrier:
    return CheckpointBarrier(n, "checkpoint", 0)


class Host:
    """Stands for the slot; writes snapshots at once."""

    def __init__(self) -> None:
        self.written: dict[int, list[StatePart]] = {}

    def now_ms(self) -> int:
        return 0

    def core_wait_ms(self) -> int:
        return 0

    def wake(self) -> None:
        pass

    def restored_files(self, files: Any) -> None:
        pass

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        self.written[checkpoint_id] = [made for _, part in parts for made in part()]
        over(checkpoint_id)

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str, code: DeclineCode = "failed") -> None:
        raise AssertionError(reason)

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        pass

    def finished(self, subtask: tuple[int, int]) -> None:
        pass

    def commit(self, *_: Any) -> None:
        raise AssertionError("nothing to commit here")


class Seeing(StreamOperator):
    """Passes records on; its state is what it has seen. It notes the sizes of its batches, and works on each of them
    for one turn and `more_turns`."""

    def __init__(self, merged_bytes: int, more_turns: int = 0) -> None:
        self.merged_bytes = merged_bytes
        self.more_turns = more_turns
        self.calls: list[tuple[int, list[int]]] = []
        self.seen: list[Row] = []

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        self.calls.append((input_index, batch["v"].to_pylist()))
        for _ in range(self.more_turns):
            yield TURN_OVER
        self.seen += rows_of(batch)
        yield batch

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        table = pa.Table.from_pylist([{"channel": c, "v": v} for c, v in self.seen], schema=SCHEMA)
        return lambda: [StatePart("seen", "list", table)]


class Merging(SubtaskHarness):
    """A subtask with its channels, and room for all that it sends."""

    def __init__(
        self,
        ports: Sequence[int] = (0,),
        *,
        merged_bytes: int = MERGED_BYTES,
        after_ms: int | None = None,
        more_turns: int = 0,
    ) -> None:
        self.host = Host()
        self.operator = Seeing(merged_bytes, more_turns)
        super().__init__(
            self.operator,
            ports=ports,
            output=MemoryChannel(ROOM_BYTES),
            host=self.host,
            unaligned_after_ms=after_ms,
            parallelism=len(ports),
        )

    def pump(self) -> None:
        while self.subtask.step():
            continue

    def snapshot_rows(self, n: int) -> list[Row]:
        """All rows of snapshot n: the operator's, then those in flight."""
        seen = [row for part in self.host.written[n] if part.name == "seen" for row in rows_of(part.table)]
        inputs = {0: ReplayInput(SCHEMA)}
        replay = replay_elements(self.host.written[n], inputs, 0, len(self.inputs), where="op")
        return seen + [row for e in replay if isinstance(e.element, pa.RecordBatch) for row in rows_of(e.element)]


def test_batches_that_have_arrived_are_merged_up_to_the_next_event() -> None:
    """S3.1, S4.4: an event stays between the rows where it was."""
    harness = Merging()
    harness.send(0, batch(0, 1), batch(0, 2, 3), Watermark(5), batch(0, 4), batch(0, 5), barrier(1), batch(0, 6))
    harness.pump()
    assert harness.operator.calls == [(0, [1, 2, 3]), (0, [4, 5]), (0, [6])]
    sent = [e if isinstance(e, Watermark | CheckpointBarrier) else e["v"].to_pylist() for e in harness.sent()]
    assert sent == [[1, 2, 3], Watermark(5), [4, 5], barrier(1), [6]]


def test_no_batch_waits_for_others_and_none_is_larger_than_the_bound() -> None:
    harness = Merging(merged_bytes=3 * ROW_BYTES)
    harness.send(0, batch(0, 1))
    harness.pump()
    harness.send(0, batch(0, 2, 3), batch(0, 4), batch(0, 5), batch(0, 6, 7, 8, 9), batch(0, 10))
    harness.pump()
    assert [values for _, values in harness.operator.calls] == [[1], [2, 3, 4], [5], [6, 7, 8, 9], [10]]


def test_batches_that_arrive_while_the_operator_works_leave_space_in_the_channel_and_are_merged() -> None:
    """Between two turns others run: they fill the channel, up to an event and to the size of a merged batch."""
    harness = Merging(merged_bytes=4 * ROW_BYTES, more_turns=3)
    channel = harness.inputs[0]
    harness.send(0, batch(0, 1))
    assert harness.subtask.step() and not list(harness.sent()), "the first turn is over, its work is not"
    harness.send(0, batch(0, 2, 3))
    assert harness.subtask.step() and channel.poll() is None
    harness.send(0, batch(0, 4), batch(0, 5, 6))
    assert harness.subtask.step() and channel.next_batch_bytes() == 2 * ROW_BYTES, "the batch would be too large"
    harness.pump()
    assert [values for _, values in harness.operator.calls] == [[1], [2, 3, 4], [5, 6]]
    harness.send(0, batch(0, 7))
    harness.subtask.step()
    harness.send(0, batch(0, 8), Watermark(1), batch(0, 9))
    harness.pump()
    assert [values for _, values in harness.operator.calls[3:]] == [[7], [8], [9]]


def test_other_inputs_wait_in_their_channels_while_one_is_gathered() -> None:
    harness = Merging((0, 1), more_turns=2)
    harness.send(0, batch(0, 1))
    harness.subtask.step()
    harness.send(0, batch(0, 2))
    harness.send(1, batch(1, 3))
    harness.subtask.step()
    harness.send(0, batch(0, 4))
    harness.pump()
    assert sorted(harness.operator.calls) == [(0, [1]), (0, [2, 4]), (1, [3])]


def test_channels_of_one_input_are_merged_and_inputs_are_not() -> None:
    harness = Merging((0, 1, 0))
    harness.send(0, batch(0, 1))
    harness.send(1, batch(1, 2), batch(1, 3))
    harness.send(2, batch(2, 4))
    harness.pump()
    assert harness.operator.calls == [(0, [1, 4]), (1, [2, 3])]


def test_a_channel_that_is_blocked_for_an_alignment_is_not_merged() -> None:
    """S3.2."""
    harness = Merging((0, 0))
    harness.send(0, barrier(1), batch(0, 1))
    harness.send(1, batch(1, 2))
    harness.pump()
    harness.send(1, batch(1, 3), barrier(1))
    harness.pump()
    assert [values for _, values in harness.operator.calls] == [[2], [3], [1]]
    assert harness.snapshot_rows(1) == [(1, 2), (1, 3)]


def test_a_busy_channel_does_not_starve_another() -> None:
    harness = Merging((0, 0), merged_bytes=2 * ROW_BYTES)
    harness.send(0, *(batch(0, n) for n in range(6)))
    harness.send(1, batch(1, 10), batch(1, 11))
    harness.pump()
    assert [values for _, values in harness.operator.calls] == [[0, 1], [10, 11], [2, 3], [4, 5]]


def test_with_unaligned_checkpoints_an_operator_cannot_ask_for_more() -> None:
    """S3.7: a barrier overtakes the batches of the queue, not a merged one that the operator is processing."""
    size = MERGED_BYTES // ROW_BYTES // 2
    for after_ms, calls in ((None, 1), (0, 2)):
        harness = Merging(merged_bytes=100 * MERGED_BYTES, after_ms=after_ms)
        harness.send(0, *(batch(0, *range(size)) for _ in range(3)))
        harness.pump()
        assert len(harness.operator.calls) == calls


def dictionary(prefix: str) -> pa.RecordBatch:
    words = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), [f"{prefix}{n}" for n in range(100)])
    return pa.record_batch([words], names=["word"])


class Words(StreamOperator):
    """Passes records on."""

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield batch


def test_batches_whose_dictionaries_do_not_fit_together_stay_apart_in_order() -> None:
    harness = SubtaskHarness(Words())
    given = [dictionary("a"), dictionary("a"), dictionary("b"), dictionary("c")]
    harness.send(0, *given[:2])
    harness.pump()
    (joined,) = harness.sent()
    assert joined.column(0).to_pylist() == given[0].column(0).to_pylist() * 2
    harness.send(0, *given[1:], Watermark(1))
    harness.pump()
    *batches, watermark = harness.sent()
    assert watermark == Watermark(1)
    assert [b.column(0).to_pylist() for b in batches] == [b.column(0).to_pylist() for b in given[1:]]


def test_partial_rows_and_rows_stay_apart_in_order() -> None:
    """S3.7: what was taken from the channels and not processed yet is part of a snapshot."""
    harness = SubtaskHarness(Words(), ports=(0, 0), unaligned_after_ms=0)
    schema = partial_schema([pa.field("v", pa.int64())])

    def partial_rows(value: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array([value]), pa.array([1])], schema=schema)

    harness.send(0, batch(0, 1), batch(0, 2), partial_rows(3), partial_rows(4), batch(0, 5), Watermark(1))
    harness.send(1, batch(1, 6))
    harness.subtask.step()
    left = [element.num_rows for _, element in harness.subtask._inputs.replay_left()]
    assert left == [1, 1, 1, 1]
    harness.pump()
    sent = [e for e in harness.sent() if isinstance(e, pa.RecordBatch)]
    assert [is_partial(e.schema) for e in sent] == [False, True, False]
    assert [e["v"].to_pylist() for e in sent] == [[1, 2], [3, 4], [5, 6]]


# ------------------------------------------------------------ the same with and without


def script(seed: int, channels: int) -> list[tuple[int, Any]]:
    """(channel, element) in the order of arrival; a channel of None: let the subtask work."""
    rng = random.Random(seed)
    made: list[list[Any]] = [[] for _ in range(channels)]
    for channel, elements in enumerate(made):
        watermark = value = 0
        for n in range(1, 4):
            for _ in range(rng.randrange(8)):
                if rng.random() < 0.2:
                    watermark += rng.randrange(1, 5)
                    elements.append(Watermark(watermark))
                # While one of several channels is idle, the others decide the watermark: it depends on their order.
                if channels == 1 and rng.random() < 0.1:
                    elements += [IdleStatus(True), IdleStatus(False)]
                elements.append(batch(channel, *range(value, value := value + rng.randrange(1, 4))))
            elements.append(barrier(n))
        elements += [Watermark(MAX_WATERMARK), EndOfData(True), EndOfPartition()]
    order: list[tuple[int, Any]] = []
    while any(made):
        channel = rng.choice([c for c, elements in enumerate(made) if elements])
        order.append((channel, made[channel].pop(0)))
        if rng.random() < 0.3:
            order.append((-1, rng.randrange(1, 6)))
    return order


def played(order: Sequence[tuple[int, Any]], harness: Merging) -> list[Any]:
    for channel, element in order:
        if channel >= 0:
            harness.send(channel, element)
            continue
        for _ in range(element):
            harness.subtask.step()
    harness.pump()
    return list(harness.sent())


def epochs(sent: Sequence[Any]) -> list[tuple[list[Row], int]]:
    """For each barrier: the rows since the barrier before, ordered within each channel, and the watermark."""
    found: list[tuple[list[Row], int]] = []
    rows: list[Row] = []
    watermark_us = MIN_WATERMARK
    for element in sent:
        if isinstance(element, pa.RecordBatch):
            rows += rows_of(element)
        elif isinstance(element, Watermark):
            assert element.time_us > watermark_us
            watermark_us = element.time_us
        elif isinstance(element, CheckpointBarrier | EndOfData):
            # A stable order by channel: rows of one channel must have kept theirs.
            found.append((sorted(rows, key=lambda row: row[0]), watermark_us))
            rows = []
    return found


@pytest.mark.parametrize("more_turns", [0, 2])
@pytest.mark.parametrize("channels", [1, 3])
def test_merging_changes_no_result_watermark_barrier_or_aligned_snapshot(channels: int, more_turns: int) -> None:
    """S3.1, S3.2, S4.4."""
    merged = 0
    for seed in range(100):
        order = script(seed, channels)
        one, other = Merging([0] * channels, merged_bytes=0), Merging([0] * channels, more_turns=more_turns)
        expected, sent = played(order, one), played(order, other)
        assert epochs(sent) == epochs(expected)
        barriers = [[e for e in found if isinstance(e, CheckpointBarrier)] for found in (expected, sent)]
        assert barriers[0] == barriers[1] == [barrier(n) for n in (1, 2, 3)]
        for n in (1, 2, 3):
            assert sorted(other.snapshot_rows(n)) == sorted(one.snapshot_rows(n))
        merged += len(one.operator.calls) - len(other.operator.calls)
    assert merged > 100, "hardly a batch was merged"


@pytest.mark.parametrize("more_turns", [0, 2])
@pytest.mark.parametrize("after_ms", [0, 10])
def test_unaligned_snapshots_of_merged_batches_hold_every_row_before_the_barriers_once(
    after_ms: int, more_turns: int
) -> None:
    """S3.7: in the operator's state or in flight, and the rows of a channel in their order."""
    in_flight = 0
    for seed in range(100):
        order = script(seed, 3)
        harness = Merging((0, 0, 0), after_ms=after_ms, more_turns=more_turns)
        sent = played(order, harness)
        everything = [row for element in sent if isinstance(element, pa.RecordBatch) for row in rows_of(element)]
        assert sorted(everything) == sorted(r for _, e in order if isinstance(e, pa.RecordBatch) for r in rows_of(e))
        for n in sorted(harness.host.written):
            before = [elements_before(order, channel, n) for channel in range(3)]
            found = harness.snapshot_rows(n)
            assert [[row for row in found if row[0] == channel] for channel in range(3)] == before
            in_flight += len(harness.host.written[n]) > 1
    assert in_flight > 10 or after_ms > 0


def elements_before(order: Sequence[tuple[int, Any]], channel: int, n: int) -> list[Row]:
    """The rows of a channel before barrier n."""
    rows: list[Row] = []
    for number, element in order:
        if number == channel and element == barrier(n):
            break
        if number == channel and isinstance(element, pa.RecordBatch):
            rows += rows_of(element)
    return rows
