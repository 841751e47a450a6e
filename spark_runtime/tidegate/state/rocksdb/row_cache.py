"""A bounded write-back cache of a RocksDB table: many updates of a busy key cost RocksDB one write.

Rows are in a growing buffer. A changed row of the same length is overwritten in place; any other is appended. Bytes
below the mark that `freeze` sets are never overwritten, so a snapshot can read them while the cache continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tidegate.state.keys.key_bytes import Bytes, Int64s
from tidegate.state.keys.key_hash import Hashes, hash_rows
from tidegate.state.keys.key_index import MIN_ENTRIES, Entries
from tidegate.state.keys.key_index_kernels import FREE, add_bytes, fill_bytes
from tidegate.state.numba_kernels import kernel
from tidegate.state.rocksdb.byte_rows import ByteRows
from tidegate.state.rocksdb.database import RocksTable

MAX_CHANGES = 2**17
"""Changed rows at which they are written: freezing them for a snapshot costs the loop about 10 ns each."""
ENTRY_BYTES = 48
"""Bytes of an entry besides its key and its row."""
_ABSENT = -1
_UNKNOWN = -2


class RowCache:
    """Rows of one table by key. Not safe for several threads."""

    def __init__(
        self,
        table: RocksTable,
        quota: Callable[[], int],
        before_write: Callable[[], None],
        after_write: Callable[[int], None] | None = None,
    ) -> None:
        """Create an empty cache.

        Args:
            table: table of the rows.
            quota: returns the approximate limit in bytes; called each time.
            before_write: called before the table is written, so that a snapshot in progress gets its files first.
            after_write: called with the number of rows written since its last call, by a flush or by the caller of
                `freeze`. The table then has all rows of the cache.
        """
        self._table = table
        self._quota = quota
        self._before_write = before_write
        self._after_write = after_write
        self._untold = 0
        self._clear()

    @property
    def held_bytes(self) -> int:
        """Return the approximate number of bytes in use."""
        return int(self._cursor[1]) * ENTRY_BYTES + int(self._ends[self.size]) + int(self._used[0])

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return int(self._cursor[1])

    def get(self, keys: ByteRows) -> ByteRows:
        """Return the row of each key, missing if there is none; valid until the next call."""
        entries = self._entries(keys)
        unknown = np.unique(entries[self._at[entries] == _UNKNOWN])
        if len(unknown):
            self._place(unknown, self._table.get(self._keys(unknown)), False)
        starts = self._at[entries]
        _touch(entries, self._hits)
        # These rows refer to the present buffer. `_shrink` may replace the buffer, but does not change it.
        rows = ByteRows(self._arena, starts, self._length[entries])
        self._shrink()
        return rows

    def put(self, keys: ByteRows, rows: ByteRows) -> None:
        """Set the row of each key, or remove it if the row is missing; of equal keys, the last wins."""
        entries = self._entries(keys)
        self._changes += self._place(entries, rows, True)
        _touch(entries, self._hits)
        if self._changes > MAX_CHANGES or (self._after_write is not None and self._untold > MAX_CHANGES):
            self.flush()
        self._shrink()

    def flush(self) -> None:
        """Write all changes to the table."""
        self._before_write()
        frozen = self.freeze()
        if frozen is not None:
            self._table.write(*frozen)
            self._used[1] = 0  # no snapshot refers to them
        if self._after_write is not None and self._untold:
            rows, self._untold = self._untold, 0
            self._after_write(rows)

    def freeze(self) -> tuple[ByteRows, ByteRows] | None:
        """Return keys and rows of all changes since the last call; the caller writes them to the table. None: no
        changes.

        They do not change any more, and any thread may read them.
        """
        changed = np.flatnonzero(self._dirty[: self.size])
        if not len(changed):
            return None
        self._dirty[changed] = 0
        self._changes = 0
        self._untold += len(changed)
        self._used[1] = self._used[0]
        return self._keys(changed), ByteRows(self._arena, self._at[changed], self._length[changed])

    def _clear(self) -> None:
        self._slots = np.full(2 * MIN_ENTRIES, FREE, np.int64)
        self._hashes = np.empty(MIN_ENTRIES, np.uint64)
        self._ends = np.zeros(MIN_ENTRIES + 1, np.int64)
        self._key_bytes = np.empty(MIN_ENTRIES * 32, np.uint8)
        self._cursor = np.zeros(2, np.int64)  # next row, entries
        self._at = np.full(MIN_ENTRIES, _UNKNOWN, np.int64)
        self._length = np.zeros(MIN_ENTRIES, np.int64)
        self._dirty: Bytes = np.zeros(MIN_ENTRIES, np.uint8)
        self._hits: Bytes = np.zeros(MIN_ENTRIES, np.uint8)
        self._arena = np.empty(4096, np.uint8)
        self._changes = 0
        self._used = np.zeros(2, np.int64)  # bytes in use, and how many of them are frozen

    def _entries(self, keys: ByteRows) -> Entries:
        data, offsets = keys.packed()
        hashes: Hashes = np.empty(len(keys), np.uint64)
        hash_rows(data, offsets, hashes)
        return self._add(data, offsets, hashes)

    def _add(self, data: Bytes, offsets: Int64s, hashes: Hashes) -> Entries:
        out, added = np.empty(len(hashes), np.int32), np.empty(len(hashes), np.int64)
        self._cursor[0] = 0
        while True:
            add_bytes(
                data, offsets[:-1], offsets[1:], hashes,
                self._slots, self._hashes, self._ends, self._key_bytes, self._cursor, out, added,
            )  # fmt: skip
            row = int(self._cursor[0])
            if row == len(hashes):
                return out
            if self.size == len(self._hashes):
                self._grow_entries()
            else:
                needed = int(offsets[row + 1] - offsets[row])
                self._key_bytes = _grown(self._key_bytes, len(self._key_bytes) * 3 // 2 + needed)

    def _grow_entries(self) -> None:
        capacity = len(self._hashes) * 2
        self._hashes = _grown(self._hashes, capacity)
        self._ends = _grown(self._ends, capacity + 1)
        self._at = _grown(self._at, capacity, _UNKNOWN)
        self._length = _grown(self._length, capacity, 0)
        self._dirty = _grown(self._dirty, capacity, 0)
        self._hits = _grown(self._hits, capacity, 0)
        self._slots = np.full(2 * capacity, FREE, np.int64)
        fill_bytes(self._hashes[: self.size], self._slots)

    def _keys(self, entries: Any) -> ByteRows:
        starts = self._ends[:-1][entries]
        return ByteRows(self._key_bytes, starts, self._ends[1:][entries] - starts)

    def _place(self, entries: Any, rows: ByteRows, dirty: bool) -> int:
        """Store rows, and return how many of them were unchanged before."""
        needed = int(self._used[0]) + int(rows.lengths.sum())
        if needed > len(self._arena):
            self._arena = _grown(self._arena, max(needed, len(self._arena) * 3 // 2))
        return int(
            _place_rows(
                entries.astype(np.int32), rows.data, rows.starts, rows.lengths, dirty,
                self._at, self._length, self._dirty, self._arena, self._used,
            )
        )  # fmt: skip

    def _shrink(self) -> None:
        """Keep to the quota: drop replaced rows and, if needed, entries that were not read after they were added."""
        quota = self._quota()
        if self.held_bytes <= quota:
            return
        size = self.size
        bytes_each = ENTRY_BYTES + np.diff(self._ends[: size + 1]) + self._length[:size]
        keep = np.arange(size)
        if int(bytes_each.sum()) > quota // 2:
            # Written first, because an entry may be dropped only when the table has its row.
            self.flush()
            keep = np.flatnonzero(self._hits[:size] > 1)
            keep = keep[np.cumsum(bytes_each[keep]) <= quota // 2]
        self._keep_only(keep)

    def _keep_only(self, kept: Any) -> None:
        keys, rows = self._keys(kept), ByteRows(self._arena, self._at[kept], self._length[kept])
        dirty, states = self._dirty[kept], self._at[kept]
        changes = self._changes
        data, offsets = keys.packed()
        hashes = self._hashes[kept]
        self._clear()
        entries = self._add(data, offsets, hashes)
        self._place(entries, rows, False)
        self._at[entries[states == _UNKNOWN]] = _UNKNOWN
        self._dirty[entries] = dirty
        self._changes = changes
        self._hits[entries] = 1


def _grown(array: Any, capacity: int, fill: int | None = None) -> Any:
    grown = np.empty(capacity, array.dtype) if fill is None else np.full(capacity, fill, array.dtype)
    grown[: len(array)] = array
    return grown


@kernel("void(i4[], u1[]!)")
def _touch(entries: Any, hits: Any) -> None:
    for i in range(len(entries)):
        if hits[entries[i]] < 255:
            hits[entries[i]] += 1


@kernel("i8(i4[], u1[], i8[], i8[], b1, i8[]!, i8[]!, u1[]!, u1[]!, i8[]!)")
def _place_rows(
    entries: Any,
    data: Any,
    starts: Any,
    lengths: Any,
    dirty: Any,
    at: Any,
    length: Any,
    changed: Any,
    arena: Any,
    used: Any,
) -> Any:
    end = used[0]
    changes = 0
    for i in range(len(entries)):
        entry = entries[i]
        if starts[i] < 0:
            at[entry] = -1
            length[entry] = 0
        else:
            # The place of an absent or unknown entry is negative, and so always below the mark.
            if at[entry] < used[1] or length[entry] != lengths[i]:
                at[entry] = end
                length[entry] = lengths[i]
                end += lengths[i]
            for j in range(lengths[i]):
                arena[at[entry] + j] = data[starts[i] + j]
        if dirty:
            if not changed[entry]:
                changes += 1
            changed[entry] = 1
    used[0] = end
    return changes
