"""Rows as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

KEYED_ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
"""What generated rows look like in most tests."""
KEY_NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])
"""A name for each key, for jobs that join."""


def batch_of(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    """A batch of these rows, a value per field; timestamps are numbers in the unit of their field."""
    listed = list(rows)
    columns = []
    for index, field in enumerate(schema):
        values = [row[index] for row in listed]
        if pa.types.is_timestamp(field.type):
            columns.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def numbered_rows(keys: int, *columns: str) -> Callable[[Any], dict[str, Any]]:
    """What a `DataGen` of KEYED_ROWS generates: row n has key n modulo `keys`, value n and the time n ms.

    Args:
        columns: of KEYED_ROWS those that the source has; all of them by default.
    """
    wanted = columns or KEYED_ROWS.names

    def rows(numbers: Any) -> dict[str, Any]:
        every = {"k": numbers % keys, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}
        return {name: every[name] for name in wanted}

    return rows


def named_keys(numbers: Any) -> dict[str, Any]:
    """What a `DataGen` of KEY_NAMES generates: row n names key n."""
    return {"k": numbers, "name": pa.array([f"key-{n}" for n in numbers.tolist()])}
