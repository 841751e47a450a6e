"""The channel within a slot."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.channel.elements import CheckpointBarrier, EndOfPartition, Watermark
from tidegate.channel.memory import MemoryChannel

BATCH = pa.record_batch({"a": pa.array([1, 2, 3], pa.int64())})


def test_elements_leave_a_memory_channel_in_the_order_they_entered() -> None:
    channel = MemoryChannel(1_000)
    elements = [BATCH, Watermark(5), BATCH, CheckpointBarrier(1, "checkpoint", 0), EndOfPartition()]
    for element in elements:
        channel.send(element)
    assert [channel.poll() for _ in elements] == elements
    assert channel.poll() is None


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


def test_a_sliced_batch_counts_with_its_own_rows_only() -> None:
    channel = MemoryChannel(1_000)
    channel.send(BATCH.slice(1, 1))
    assert channel.queued_bytes == 8
