"""Sizes of emitted batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

MAX_BATCH_ROWS = 64 * 1024
"""Most rows of an emitted batch."""


def coalesce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches into batches of at most `MAX_BATCH_ROWS` rows, lazily. Rows and their order stay the
    same."""
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
    """Return the rows of one or more batches as one batch.

    Arrow's own `combine_chunks` may leave several chunks; this function fails instead.

    Raises:
        ArrowInvalid: a column would hold more than 2 GiB of text. Only `large_string` can.
    """
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
