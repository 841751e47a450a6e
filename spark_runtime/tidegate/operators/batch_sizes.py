"""Sizes of emitted batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

MAX_BATCH_ROWS = 64 * 1024
"""Rows of an emitted batch."""


def coalesce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, small batches put together to at most `ROWS_PER_PIECE`; lazily."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > MAX_BATCH_ROWS:
            yield concat_batches(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield concat_batches(waiting)


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of one or more batches in one; ArrowInvalid when a column would hold more than 2 GiB of text: nothing
    but `large_string` does. Arrow's own `combine_chunks` leaves several chunks then."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
