"""Rows that are gathered whole, and written to the blocks of their channels when they are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.column_blocks import Block, BlockLayout, begin_block
from tidegate.channel.ports import BlockChannel, OutputChannel
from tidegate.state.scattered_rows import Targets, scatter_rows

MIN_ROWS = 4_096
"""Smallest batch that is scattered. Smaller ones are few bytes, and cost less if they are cut at once."""
TargetsOf = Callable[[pa.RecordBatch], tuple[Targets, npt.NDArray[np.int64]]]
"""Returns the target of each row, and the number of rows for each target."""


class Divided(NamedTuple):
    """A batch, the target of each row, and the number of rows for each target."""

    batch: pa.RecordBatch
    targets: Targets
    counts: npt.NDArray[np.int64]


@dataclass
class Scatter:
    """Sends gathered batches to the channels of an edge with one copy of each value.

    To cut each batch, join the parts of a channel, serialise them, and copy them into shared memory takes four copies.

    Attributes:
        targets_of: see `TargetsOf`.
        layout: of the blocks.
        channels: of the edge.
    """

    targets_of: TargetsOf
    layout: BlockLayout
    channels: Sequence[OutputChannel]

    def __post_init__(self) -> None:
        # Asked once, because Python compares all names of the protocol.
        self._with_blocks = [channel if isinstance(channel, BlockChannel) else None for channel in self.channels]

    def divide(self, batch: pa.RecordBatch) -> Divided | None:
        """Return where the rows go; None: the batch has to be cut."""
        if batch.num_rows < MIN_ROWS or not batch.schema.equals(self.layout.schema, check_metadata=True):
            return None
        if any(column.null_count for column in batch.columns):
            return None
        return Divided(batch, *self.targets_of(batch))

    def send(self, gathered: Sequence[Divided]) -> None:
        """Send the rows, at most one batch on each channel."""
        counts = np.sum([divided.counts for divided in gathered], axis=0).tolist()
        ends = np.zeros((len(self.layout.schema), len(counts)), np.int64)
        blocks = [self._block(number, rows, ends) if rows else None for number, rows in enumerate(counts)]
        scatter_rows([(divided.batch, divided.targets) for divided in gathered], ends)
        for number, block in enumerate(blocks):
            if block is None:
                continue
            to = self._with_blocks[number]
            if to is not None and block.place is not None:
                to.send_block(block)
            else:
                self.channels[number].send(self.layout.batch(pa.py_buffer(block.memory)))

    def _block(self, number: int, rows: int, ends: npt.NDArray[np.int64]) -> Block:
        """Return a block for the rows of channel `number`, and note where its columns begin."""
        *begins, size_bytes = self.layout.offsets(rows)
        channel = self._with_blocks[number]
        block = channel.reserve(size_bytes) if channel is not None else None
        if block is None:
            block = Block(np.empty(size_bytes, np.uint8))
        begin_block(block, rows)
        ends[:, number] = block.memory.ctypes.data + np.array(begins)
        return block
