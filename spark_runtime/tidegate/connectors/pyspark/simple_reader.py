"""Reader of a `SimpleDataSourceStreamReader`: one split, whose position is an offset of the data source."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.connectors.prefetch import Prefetch
from tidegate.connectors.pyspark.offsets import plain_offset
from tidegate.connectors.pyspark.row_batches import batches_of
from tidegate.errors import PipelineError
from tidegate.operators.batch_sizes import concat_batches

Position = Mapping[str, Any]
"""`start`: offset of a read; `end`: offset after it, None: the read has not begun; `rows`: emitted rows of it."""


@dataclass(frozen=True)
class _Read:
    """Rows and the position after them. Without rows: the end of a read, of which `idle` says that it found nothing."""

    position: Position
    rows: pa.RecordBatch | None = None
    idle: bool = False


class SimpleReader(SourceReader):
    """Calls `read` again and again, on a thread. A restored reader repeats an unfinished read with
    `readBetweenOffsets`."""

    def __init__(
        self,
        create: Callable[[], Any],
        struct: StructType,
        wake: Callable[[], None],
        *,
        where: str,
        pause_s: float,
        whole: bool,
    ) -> None:
        """Create the reader.

        Args:
            create: returns the data source's reader; called on the thread.
            where: name of the data source, for errors.
            pause_s: time until the next read if one returned nothing.
            whole: emit all rows of a read at once, because another read may return them in another order.
        """
        self._create, self._struct, self._wake = create, struct, wake
        self._where, self._pause_s, self._whole = where, pause_s, whole
        self._split: Split | None = None
        self._prefetch: Prefetch[_Read] | None = None
        self._idle = False
        self._commits: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept the one split, and start the thread."""
        for split in splits:
            self._split = split
            self._prefetch = Prefetch(partial(self._results, split.position), self._wake, "data-source")

    def poll(self, now_ms: int) -> PollResult:
        """Return the next rows that the thread has read."""
        if self._split is None or self._prefetch is None:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + 1_000, idle=True)
        found = self._prefetch.take()
        if found is None:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + 100, idle=self._idle)
        self._split = replace(self._split, position=found.position)
        self._idle = found.idle
        if found.idle:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + 100, idle=True)
        if found.rows is None:
            return PollResult()
        return PollResult(found.rows, self._split.split_id)

    def snapshot(self) -> Sequence[Split]:
        """See `SourceReader`."""
        return [] if self._split is None else [self._split]

    def active_splits(self) -> frozenset[str]:
        """See `SourceReader`."""
        return frozenset() if self._split is None else frozenset([self._split.split_id])

    def checkpoint_completed(self, checkpoint_id: int, splits: Sequence[Split]) -> None:
        """Commit the offset up to which all rows were emitted. The thread does it before its next read."""
        for split in splits:
            if split.position is not None:
                self._commits.put(split.position["start"])

    def close(self) -> None:
        """Let the thread end."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _results(self, position: Position | None, closed: threading.Event) -> Iterator[_Read]:
        reader = self._create()
        committed: Any = None
        start = reader.initialOffset() if position is None else position["start"]
        if position is not None and position["end"] is not None:
            rows = reader.readBetweenOffsets(start, position["end"])
            yield from self._emitted(rows, start, position["end"], position["rows"])
            start = position["end"]
        else:
            yield _Read({"start": plain_offset(self._where, start), "end": None, "rows": 0})
        while not closed.is_set():
            while not self._commits.empty():
                offset = self._commits.get()
                if offset != committed:
                    reader.commit(offset)
                    committed = offset
            rows, end = reader.read(start)
            end = plain_offset(self._where, end)
            if end == plain_offset(self._where, start):
                self._refuse_rows(rows, end)
                yield _Read({"start": end, "end": None, "rows": 0}, idle=True)
                closed.wait(self._pause_s)
                continue
            yield from self._emitted(rows, plain_offset(self._where, start), end, 0)
            start = end

    def _emitted(self, rows: Any, start: Any, end: Any, skipped: int) -> Iterator[_Read]:
        """Yield the rows of one read after the first `skipped`, then its end."""
        batches: Iterator[pa.RecordBatch] = (b for b in batches_of(rows, self._struct, self._where) if b.num_rows)
        if self._whole:
            read = list(batches)
            batches = iter([concat_batches(read)] if read else [])
        count = 0
        for batch in batches:
            before, count = count, count + batch.num_rows
            if count > skipped:
                yield _Read({"start": start, "end": end, "rows": count}, batch.slice(max(0, skipped - before)))
        yield _Read({"start": end, "end": None, "rows": 0})

    def _refuse_rows(self, rows: Any, offset: Any) -> None:
        if next(iter(rows), None) is not None:
            raise PipelineError(
                "a Python data source returned rows, but the same offset",
                where=f"{self._where}, offset {json.dumps(offset)}",
                cause="the next read would return the same rows again",
                remedy="Return the offset after the rows from read()",
            )
