"""Timers in RocksDB, limited only by the disk: once by time, to find due timers, and once by key (S5.1).

By time: the time as eight bytes that sort in its order, then the database key; by key: the database key, then the time.
Only the earliest time is in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.keyed_state import DueTimers, Elements, KeyNumbers, KeySet
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.rocksdb.byte_rows import ByteRows, fixed_width_bytes, join_bytes
from tidegate.state.rocksdb.database import RocksTable
from tidegate.state.rocksdb.database_keys import RocksKeys, distinct, ids_of
from tidegate.state.rocksdb.row_cache import RowCache
from tidegate.state.state_layout import TIME_COLUMN

TIME_BYTES = 8
BY_TIME = ":by_time"
"""Suffix of column families whose keys begin with a time, not with the key group."""
_SIGN = np.uint64(1 << 63)
_LATEST = 2**63 - 1
_SCHEMA = pa.schema([pa.field(TIME_COLUMN, pa.int64())])


class RocksTimers:
    """See `TimerService`."""

    def __init__(self, tables: tuple[RocksTable, RocksTable], caches: tuple[RowCache, RowCache], schema: pa.Schema):
        """Create the timers. Args: tables: by time, by key. caches: their caches. schema: schema of the key columns."""
        self._by_time, self._by_key = tables
        self._time_cache, self._key_cache = caches
        self._schema = schema
        self._lowest_us = -(2**63)  # no timer is earlier
        self._next_us: Callable[[], int | None] = self._looked_up

    def register(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """See `TimerService`."""
        if not len(owners):
            return
        self._put(ids_of(keys).take(owners), times_us, True)
        earliest, known = int(times_us.min()), self.next_us()
        self._lowest_us = min(self._lowest_us, earliest)
        if known is None or earliest < known:
            self._next_us = lambda: earliest

    def delete(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """See `TimerService`."""
        if not len(owners):
            return
        known = self.next_us()
        self._put(ids_of(keys).take(owners), times_us, False)
        if known is not None and known in times_us:
            self._next_us = self._looked_up

    def of(self, keys: KeySet) -> Elements:
        """See `TimerService`."""
        self._key_cache.flush()
        order = ids_of(keys).order()
        found, _, counts = self._by_key.scan_prefixes(ids_of(keys).take(order).to_list())
        owners = np.repeat(order, counts)
        back = np.argsort(owners, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=keys.size))]).astype(np.int64)
        times = pa.array(times_of(found.take(back)))
        return Elements(offsets, pa.RecordBatch.from_arrays([times], schema=_SCHEMA))

    def next_us(self) -> int | None:
        """See `TimerService`."""
        found = self._next_us()
        self._next_us = lambda: found
        return found

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """See `TimerService`."""
        known = self.next_us()
        if known is None or known > until_us:
            return None
        self._time_cache.flush()
        found: list[ByteRows] = []
        wanted = limit
        for timers, _ in self._by_time.scan(_time_key(known), _end_key(until_us)):
            found.append(timers.take(slice(0, wanted)))
            wanted -= len(found[-1])
            if not wanted:
                break
        packed = [one.to_list() for one in found]
        timers = ByteRows.of_list([timer for some in packed for timer in some])
        ids = ByteRows(timers.data, timers.starts + TIME_BYTES, timers.lengths - TIME_BYTES)
        times = times_of(ByteRows(timers.data, timers.starts, np.full(len(timers), TIME_BYTES)))
        self._put(ids, times, False)
        self._lowest_us = int(times[-1])
        self._next_us = self._looked_up
        keys, owners, _ = distinct(ids)
        return DueTimers(RocksKeys.of_ids(keys, self._schema), owners, times)

    def _looked_up(self) -> int | None:
        self._time_cache.flush()
        for timers, _ in self._by_time.scan(_time_key(self._lowest_us)):
            first = timers.take(slice(0, 1))
            return int(times_of(ByteRows(first.data, first.starts, np.full(1, TIME_BYTES)))[0])
        return None

    def _put(self, ids: ByteRows, times_us: npt.NDArray[np.int64], there: bool) -> None:
        times = time_bytes(times_us)
        rows = fixed_width_bytes(np.ones(len(ids), np.uint8)) if there else ByteRows.missing(len(ids))
        self._time_cache.put(join_bytes(times, ids), rows)
        self._key_cache.put(join_bytes(ids, times), rows)


def time_bytes(times_us: npt.NDArray[np.int64]) -> ByteRows:
    """Return eight bytes for each time that sort in the order of times."""
    return fixed_width_bytes((times_us.astype(np.int64).view(np.uint64) ^ _SIGN).astype(">u8"))


def times_of(rows: ByteRows) -> Int64s:
    """Return the times in the last eight bytes of each row."""
    ends = rows.starts + rows.lengths - TIME_BYTES
    raw = rows.data[ends[:, None] + np.arange(TIME_BYTES)[None, :]] if len(rows) else np.zeros((0, 8), np.uint8)
    times: Int64s = (np.ascontiguousarray(raw).reshape(-1).view(">u8").astype(np.uint64) ^ _SIGN).view(np.int64)
    return times


def _time_key(time_us: int) -> bytes:
    return (time_us + 2**63).to_bytes(TIME_BYTES, "big")


def _end_key(until_us: int) -> bytes | None:
    # The time after the latest one does not fit into eight bytes.
    return None if until_us >= _LATEST else _time_key(until_us + 1)
