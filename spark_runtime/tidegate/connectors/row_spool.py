"""Buffer of one transaction's records until its pre-commit: in memory, and on local disk if they are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

MEMORY_BYTES = 32 * 2**20
"""Bytes that wait in memory before they are written to disk."""
CHUNK_ROWS = 65_536
"""Approximate number of rows of the chunks into which small batches are combined."""


class RowSpool:
    """Records that are written on the loop, then read by one thread at a time, any number of times.

    The file has no name and is deleted with this object.

    Args:
        scratch: folder for the file; empty: the system's.
    """

    def __init__(self, schema: pa.Schema, scratch: str = "") -> None:
        self.rows = 0
        self._schema = schema
        self._scratch = scratch
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Append records."""
        self.rows += batch.num_rows
        self._batches.append(batch)
        # Not `nbytes`: a slice keeps the whole buffers that it refers to in memory.
        self._bytes += batch.get_total_buffer_size()
        if self._bytes > MEMORY_BYTES:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._scratch or None)  # noqa: SIM115 - closed by drop()
                self._writer = pa.ipc.new_stream(self._file, self._schema)
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
            self._batches, self._bytes = [], 0

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in order. Nothing can be appended afterwards."""
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in self._in_order():
            waiting.append(batch)
            count += batch.num_rows
            if count >= CHUNK_ROWS:
                yield from pa.Table.from_batches(waiting, self._schema).combine_chunks().to_batches()
                waiting, count = [], 0
        yield from pa.Table.from_batches(waiting, self._schema).combine_chunks().to_batches()

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        if self._file is not None:
            # A stream can be read only after its end is written. When a later attempt reads again, the writer is closed
            # already.
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as reader:
                yield from reader
        yield from self._batches

    def drop(self) -> None:
        """Drop the records."""
        self._batches, self._writer = [], None
        if self._file is not None:
            self._file.close()
            self._file = None
