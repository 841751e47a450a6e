"""Sizes of emitted batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

MAX_BATCH_ROWS = 64 * 1024
"""Rows of an emitted batch."""


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, small batches put together to at most `MAX_BATCH_ROWS`; lazily."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > MAX_BATCH_ROWS:
            yield _one(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
