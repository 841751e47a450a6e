"""Encode tables as Arrow IPC streams, in pieces (S5.2).

Columns are written in place, except integers that need fewer than eight bytes: each of them is stored in one, two or
four, and a column of one value not at all. That costs less than the bytes that it saves. The metadata of the stream's
fields records it, and `table_of` gives the columns back as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.jobs.options import SnapshotCompression

ROWS_PER_PIECE = 256 * 1024
"""Rows per Arrow batch in a stream. Limits the data that a reader must decompress at once."""


MIN_NARROW_ROWS = 256
"""Shorter tables are stored as they are: they have few bytes to save."""
_STORED = b"tidegate.stored"
"""Key in the metadata of a field that is int64 in the table. Its value: `_NARROW`, or the one value of the column."""
_NARROW = b"narrow"
_REQUIRED = b"tidegate.required"
"""Key in the metadata of a field of one value that is not nullable in the table: Arrow's type without values always
is."""
_WIDTHS = (np.uint8, np.uint16, np.uint32)


def stream_of(table: pa.Table, compression: SnapshotCompression = "none") -> Sequence[Any]:
    """Return the stream of a table, as buffers in order. Deterministic for the same table.

    Buffers of columns that are neither compressed nor narrowed are the table's own. The stream itself records its
    compression.
    """
    pieces = _Pieces()
    table = _narrowed(table)
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    with pa.ipc.new_stream(pa.PythonFile(pieces, mode="w"), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_PIECE)
    return pieces.buffers


def table_of(stream: Any) -> pa.Table:
    """Inverse of `stream_of`, for a stream in one buffer. Columns that are stored as they are stay in that buffer."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        table = reader.read_all()
    for index, field in enumerate(table.schema):
        stored = (field.metadata or {}).get(_STORED)
        if stored is not None:
            column = table.column(index)
            wide = column.cast(pa.int64()) if stored == _NARROW else pa.array(np.full(table.num_rows, int(stored)))
            table = table.set_column(index, _plain(field), wide)
    return table


def _narrowed(table: pa.Table) -> pa.Table:
    """Return the table as it is stored."""
    if table.num_rows < MIN_NARROW_ROWS:
        return table
    for index, field in enumerate(table.schema):
        column = table.column(index)
        # The reader removes all metadata of a narrowed field.
        if field.type != pa.int64() or field.metadata or column.num_chunks != 1 or column.null_count:
            continue
        stored = _narrow(field, column.chunk(0))
        if stored is not None:
            table = table.set_column(index, *stored)
    return table


def _narrow(field: pa.Field, column: pa.Array) -> tuple[pa.Field, pa.Array] | None:
    """Return the column as it is stored; None: in eight bytes per value, as it is."""
    values = column.to_numpy()
    first = values[0]
    if first == values[-1] and np.all(values == first):
        metadata = {_STORED: str(first).encode(), **({} if field.nullable else {_REQUIRED: b""})}
        return pa.field(field.name, pa.null(), metadata=metadata), pa.nulls(len(values))
    # A negative value sets the highest bit.
    bits = int(np.bitwise_or.reduce(values))
    for width in _WIDTHS:
        if 0 <= bits <= np.iinfo(width).max:
            narrow = pa.array(values.astype(width))
            return pa.field(field.name, narrow.type, field.nullable, {_STORED: _NARROW}), narrow
    return None


def _plain(field: pa.Field) -> pa.Field:
    """Return the field in the table."""
    return pa.field(field.name, pa.int64(), field.nullable and _REQUIRED not in field.metadata)


class _Pieces:
    """A file for Arrow to write to. It keeps Arrow's own buffers, without a copy of their content."""

    closed = False

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self.buffers.append(data)
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
