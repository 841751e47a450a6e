"""An exchange that gathers parts before it sends them keeps rows and partial rows apart, within its capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from builders.subtasks import SubtaskHarness

from tidegate.channel.elements import CheckpointBarrier, Element, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.operators.stream_operator import Output, StreamOperator
from tidegate.snapshot.partial_rows import is_partial, partial_schema
from tidegate.subtask.router import OutputEdge

ROWS = pa.schema([("v", pa.int64())])
PARTIAL = partial_schema(list(ROWS))
ROOM_BYTES = 10_000


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=ROWS)


def partial_rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64()), pa.array([1] * len(values))], schema=PARTIAL)


def whole(batch: pa.RecordBatch) -> Sequence[pa.RecordBatch | None]:
    """Partition for one channel."""
    return [batch]


def taken(channel: MemoryChannel) -> Iterator[tuple[bool, list[int]] | Element]:
    """Take the elements that have arrived; a batch as its kind and its values."""
    while (element := channel.poll()) is not None:
        is_batch = isinstance(element, pa.RecordBatch)
        yield (is_partial(element.schema), element["v"].to_pylist()) if is_batch else element


def test_parts_of_one_kind_are_sent_together_and_the_watermark_follows_them() -> None:
    channel = MemoryChannel(ROOM_BYTES)
    edge = OutputEdge([channel], whole, gathered_bytes=ROOM_BYTES)
    for element in (rows(1), rows(2), Watermark(1), partial_rows(3), Watermark(2), partial_rows(4), Watermark(3)):
        edge.send(element)
    assert list(taken(channel)) == [(False, [1, 2]), Watermark(1)]
    edge.flush()
    assert list(taken(channel)) == [(True, [3, 4]), Watermark(3)]


def test_parts_of_the_other_kind_wait_for_capacity() -> None:
    channel = MemoryChannel(1)
    edge = OutputEdge([channel], whole, gathered_bytes=1)
    edge.send(rows(1))
    assert list(taken(channel)) == [(False, [1])] and not edge.holds_back
    edge = OutputEdge([channel], whole, gathered_bytes=20)
    edge.send(rows(1))
    assert edge.gathers and not edge.holds_back
    edge.send(partial_rows(2, 3))
    assert edge.holds_back, "the rows have used the capacity"
    assert list(taken(channel)) == [(False, [1])] and not edge.holds_back
    edge.flush()
    assert list(taken(channel)) == [(True, [2, 3])] and not edge.gathers


class Alternating(StreamOperator):
    """Emits rows and partial rows in turn."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        for value in range(self._batches):
            yield partial_rows(value) if value % 2 else rows(value)


@pytest.mark.parametrize("count", range(2, 9))
def test_an_emission_that_has_used_its_overdraft_waits_with_the_parts_that_it_holds(count: int) -> None:
    """S3.7: an unaligned barrier lets an emission exceed the capacity of its channels once, and no further."""
    channel = MemoryChannel(1, overdraft_bytes=16)
    edge = OutputEdge([channel], whole, gathered_bytes=ROOM_BYTES)
    harness = SubtaskHarness(Alternating(count), ports=(0, 0), edges=[edge], unaligned_after_ms=0)
    harness.send(0, rows(0))
    harness.pump()
    assert edge.holds_back and channel.queued_bytes
    harness.send(1, CheckpointBarrier(1, "checkpoint", 0))
    found: list[tuple[bool, list[int]] | Element] = []
    for _ in range(10):
        harness.pump()
        found += [*taken(channel)]
    batches = [element for element in found if isinstance(element, tuple)]
    assert batches == [(value % 2 == 1, [value]) for value in range(count)]
    assert found[-1] == CheckpointBarrier(1, "checkpoint", 0)
