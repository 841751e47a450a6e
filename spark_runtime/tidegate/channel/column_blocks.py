"""Record batches as one block of memory that a sender fills itself: the number of rows, then the values of each column.

A block has no schema and no nulls, so only columns of a fixed width can be in it. It is filled before it is sent, so
that rows for another slot need not be joined, serialised and copied into shared memory one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def column_widths(schema: pa.Schema) -> tuple[int, ...] | None:
    """Return the bytes of a value of each column; None: such rows cannot be in a block."""
    found = tuple(_width(field.type) for field in schema)
    return found if found and schema.metadata is None and all(width in WIDTHS for width in found) else None


def _width(data_type: pa.DataType) -> int:
    return int(data_type.bit_width) // 8 if pt.is_primitive(data_type) else 0


def column_offsets(widths: Sequence[int], rows: int) -> list[int]:
    """Return where each column begins, and after them the size of the block."""
    at, found = ALIGNMENT_BYTES, []
    for width in widths:
        found.append(at)
        at += -(-width * rows // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return [*found, at]


def begin_block(block: Block, rows: int) -> None:
    """Write the number of rows."""
    block.memory[:8].view("<i8")[0] = rows


def batch_in_block(data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a block, as views.

    Raises:
        ValueError: the block has another size, or the schema does not fit a block.
    """
    widths = column_widths(schema)
    if widths is None or data.size < ALIGNMENT_BYTES:
        raise ValueError(f"{data.size} bytes are no rows of {schema}")
    rows = int(np.frombuffer(data, "<i8", 1)[0])
    *begins, size = column_offsets(widths, rows)
    if rows < 0 or size != data.size:
        raise ValueError(f"{data.size} bytes instead of {size} for {rows} rows")
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, data.slice(begin, width * rows)], 0)
        for field, begin, width in zip(schema, begins, widths, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
