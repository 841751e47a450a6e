"""Encode tables as Arrow IPC streams, in pieces: columns are written in place, without copies (S5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.jobs.options import SnapshotCompression

ROWS_PER_PIECE = 256 * 1024
"""Rows per Arrow batch in a stream. Limits the data that a reader must decompress at once."""


def stream_of(table: pa.Table, compression: SnapshotCompression = "none") -> Sequence[Any]:
    """Return the stream of a table, as buffers in order. Deterministic for the same table.

    Buffers of columns that are not compressed are the table's own. The stream itself records its compression.
    """
    pieces = _Pieces()
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    with pa.ipc.new_stream(pa.PythonFile(pieces, mode="w"), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_PIECE)
    return pieces.buffers


def table_of(stream: Any) -> pa.Table:
    """Inverse of `stream_of`, for a stream in one buffer. Columns that are not compressed stay in that buffer."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_all()


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
