"""Batches of partial rows: rows that a sender has aggregated before an exchange (docs/adr/0034-partial-rows.md). Pure.

A channel may carry both kinds of batches. The metadata of their schema distinguishes them: in memory, between
slots, and in the channel state of snapshots (S3.7).
"""

from __future__ import annotations

import pyarrow as pa

ROWS_COLUMN = "__rows"
"""Last column of partial rows: how many rows each of them stands for."""
_METADATA = {b"tidegate": b"partial rows"}


def partial_schema(fields: list[pa.Field]) -> pa.Schema:
    """Return the schema of partial rows with these columns before `ROWS_COLUMN`."""
    return pa.schema([*fields, pa.field(ROWS_COLUMN, pa.int64())], _METADATA)


def is_partial(schema: pa.Schema) -> bool:
    """Return whether batches of this schema hold partial rows."""
    return bool(schema.metadata == _METADATA)


def count_partial_rows(batch: pa.RecordBatch) -> int:
    """Return how many rows a batch of partial rows stands for."""
    return int(batch.column(ROWS_COLUMN).to_numpy().sum())


def count_rows(batch: pa.RecordBatch) -> int:
    """Return how many rows a batch of either kind stands for."""
    return count_partial_rows(batch) if is_partial(batch.schema) else int(batch.num_rows)
