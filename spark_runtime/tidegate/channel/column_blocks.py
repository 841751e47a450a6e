"""Record batches as one block of memory that a sender fills itself: the number of rows, then the values of each column.

A block has no schema and no nulls, so only columns of a fixed width can be in it. It is filled before it is sent, so
that rows for another slot need not be joined, serialised and copied into shared memory one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

ALIGNMENT_BYTES = 64
"""Alignment of blocks and of the columns in them, as Arrow recommends for buffers."""
WIDTHS = (4, 8)
"""Bytes of the values that a block may hold."""


@dataclass(frozen=True)
class Block:
    """Memory for the rows of one channel.

    Attributes:
        memory: its bytes.
        place: where the transport finds it again; None: in the memory of this process alone.
    """

    memory: npt.NDArray[np.uint8]
    place: Any = None


class BlockLayout:
    """Where the values of each column are in a block of one schema. It reads the types once, not for each block."""

    def __init__(self, schema: pa.Schema) -> None:
        """Raises ValueError: such rows cannot be in a block."""
        self.schema = schema
        self._types = schema.types
        self._widths = tuple(map(_width, self._types))
        if not self._widths or schema.metadata is not None or not all(width in WIDTHS for width in self._widths):
            raise ValueError(f"rows of {schema} cannot be in a block")

    def offsets(self, rows: int) -> list[int]:
        """Return where each column begins, and after them the size of the block."""
        at, found = ALIGNMENT_BYTES, []
        for width in self._widths:
            found.append(at)
            at += -(-width * rows // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        found.append(at)
        return found

    def batch(self, data: pa.Buffer) -> pa.RecordBatch:
        """Return the rows of a block, as views. Raises ValueError: the block has another size."""
        if data.size < ALIGNMENT_BYTES:
            raise ValueError(f"{data.size} bytes are no rows of {self.schema}")
        rows = int(np.frombuffer(data, "<i8", 1)[0])
        *begins, size = self.offsets(rows)
        if rows < 0 or size != data.size:
            raise ValueError(f"{data.size} bytes instead of {size} for {rows} rows")
        arrays = [
            pa.Array.from_buffers(type_, rows, [None, data.slice(begin, width * rows)], 0)
            for type_, begin, width in zip(self._types, begins, self._widths, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def block_layout(schema: pa.Schema) -> BlockLayout | None:
    """Return the layout of blocks; None: such rows cannot be in a block."""
    try:
        return BlockLayout(schema)
    except ValueError:
        return None


def begin_block(block: Block, rows: int) -> None:
    """Write the number of rows."""
    block.memory[:8].view("<i8")[0] = rows


def _width(data_type: pa.DataType) -> int:
    return int(data_type.bit_width) // 8 if pt.is_primitive(data_type) else 0
