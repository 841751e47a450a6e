"""Rows of one state in RocksDB: encoded, cached, and gone when their time to live is over (S5.1)."""

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
    """Whether rows are over; the clock may be set back, an expired row stays expired."""

    def __init__(self, descriptor: StateDescriptor, now_ms: Callable[[], int]) -> None:
        """Args: descriptor: with or without a TTL. now_ms: the clock."""
        fields = list(result_schema(descriptor))
        self.ttl = descriptor.ttl
        self.column = len(fields)
        if self.ttl is not None:
            fields.append(pa.field(TTL_COLUMN, pa.int64()))
        self.codec = RowCodec(pa.schema(fields))
        self._now_ms = now_ms
        self._latest_ms = 0

    def now_ms(self) -> int:
        """Never less than before."""
        self._latest_ms = max(self._latest_ms, self._now_ms())
        return self._latest_ms

    def encoded(self, columns: pa.RecordBatch) -> ByteRows:
        """Rows of the state's columns, used now."""
        if self.ttl is None:
            return self.codec.encode(_as(columns, self.codec.schema))
        used = pa.array(np.full(columns.num_rows, self.now_ms(), np.int64))
        return self.codec.encode(pa.RecordBatch.from_arrays([*columns.columns, used], schema=self.codec.schema))

    def decoded(self, rows: ByteRows) -> pa.RecordBatch:
        """The state's columns."""
        columns = self.codec.decode(rows)
        return columns if self.ttl is None else columns.select(range(self.column))

    def alive(self, rows: ByteRows) -> Mask:
        """Which are there and not over."""
        if self.ttl is None:
            return rows.present
        return rows.present & (self.codec.numbers(rows, self.column) + self.ttl.duration_ms > self.now_ms())

    def refresh(self, rows: ByteRows) -> ByteRows:
        """A copy of rows, none missing, that counts as written now."""
        return self.codec.with_numbers(rows, self.column, np.full(len(rows), self.now_ms(), np.int64))


class StateRows:
    """One row for each database key; of values, accumulators and map entries."""

    def __init__(self, table: RocksTable, cache: RowCache, expiry: Expiry) -> None:
        """Args: table: of the state. cache: in front of it. expiry: of its rows."""
        self.table = table
        self.cache = cache
        self.expiry = expiry

    def get(self, ids: ByteRows) -> ByteRows:
        """The row of each key, missing where there is none or it is over; valid until the next call."""
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
        """Set the row of each key; the last of equal keys stays."""
        self.cache.put(ids, self.expiry.encoded(columns))

    def remove(self, ids: ByteRows) -> None:
        """Remove the row of each key."""
        self.cache.put(ids, ByteRows.missing(len(ids)))


class ExpirySweep:
    """Removes rows that are over and that nobody reads: for every row that is written one is looked at, in turn."""

    def __init__(
        self,
        table: RocksTable,
        alive: Callable[[ByteRows], Mask],
        left_over: Callable[[RocksTable, ByteRows, ByteRows], ByteRows] | None = None,
    ) -> None:
        """Args: table: of a state with a TTL. alive: which of its rows must stay. left_over: for keys and rows that had
        to stay, the keys of those that need not, now that the others are gone."""
        self._table = table
        self._alive = alive
        self._left_over = left_over
        self._next = b""

    def __call__(self, rows: int) -> None:
        """Look at about `rows` rows of a table whose cache has nothing that the table has not."""
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
