"""Tables as Arrow IPC streams, in pieces: columns are written from where they lie, not put together before (S5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.jobs.options import SnapshotCompression

ROWS_PER_PIECE = 256 * 1024
"""Rows per Arrow batch in a stream: bounds what a reader must decompress at once."""


def stream_of(table: pa.Table, compression: SnapshotCompression = "none") -> Sequence[Any]:
    """The stream of a table, as buffers one after the other; those of columns that are not compressed are the table's
    own. A stream says itself how it is compressed. Deterministic for the same table."""
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
    """A file for Arrow to write to. It hands over its own buffers: what they hold is not copied."""

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
