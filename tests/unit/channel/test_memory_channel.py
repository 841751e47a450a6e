"""The channel within a slot."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.channel.elements import CheckpointBarrier, EndOfData, EndOfPartition, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.channel.ports import Announced

BATCH = pa.record_batch({"a": pa.array([1, 2, 3], pa.int64())})


def test_elements_leave_a_memory_channel_in_the_order_they_entered() -> None:
    """S3.1."""
    channel = MemoryChannel(1_000)
    elements = [BATCH, Watermark(5), BATCH, CheckpointBarrier(1, "checkpoint", 0), EndOfPartition()]
    for element in elements:
        channel.send(element)
    sizes = []
    for element in elements:
        sizes.append(channel.next_batch_bytes())
        assert channel.poll() == element
    assert sizes == [BATCH.nbytes, 0, BATCH.nbytes, 0, 0]
    assert channel.poll() is None and channel.next_batch_bytes() == 0


def test_a_memory_channel_takes_one_batch_beyond_its_capacity_and_no_second() -> None:
    channel = MemoryChannel(1)
    channel.send(BATCH)
    assert channel.queued_bytes == BATCH.nbytes == 24
    assert not channel.has_capacity()
    with pytest.raises(AssertionError, match="full channel"):
        channel.send(BATCH)


def test_events_enter_a_full_memory_channel() -> None:
    channel = MemoryChannel(1)
    channel.send(BATCH)
    channel.send(Watermark(1))
    channel.poll()
    assert channel.has_capacity()
    assert channel.poll() == Watermark(1)


@pytest.mark.parametrize("rows", [3, 100_000])
def test_a_slice_of_a_large_batch_counts_with_its_own_rows_only(rows: int) -> None:
    """That of a small one counts with the whole, which is cheaper to find out."""
    channel = MemoryChannel(1_000)
    channel.send(pa.RecordBatch.from_pydict({"a": list(range(rows))}).slice(1, 1))
    assert channel.queued_bytes == (24 if rows == 3 else 8)


def barrier(n: int) -> CheckpointBarrier:
    return CheckpointBarrier(n, "checkpoint", 0)


def test_barriers_and_the_end_are_announced_when_they_enter_and_nothing_else_is() -> None:
    """S3.7."""
    channel = MemoryChannel(1_000)
    announced: list[Announced] = []
    channel.on_barrier_queued(announced.append)
    for element in (BATCH, Watermark(5), barrier(1), EndOfData(True), barrier(2), EndOfPartition()):
        channel.send(element)
    assert announced == [barrier(1), barrier(2), EndOfPartition()]


def test_what_lies_in_front_of_a_barrier_or_the_end_is_told_and_stays() -> None:
    """S3.7."""
    channel = MemoryChannel(1_000)
    channel.on_barrier_queued(lambda _: None)
    elements = [BATCH, Watermark(5), barrier(1), BATCH, barrier(2), Watermark(6), EndOfPartition()]
    for element in elements:
        channel.send(element)
    assert channel.poll() is BATCH
    assert channel.queued_before(1) == [Watermark(5)]
    assert channel.queued_before(2) == [Watermark(5), barrier(1), BATCH]
    assert channel.queued_before(3) == elements[1:-1]
    assert [channel.poll() for _ in elements[1:]] == elements[1:]


def test_an_overdraft_is_one_capacity_more_and_only_while_it_is_allowed() -> None:
    """S3.7: bounded memory."""
    channel = MemoryChannel(48, overdraft_bytes=48)
    channel.send(BATCH)
    channel.send(BATCH)
    assert not channel.has_capacity()
    channel.overdraw(True)
    channel.send(BATCH)
    channel.send(BATCH)
    assert not channel.has_capacity()
    with pytest.raises(AssertionError, match="full channel"):
        channel.send(BATCH)
    for _ in range(2):
        channel.poll()
    assert channel.has_capacity()
    channel.overdraw(False)
    assert not channel.has_capacity()


def test_without_overdraft_nothing_is_overdrawn() -> None:
    channel = MemoryChannel(1)
    channel.send(BATCH)
    channel.overdraw(True)
    assert not channel.has_capacity()
