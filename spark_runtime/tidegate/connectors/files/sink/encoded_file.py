"""Files being written by a file sink, whatever their format: the format's part is a `FileEncoding`."""

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
    """Do `work` there, behind what was begun before; the future raises what it raises. From any thread, does not block.

    Encoding is CPU work and a slot has one core, while writer threads are many, so that they can wait for disk or
    network side by side. Arrow's allocator sets up memory of its own for every thread that encodes: ending the files of
    six sinks on eight fresh threads took three times as long as on one (benchmarks/end_of_job.py).
    """
    return _threads[0].submit(work)


def _restart_thread() -> None:
    """Threads do not survive a fork."""
    _threads[:] = [ThreadPoolExecutor(1, thread_name_prefix="file-encoder")]


_restart_thread()
os.register_at_fork(after_in_child=_restart_thread)


class OpenEncoding(Protocol):
    """One file being encoded to local disk."""

    def write(self, table: pa.Table) -> None:
        """Encode records behind those that are there."""

    def size_bytes(self) -> int:
        """Written to disk so far, about."""

    def close(self) -> None:
        """Write what ends the file."""


class FileEncoding(Protocol):
    """A file format and its options. Frozen."""

    @property
    def suffix(self) -> str:
        """Of file names, from the first dot on: `.csv.gz`."""

    @property
    def group_rows(self) -> int:
        """Records wait in memory until there are so many ..."""

    @property
    def group_bytes(self) -> int:
        """... or until they take so many bytes; they are encoded on the slot's loop."""

    def open(self, path: str, schema: pa.Schema) -> OpenEncoding:
        """Begin a file."""


class EncodedFile:
    """One file being written to local disk. Records wait until a group of them is worth encoding.

    Args:
        name: in the staging folder.
        folder: of the published file within the sink's, with a slash behind it; empty: right in it.

    Attributes:
        rows: written so far, those that wait included.
        waiting_bytes: of records that wait in memory.
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
        self.waiting_bytes += batch.get_total_buffer_size()
        if self._waiting_rows >= self._encoding.group_rows or self.waiting_bytes >= self._encoding.group_bytes:
            self.write_group()

    def write_group(self) -> None:
        """Encode what waits."""
        if self._waiting:
            assert self._open is not None, "written to behind its end"
            with with_path(self.path):
                self._open.write(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0

    def size_bytes(self) -> int:
        """Written to disk so far, about; without what waits. Not after `close`."""
        assert self._open is not None, "the file is closed"
        return self._open.size_bytes()

    def close(self) -> None:
        """Encode what waits, and end the file; may be called again. Memory that the encoder held is free for the next
        file: new memory costs more than encoding (benchmarks/end_of_job.py)."""
        if self._open is not None:
            self.write_group()
            with with_path(self.path):
                self._open.close()
            self._open = None

    def start_closing(self) -> None:
        """Have the encoder thread `close` the file; nothing is written to it from now on. Does not block; may be called
        again."""
        if self._ending is None:
            self._ending = begin_on_encoder_thread(self.close)

    def finish_closing(self) -> None:
        """Wait until the encoder thread has closed the file; raises what that raised. Not from that thread."""
        self.start_closing()
        assert self._ending is not None
        self._ending.result()

    def entry(self) -> dict[str, Any]:
        """What the transaction's handle says of the file, after `end`."""
        folder = {"folder": self._folder} if self._folder else {}
        return {"staged": self.name, "rows": self.rows, "bytes": os.stat(self.path).st_size, **folder}

    def drop(self) -> None:
        """Remove the file, whatever state it is in; waits for the encoder thread, should it be at it."""
        if self._ending is not None and not self._ending.cancel():
            wait([self._ending])
        self._waiting = []
        if self._open is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._open.close()
            self._open = None
        with suppress(OSError):
            os.remove(self.path)
