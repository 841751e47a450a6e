"""Rows that are written straight to their channels are those that cutting them would send (S3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from tidegate.channel.column_blocks import Block, BlockLayout
from tidegate.channel.elements import Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.state.keys.key_hash import hash_targets, partition_hash
from tidegate.subtask.router import OutputEdge
from tidegate.subtask.scatter import MIN_ROWS, Scatter

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int32()), ("t", pa.timestamp("us"))])
ROOM_BYTES = 2**30
SUBTASKS = 5


class BlockMemory(MemoryChannel):
    """Gives blocks, as a channel in shared memory does, until `left` is 0."""

    def __init__(self, left: int) -> None:
        super().__init__(ROOM_BYTES)
        self.left = left
        self.sent_blocks = 0

    def reserve(self, size_bytes: int) -> Block | None:
        self.left -= 1
        return Block(np.full(size_bytes, 0xFF, np.uint8), "here") if self.left >= 0 else None

    def send_block(self, block: Block) -> None:
        self.sent_blocks += 1
        self.send(BlockLayout(SCHEMA).batch(pa.py_buffer(block.memory)))


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    return pa.record_batch([numbers * 7919, numbers.astype(np.int32), numbers.view("M8[us]")], schema=SCHEMA)


def edge(channels: Sequence[MemoryChannel], *, scatters: bool) -> OutputEdge:
    hashed = {"columns": ["k"], "parallelism": len(channels), "max_parallelism": 128}
    return OutputEdge(
        channels,
        partial(partition_hash, **hashed),
        gathered_bytes=ROOM_BYTES,
        scatter=Scatter(partial(hash_targets, **hashed), BlockLayout(SCHEMA), channels) if scatters else None,
    )


def sent(channels: Sequence[MemoryChannel], batches: Sequence[pa.RecordBatch], *, scatters: bool) -> list[pa.Table]:
    """Send the batches, and return what arrives in each channel."""
    tested = edge(channels, scatters=scatters)
    for batch in batches:
        tested.send(batch)
    tested.flush()
    assert not tested.gathers
    found = []
    for channel in channels:
        taken = []
        while (element := channel.poll()) is not None:
            assert isinstance(element, pa.RecordBatch)
            element.validate(full=True)
            taken.append(element)
        found.append(pa.Table.from_batches(taken, SCHEMA).combine_chunks())
    return found


def cut(batches: Sequence[pa.RecordBatch]) -> list[pa.Table]:
    return sent([MemoryChannel(ROOM_BYTES) for _ in range(SUBTASKS)], batches, scatters=False)


def test_each_channel_gets_its_rows_in_order_and_at_once() -> None:
    batches = [rows(MIN_ROWS), rows(2 * MIN_ROWS, 10**6).slice(17), rows(MIN_ROWS, 10**9)]
    channels = [BlockMemory(left=1) for _ in range(3)]
    others = [MemoryChannel(ROOM_BYTES) for _ in range(SUBTASKS - 3)]
    found = sent([*channels, *others], batches, scatters=True)
    assert found == cut(batches)
    assert [channel.sent_blocks for channel in channels] == [1, 1, 1]


def test_without_memory_for_blocks_the_rows_are_sent_as_batches() -> None:
    channels = [BlockMemory(left=0) for _ in range(SUBTASKS)]
    assert sent(channels, [rows(MIN_ROWS)], scatters=True) == cut([rows(MIN_ROWS)])
    assert {channel.sent_blocks for channel in channels} == {0}


@pytest.mark.parametrize("large_first", [False, True])
def test_batches_that_cannot_be_scattered_keep_their_place(large_first: bool) -> None:
    """Small batches, and batches with nulls, are cut. Rows of a channel keep their order (S3.1)."""
    with_nulls = rows(MIN_ROWS, 10**6).set_column(1, SCHEMA.field(1), pa.nulls(MIN_ROWS, pa.int32()))
    batches = [rows(MIN_ROWS), rows(10, 500_000), with_nulls, rows(MIN_ROWS, 2 * 10**6)]
    batches = batches if large_first else batches[1:]
    assert sent([BlockMemory(left=9) for _ in range(SUBTASKS)], batches, scatters=True) == cut(batches)


def test_all_rows_of_one_key_go_to_one_channel() -> None:
    one_key = rows(MIN_ROWS).set_column(0, SCHEMA.field(0), pa.array(np.full(MIN_ROWS, 3)))
    assert sent([BlockMemory(left=1) for _ in range(SUBTASKS)], [one_key], scatters=True) == cut([one_key])


def test_a_watermark_follows_the_rows() -> None:
    channels = [BlockMemory(left=1), BlockMemory(left=1)]
    tested = edge(channels, scatters=True)
    tested.send(rows(MIN_ROWS))
    tested.send(Watermark(7))
    assert channels[0].poll() is None
    tested.flush()
    for channel in channels:
        assert isinstance(channel.poll(), pa.RecordBatch)
        assert channel.poll() == Watermark(7)


def test_enough_rows_are_sent_at_once() -> None:
    channels = [BlockMemory(left=9), BlockMemory(left=9)]
    tested = edge(channels, scatters=True)
    tested.gathered_bytes = 2 * rows(MIN_ROWS).nbytes
    tested.send(rows(MIN_ROWS))
    assert tested.gathers
    tested.send(rows(MIN_ROWS))
    assert not tested.gathers
