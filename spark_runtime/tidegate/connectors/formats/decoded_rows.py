"""Decoded rows put together: rows of nulls, records without a row, and parts of a batch in the order of its records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.formats.interface import DecodedRecords, UndecodableRecord

Indices = npt.NDArray[np.int64]

NONE: Indices = np.empty(0, np.int64)
NO_VALUE = "the record has no value, and a column does not allow null"
"""Reason of a record that would give a row of nulls."""


def as_binary(values: pa.Array) -> pa.Array:
    """Return the values of records as a `binary` array."""
    return values if values.type == pa.binary() else values.cast(pa.binary())


def null_records(values: pa.Array) -> Indices:
    """Return the indices of the records without a value."""
    if not values.null_count:
        return NONE
    found: Indices = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).astype(np.int64)
    return found


def kept_records(count: int, bad: Collection[int]) -> Indices:
    """Return the indices of `count` records, without the bad ones."""
    kept: Indices = np.setdiff1d(np.arange(count, dtype=np.int64), np.fromiter(bad, np.int64, len(bad)))
    return kept


def assemble(
    count: int, rows: pa.RecordBatch, of_record: Indices, nulls: Indices, bad: Mapping[int, str]
) -> DecodedRecords:
    """Return the result of `RecordDecoder.decode`.

    Args:
        count: number of records.
        rows: decoded rows, in any order.
        of_record: the record of each row.
        nulls: records without a value, which become rows of nulls.
        bad: record -> reason.
    """
    named = [UndecodableRecord(index, bad[index]) for index in sorted(bad)]
    if not len(nulls) and _ascending(of_record):
        everything = len(of_record) == count and not named
        return DecodedRecords(rows, None if everything else pa.array(of_record), named)
    # Nulls in the places of `take` make rows of nulls.
    records = np.concatenate([of_record, nulls])
    order = np.argsort(records, kind="stable")
    batch = rows.take(pa.array(order, mask=order >= len(of_record)))
    everything = len(records) == count and not named
    return DecodedRecords(batch, None if everything else pa.array(records[order]), named)


def bad_nulls(schema: pa.Schema, nulls: Indices, bad: dict[int, str]) -> Indices:
    """Return the records without a value that become rows of nulls: none if a column does not allow null.

    Args:
        bad: record -> reason; the others are added.
    """
    if not len(nulls) or all(field.nullable for field in schema):
        return nulls
    bad.update(dict.fromkeys(nulls.tolist(), NO_VALUE))
    return NONE


def concatenated(schema: pa.Schema, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all parts as one batch; without parts, an empty one."""
    if len(parts) == 1:
        return parts[0]
    return pa.concat_batches(parts) if parts else empty(schema)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def selected(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema with only `columns`, in the schema's order; None: all."""
    return schema if columns is None else pa.schema([field for field in schema if field.name in set(columns)])


def _ascending(of_record: Indices) -> bool:
    return len(of_record) < 2 or bool((of_record[1:] > of_record[:-1]).all())
