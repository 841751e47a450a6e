"""Rows of one state in RocksDB: encoded, cached, and removed when their time to live has passed (S5.1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidegate.state.keyed_state import Mask, StateDescriptor
from tidegate.state.rocksdb.byte_rows import ByteRows
from tidegate.state.rocksdb.database import RocksTable
from tidegate.state.rocksdb.row_cache import RowCache
from tidegate.state.rocksdb.row_codec import RowCodec
from tidegate.state.state_layout import TTL_COLUMN, result_schema


class Expiry:
    """Expiry of rows. An expired row stays expired, even if the clock is set back."""

    def __init__(self, descriptor: StateDescriptor, now_ms: Callable[[], int]) -> None:
        """Create the expiry. Args: descriptor: with or without a TTL. now_ms: the clock."""
        fields = list(result_schema(descriptor))
        self.ttl = descriptor.ttl
        self.column = len(fields)
        if self.ttl is not None:
            fields.append(pa.field(TTL_COLUMN, pa.int64()))
        self.codec = RowCodec(pa.schema(fields))
        self._now_ms = now_ms
        self._latest_ms = 0

    def now_ms(self) -> int:
        """Return the time, which never decreases."""
        self._latest_ms = max(self._latest_ms, self._now_ms())
        return self._latest_ms

    def encoded(self, columns: pa.RecordBatch) -> ByteRows:
        """Return encoded rows of the state's columns, with the present as time of use."""
        if self.ttl is None:
            return self.codec.encode(_as(columns, self.codec.schema))
        used = pa.array(np.full(columns.num_rows, self.now_ms(), np.int64))
        return self.codec.encode(pa.RecordBatch.from_arrays([*columns.columns, used], schema=self.codec.schema))

    def decoded(self, rows: ByteRows) -> pa.RecordBatch:
        """Return the state's columns."""
        columns = self.codec.decode(rows)
        return columns if self.ttl is None else columns.select(range(self.column))

    def alive(self, rows: ByteRows) -> Mask:
        """Return which rows exist and have not expired."""
        if self.ttl is None:
            return rows.present
        return rows.present & (self.codec.numbers(rows, self.column) + self.ttl.duration_ms > self.now_ms())

    def refresh(self, rows: ByteRows) -> ByteRows:
        """Return a copy of rows, none missing, with the present as time of writing."""
        return self.codec.with_numbers(rows, self.column, np.full(len(rows), self.now_ms(), np.int64))


class StateRows:
    """One row for each database key, for values, accumulators and map entries."""

    def __init__(self, table: RocksTable, cache: RowCache, expiry: Expiry) -> None:
        """Create the rows. Args: table: table of the state. cache: cache of the table. expiry: expiry of its rows."""
        self.table = table
        self.cache = cache
        self.expiry = expiry

    def get(self, ids: ByteRows) -> ByteRows:
        """Return the row of each key, missing if there is none or it has expired; valid until the next call."""
        rows = self.cache.get(ids)
        if self.expiry.ttl is None:
            return rows
        alive = self.expiry.alive(rows)
        over = rows.present & ~alive
        rows = ByteRows(rows.data, np.where(alive, rows.starts, -1), np.where(alive, rows.lengths, 0))
        if self.expiry.ttl.on_read and alive.any():
            self.cache.put(ids.take(alive), self.expiry.refresh(rows.take(alive)))
        if over.any():
            self.remove(ids.take(over))
        return rows

    def put(self, ids: ByteRows, columns: pa.RecordBatch) -> None:
        """Set the row of each key; of equal keys, the last wins."""
        self.cache.put(ids, self.expiry.encoded(columns))

    def remove(self, ids: ByteRows) -> None:
        """Remove the row of each key."""
        self.cache.put(ids, ByteRows.missing(len(ids)))


class ExpirySweep:
    """Removes expired rows that are never read: for every row that is written, it checks one row, in turn."""

    def __init__(
        self,
        table: RocksTable,
        alive: Callable[[ByteRows], Mask],
        left_over: Callable[[RocksTable, ByteRows, ByteRows], ByteRows] | None = None,
    ) -> None:
        """Create the sweep.

        Args:
            table: table of a state with a TTL.
            alive: returns which of its rows must stay.
            left_over: for keys and rows that had to stay, returns the keys that need not stay after the others are
                removed.
        """
        self._table = table
        self._alive = alive
        self._left_over = left_over
        self._next = b""

    def __call__(self, rows: int) -> None:
        """Check about `rows` rows. The table's cache must have no unwritten changes."""
        left = rows
        for keys, found in self._table.scan(self._next):
            alive = self._alive(found)
            self._next = keys.take(slice(-1, None)).to_list()[0] + b"\0"
            self._remove(keys.take(~alive))
            if self._left_over is not None:
                self._remove(self._left_over(self._table, keys.take(alive), found.take(alive)))
            left -= len(keys)
            if left <= 0:
                return
        self._next = b""

    def _remove(self, keys: ByteRows) -> None:
        if len(keys):
            self._table.write(keys, ByteRows.missing(len(keys)))


def _as(columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if columns.schema.equals(schema):
        return columns
    return pa.RecordBatch.from_arrays(columns.columns, schema=schema)
