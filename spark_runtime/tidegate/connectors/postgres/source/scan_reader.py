"""Reader of ranges of a table."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import PollResult, SourceContext, SourceReader, Split
from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.key_ranges import KeyRange, copy_statement
from tidegate.connectors.postgres.source.scan_splits import begin_reading
from tidegate.connectors.postgres.source.source_errors import is_outage, raise_alone, source_error
from tidegate.connectors.postgres.source.source_session import SourceClosedError, open_session
from tidegate.connectors.postgres.source.source_table import TableName
from tidegate.connectors.postgres.source.table_copy import copied_rows
from tidegate.connectors.prefetch import PAUSE_S, Prefetch

logger = logging.getLogger("tidegate.connectors")

RETRY_MS = 1_000
"""Wait for the next poll of a reader without rows, milliseconds. Rows end it, by the wake call."""
RETRY_OUTAGE_S = 0.5
"""Seconds between two attempts to reach the server."""


@dataclass(frozen=True)
class Scan:
    """The part of a table that is read.

    Attributes:
        schema: of the batches.
        condition: SQL condition, or None.
        outage_s: seconds for which the server may not answer.
    """

    database: Database
    table: TableName
    schema: pa.Schema
    condition: str | None
    outage_s: float


@dataclass(frozen=True)
class _Read:
    """Rows of a split with the position after them, or the split's end (`batch` is None)."""

    split_id: str
    batch: pa.RecordBatch | None
    position: Any


class ScanReader(SourceReader):
    """Reads one range after the other, on a thread. A position is the key of the last row (S4.2).

    So a restored reader continues exactly after the last row. Rows that were changed in between may be read in their
    new version; a row whose key was changed may be read twice or not at all, like one that was added or deleted.
    """

    def __init__(self, ctx: SourceContext, scan: Scan, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._ctx, self._scan, self._now_s = ctx, scan, monotonic_s
        self._splits: dict[str, Split] = {}
        self._waiting: queue.SimpleQueue[Split] = queue.SimpleQueue()
        self._prefetch: Prefetch[_Read] | None = None
        self._awaits_more = True

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept ranges. The thread starts with the first one that is not finished."""
        for split in splits:
            self._splits[split.split_id] = split
            if not split.finished:
                self._waiting.put(split)
        if self._prefetch is None and not self._waiting.empty():
            name = f"postgres-{self._ctx.uid}-{self._ctx.subtask}"
            self._prefetch = Prefetch(self._results, self._ctx.wake, name)

    def no_more_splits(self) -> None:
        """Return `end` when all ranges are read."""
        self._awaits_more = False

    def poll(self, now_ms: int) -> PollResult:
        """Return the next rows that the thread has read."""
        if not self.active_splits():
            if self._awaits_more:
                return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS, idle=True)
            return PollResult(state="end")
        assert self._prefetch is not None, "a split that is not finished starts the thread"
        found = self._prefetch.take()
        if found is None:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS)
        split = self._splits[found.split_id]
        self._splits[found.split_id] = replace(split, position=found.position, finished=found.batch is None)
        if found.batch is None:
            return PollResult(splits_changed=True)
        return PollResult(found.batch, found.split_id)

    def snapshot(self) -> Sequence[Split]:
        """Return all ranges with the key of the last row polled (S4.2)."""
        return list(self._splits.values())

    def active_splits(self) -> frozenset[str]:
        """Return the ranges that are not read to their end."""
        return frozenset(split.split_id for split in self._splits.values() if not split.finished)

    def progress(self) -> Mapping[str, Any]:
        """Return rows emitted over all runs, and the number of ranges."""
        rows = sum((split.position or {}).get("rows", 0) for split in self._splits.values())
        return {"rows": rows, "ranges": len(self._splits)}

    def close(self) -> None:
        """Let the thread end."""
        if self._prefetch is not None:
            self._prefetch.close()

    # ------------------------------------------------------------ on the thread

    def _results(self, closed: threading.Event) -> Iterator[_Read]:
        while not closed.is_set():
            try:
                split = self._waiting.get(timeout=PAUSE_S)
            except queue.Empty:
                continue
            try:
                yield from self._read(split, closed)
            except SourceClosedError:
                return

    def _read(self, split: Split, closed: threading.Event) -> Iterator[_Read]:
        """Yield the rest of a range, over lost connections."""
        position = split.position
        answered_s = self._now_s()
        while True:
            try:
                for read in self._attempt(split, position, closed):
                    yield read
                    position, answered_s = read.position, self._now_s()
                yield _Read(split.split_id, None, position or {"after": None, "rows": 0})
                return
            except load_psycopg().Error as error:
                failed = source_error(
                    self._scan.database, error, "the table cannot be read", f"table {self._scan.table}"
                )
                if not is_outage(error) or self._now_s() - answered_s >= self._scan.outage_s:
                    raise_alone(failed)
                logger.warning("a read of a table is repeated from its last row: %s", failed)
                if closed.wait(RETRY_OUTAGE_S):
                    return

    def _attempt(self, split: Split, position: Any, closed: threading.Event) -> Iterator[_Read]:
        scan, read = self._scan, KeyRange.from_json(split.data)
        after, rows = (position["after"], position["rows"]) if position else (None, 0)
        connection = open_session(scan.database, f"tidegate {self._ctx.uid}/{self._ctx.subtask}")
        try:
            # A plan with parallel workers, or a scan that joins another one midway, returns rows out of order.
            connection.execute("SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off")
            if not begin_reading(connection, split.data["snapshot"]) and split.data["snapshot"] is not None:
                logger.warning(
                    "range %s of table %s is read in its present state, because the common state of all ranges has"
                    " ended with an earlier run",
                    split.split_id,
                    scan.table,
                )
            statement = copy_statement(connection, scan.table, read, scan.schema.names, after, scan.condition)
            where = f"{scan.database.place}, table {scan.table}"
            for copied in copied_rows(connection, statement, len(read.key), scan.schema, closed, where):
                rows += copied.batch.num_rows
                yield _Read(split.split_id, copied.batch, {"after": list(copied.last), "rows": rows})
        finally:
            connection.close()
