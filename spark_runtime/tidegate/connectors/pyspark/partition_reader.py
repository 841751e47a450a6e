"""Reader of partitions: of a batch, or of the batches that an enumerator discovers in a stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.connectors.prefetch import PAUSE_S, Prefetch
from tidegate.operators.batch_sizes import concat_batches

OpenPartition = Callable[[Mapping[str, Any]], Iterator[pa.RecordBatch]]
"""Returns the rows of the partition that `Split.data` describes."""


@dataclass(frozen=True)
class _Read:
    """Rows of a split, or its end (`rows` is None)."""

    split_id: str
    rows: pa.RecordBatch | None


class PartitionReader(SourceReader):
    """Reads one partition after the other, on a thread. A position is a number of rows (S4.2)."""

    def __init__(self, open_partition: OpenPartition, wake: Callable[[], None], *, grows: bool, whole: bool) -> None:
        """Create the reader.

        Args:
            grows: splits are discovered while the job runs. Finished ones are then left out of snapshots.
            whole: emit all rows of a partition at once, because another read may return them in another order.
        """
        self._open, self._wake, self._grows, self._whole = open_partition, wake, grows, whole
        self._splits: dict[str, Split] = {}
        self._waiting: queue.SimpleQueue[Split] = queue.SimpleQueue()
        self._prefetch: Prefetch[_Read] | None = None
        self._awaits_more = True

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits. The thread starts with the first one that is not finished."""
        for split in splits:
            self._splits[split.split_id] = split
            if not split.finished:
                self._waiting.put(split)
        if self._prefetch is None and not self._waiting.empty():
            self._prefetch = Prefetch(self._results, self._wake, "data-source")

    def no_more_splits(self) -> None:
        """See `SourceReader`."""
        self._awaits_more = False

    def poll(self, now_ms: int) -> PollResult:
        """Return the next rows that the thread has read."""
        if not self.active_splits():
            if self._awaits_more or self._grows:
                return PollResult(state="nothing_now", retry_at_ms=now_ms + 1_000, idle=True)
            return PollResult(state="end")
        assert self._prefetch is not None, "a split that is not finished starts the thread"
        found = self._prefetch.take()
        if found is None:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + 100)
        split = self._splits[found.split_id]
        if found.rows is not None:
            self._splits[found.split_id] = replace(split, position=(split.position or 0) + found.rows.num_rows)
            return PollResult(found.rows, found.split_id)
        if self._grows:
            del self._splits[found.split_id]
        else:
            self._splits[found.split_id] = replace(split, position=split.position or 0, finished=True)
        return PollResult(splits_changed=True)

    def snapshot(self) -> Sequence[Split]:
        """See `SourceReader`."""
        return list(self._splits.values())

    def active_splits(self) -> frozenset[str]:
        """See `SourceReader`."""
        return frozenset(split.split_id for split in self._splits.values() if not split.finished)

    def close(self) -> None:
        """Let the thread end."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _results(self, closed: threading.Event) -> Iterator[_Read]:
        while not closed.is_set():
            try:
                split = self._waiting.get(timeout=PAUSE_S)
            except queue.Empty:
                continue
            for rows in self._rows(split):
                yield _Read(split.split_id, rows)
            yield _Read(split.split_id, None)

    def _rows(self, split: Split) -> Iterator[pa.RecordBatch]:
        batches = (batch for batch in self._open(split.data) if batch.num_rows)
        if self._whole:
            read = list(batches)
            # All rows were emitted with one batch, so a position after them is the end.
            if read and not split.position:
                yield concat_batches(read)
            return
        skipped = split.position or 0
        for batch in batches:
            if skipped >= batch.num_rows:
                skipped -= batch.num_rows
                continue
            yield batch.slice(skipped)
            skipped = 0
