"""Files that a file sink is writing, in any format: a `FileEncoding` implements the format."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from tidegate.connectors.storage import with_path

_threads: list[ThreadPoolExecutor] = []


def begin_on_encoder_thread(work: Callable[[], None]) -> Future[None]:
    """Run `work` on the encoder thread, after the work that was begun before. Does not block; from any thread.

    The returned future raises what `work` raises. There is one encoder thread: encoding is CPU work and a slot has one
    core, while the many writer threads wait for disk or network side by side. Arrow's allocator sets up its own memory
    for every thread that encodes: closing the files of six sinks on eight fresh threads took three times as long as on
    one (benchmarks/end_of_job.py).
    """
    return _threads[0].submit(work)


def _restart_thread() -> None:
    """Create the encoder thread; again in a forked process, because threads do not survive a fork."""
    _threads[:] = [ThreadPoolExecutor(1, thread_name_prefix="file-encoder")]


_restart_thread()
os.register_at_fork(after_in_child=_restart_thread)


class OpenEncoding(Protocol):
    """One file being encoded to local disk."""

    def write(self, table: pa.Table) -> None:
        """Append records to the file."""

    def size_bytes(self) -> int:
        """Return the approximate number of bytes written to disk so far."""

    def close(self) -> None:
        """Write the end of the file."""


class FileEncoding(Protocol):
    """A file format and its options. Frozen."""

    @property
    def suffix(self) -> str:
        """Return the suffix of file names, from the first dot on: `.csv.gz`."""

    @property
    def group_rows(self) -> int:
        """Return the number of waiting rows at which they are encoded on the slot's loop."""

    @property
    def group_bytes(self) -> int:
        """Return the number of waiting bytes at which they are encoded on the slot's loop."""

    def open(self, path: str, schema: pa.Schema) -> OpenEncoding:
        """Begin a file."""


class EncodedFile:
    """One file being written to local disk. Records wait in memory until a group of them is worth encoding.

    Args:
        name: name in the staging folder.
        folder: folder of the published file below the sink's, with a trailing slash; empty: directly in the sink's
            folder.

    Attributes:
        rows: rows written so far, including those that wait.
        waiting_bytes: size of the records that wait in memory.
    """

    def __init__(self, path: str, name: str, schema: pa.Schema, encoding: FileEncoding, folder: str = "") -> None:
        self.path = path
        self.name = name
        self.rows = 0
        self._folder = folder
        self._schema = schema
        self._encoding = encoding
        with with_path(path):
            self._open: OpenEncoding | None = encoding.open(path, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.waiting_bytes = 0
        self._ending: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records."""
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        # Not `nbytes`: a slice keeps the whole buffers that it refers to in memory.
        self.waiting_bytes += batch.get_total_buffer_size()
        if self._waiting_rows >= self._encoding.group_rows or self.waiting_bytes >= self._encoding.group_bytes:
            self.write_group()

    def write_group(self) -> None:
        """Encode the records that wait."""
        if self._waiting:
            assert self._open is not None, "written after its end"
            with with_path(self.path):
                self._open.write(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def size_bytes(self) -> int:
        """Return the approximate number of bytes on disk, without records that wait. Not allowed after `close`."""
        assert self._open is not None, "the file is closed"
        return self._open.size_bytes()

    def close(self) -> None:
        """Encode the records that wait, and end the file; may be called again.

        This frees the encoder's memory for the next file: new memory costs more than encoding
        (benchmarks/end_of_job.py).
        """
        if self._open is not None:
            self.write_group()
            with with_path(self.path):
                self._open.close()
            self._open = None

    def start_closing(self) -> None:
        """Make the encoder thread `close` the file. Nothing is written to it from now on. Does not block; may be called
        again.
        """
        if self._ending is None:
            self._ending = begin_on_encoder_thread(self.close)

    def finish_closing(self) -> None:
        """Wait until the encoder thread has closed the file. Raises the error of the close. Not for use on the encoder
        thread.
        """
        self.start_closing()
        assert self._ending is not None
        self._ending.result()

    def entry(self) -> dict[str, Any]:
        """Return the file's entry in the transaction's handle, after `finish_closing`."""
        folder = {"folder": self._folder} if self._folder else {}
        return {"staged": self.name, "rows": self.rows, "bytes": os.stat(self.path).st_size, **folder}

    def drop(self) -> None:
        """Remove the file in any state. Waits for the encoder thread if it is closing the file."""
        # A close that has begun cannot be cancelled, and must not write while the file is removed. Its error does not
        # matter.
        if self._ending is not None and not self._ending.cancel():
            wait([self._ending])
        self._waiting = []
        if self._open is not None:
            # The close only frees the descriptor and the encoder's memory, so a file that cannot be completed is no
            # error.
            with suppress(OSError, ValueError, pa.ArrowException):
                self._open.close()
            self._open = None
        with suppress(OSError):
            os.remove(self.path)
