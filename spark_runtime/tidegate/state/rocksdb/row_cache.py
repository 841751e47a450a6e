"""A write-back cache of a RocksDB table: many updates of a busy key cost RocksDB one write, and no read.

Rows are in a growing buffer. A changed row of the same length is overwritten in place; any other is appended. Bytes
below the mark that `freeze` sets are never overwritten while a snapshot reads them, so the cache continues meanwhile.

The places of changed rows are listed when they change. So `freeze` only hands over the list, and its time does not
depend on the number of rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np

from tidegate.state.byte_words import address_of, copy_bytes
from tidegate.state.keys.key_bytes import Bytes, Int64s
from tidegate.state.keys.key_hash import Hashes
from tidegate.state.keys.key_index import MIN_ENTRIES, Entries
from tidegate.state.keys.key_index_kernels import FREE, add_bytes, fill_bytes
from tidegate.state.keys.xxh64 import xxh64
from tidegate.state.numba_kernels import kernel
from tidegate.state.rocksdb.byte_rows import ByteRows
from tidegate.state.rocksdb.database import RocksTable

MAX_CHANGES = 2**17
"""Changed rows at which they are written, if rows have been dropped before: a drop must wait until all are written."""
ENTRY_BYTES = 96
"""Most bytes of an entry besides its key and its row."""
FIELDS = 4
"""Fields of an entry's cell: place of its row in the buffer, length, number of its change, number of uses."""
LOG_BYTES = 20
"""Bytes of a change in the list of changes."""
MAPPED_BYTES = 2**20
"""Size from which arrays are mapped."""
PIECE_ROWS = 2**17
"""Changed rows that are sorted and written at a time, so that a large snapshot needs little memory."""
_ABSENT = -1
_UNKNOWN = -2


class CacheMemory:
    """Memory that several caches share. So each may use all of it if the others need none."""

    def __init__(self, limit_bytes: int) -> None:
        """Create an empty memory. Args: limit_bytes: most bytes of all caches."""
        self._limit_bytes = limit_bytes
        self._caches: list[RowCache] = []

    def add(self, cache: RowCache) -> None:
        """Count the bytes of a cache."""
        self._caches.append(cache)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all caches."""
        return sum(cache.held_bytes for cache in self._caches)

    def keep_to_limit(self) -> None:
        """Shrink caches until they hold no more than the limit: caches that are not read first, then the largest.

        A cache that is read keeps its share of half of the limit, so that it is never emptied for the others.
        """
        held = self.held_bytes
        if held <= self._limit_bytes:
            return
        share = self._limit_bytes // 2 // max(1, sum(cache.is_read for cache in self._caches))
        for cache in sorted(self._caches, key=lambda cache: (cache.is_read, -cache.held_bytes)):
            others = held - cache.held_bytes
            cache.shrink(max(self._limit_bytes // 2 - others, share) if cache.is_read else 0)
            held = others + cache.held_bytes
            if held <= self._limit_bytes:
                return


class FrozenRows:
    """Changed rows of a cache at one moment. They do not change any more, and any thread may read them."""

    def __init__(self, keys: Bytes, ends: Int64s, arena: Bytes, log: _ChangeLog) -> None:
        """Create the rows. Args: keys, ends: bytes of all keys. arena: buffer of the rows. log: the changes."""
        self._keys, self._ends, self._arena, self._log = keys, ends, arena, log

    def __len__(self) -> int:
        return self._log.size

    def pieces(self) -> Iterator[tuple[ByteRows, ByteRows]]:
        """Yield the distinct keys, and the row of each, missing if it was removed; some at a time."""
        for start in range(0, self._log.size, PIECE_ROWS):
            some = slice(start, min(start + PIECE_ROWS, self._log.size))
            entries = self._log.entries[some]
            starts = self._ends[entries]
            keys = ByteRows(self._keys, starts, self._ends[entries + np.int32(1)] - starts)
            yield keys, ByteRows(self._arena, self._log.at[some], self._log.lengths[some])

    def write(self, table: RocksTable) -> None:
        """Write the rows to the table. May be called again if it fails."""
        for keys, rows in self.pieces():
            table.write(keys, rows)


class _ChangeLog:
    """Entries that have changed since the last freeze, with the places of their rows."""

    def __init__(self) -> None:
        self.entries = np.empty(MIN_ENTRIES, np.int32)
        self.at = np.empty(MIN_ENTRIES, np.int64)
        self.lengths = np.empty(MIN_ENTRIES, np.int64)
        self.size = 0

    def reserve(self, rows: int) -> None:
        """Make room for more rows."""
        if self.size + rows > len(self.entries):
            capacity = max(self.size + rows, 3 * len(self.entries) // 2)
            self.entries = _grown(self.entries, capacity)
            self.at, self.lengths = _grown(self.at, capacity), _grown(self.lengths, capacity)


class RowCache:
    """Rows of one table by key. Not safe for several threads.

    Attributes:
        held_bytes: bytes of its arrays. The buffer that a snapshot still reads is not counted.
        is_read: its rows are read again. If not, it only gathers writes, as for timers, whose keys hold a time.
    """

    def __init__(
        self,
        table: RocksTable,
        memory: CacheMemory,
        before_write: Callable[[], None],
        after_write: Callable[[int], None] | None = None,
        *,
        is_read: bool = True,
    ) -> None:
        """Create an empty cache.

        Args:
            table: table of the rows.
            memory: limits the bytes of this cache and of others; calls `shrink`.
            before_write: called before the table is written, so that a snapshot in progress gets its files first.
            after_write: called with the number of rows written since its last call, by a flush or by the caller of
                `freeze`. The table then has all rows of the cache.
            is_read: see the class.
        """
        self.is_read = is_read
        self._table = table
        self._memory = memory
        self._before_write = before_write
        self._after_write = after_write
        self._untold = 0
        self._has_dropped = False
        self._frozen: weakref.ref[FrozenRows] | None = None
        self._log = _ChangeLog()
        self._first_change = 1
        self._clear(MIN_ENTRIES)
        memory.add(self)

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return int(self._cursor[1])

    @property
    def changes(self) -> int:
        """Return the number of changed rows that are not frozen yet."""
        return self._log.size

    def get(self, keys: ByteRows) -> ByteRows:
        """Return the row of each key, missing if there is none; valid until the next call."""
        entries = self._entries(keys)
        starts, lengths = np.empty(len(entries), np.int64), np.empty(len(entries), np.int64)
        if _read(entries, self._cells, starts, lengths):
            unknown = np.empty(len(entries), np.int32)
            unknown = unknown[: int(_list_unknown(entries, self._cells, unknown))]
            self._place(unknown, self._table.get(self._keys_of(unknown)), False)
            _read(entries, self._cells, starts, lengths)
        # These rows refer to the present buffer. `shrink` may replace the buffer, but does not change it.
        rows = ByteRows(self._arena, starts, lengths)
        self._memory.keep_to_limit()
        return rows

    def put(self, keys: ByteRows, rows: ByteRows) -> None:
        """Set the row of each key, or remove it if the row is missing; of equal keys, the last wins."""
        self._place(self._entries(keys), rows, True)
        if (self.changes > MAX_CHANGES and (self._has_dropped or self._after_write is not None)) or (
            self._after_write is not None and self._untold > MAX_CHANGES
        ):
            self.flush()
        self._memory.keep_to_limit()

    def flush(self) -> None:
        """Write all changes to the table."""
        self._before_write()
        frozen = self.freeze()
        if frozen is not None:
            frozen.write(self._table)
        if self._after_write is not None and self._untold:
            written, self._untold = self._untold, 0
            self._after_write(written)

    def freeze(self) -> FrozenRows | None:
        """Return all changes since the last call; the caller writes them to the table. None: no changes.

        The time does not depend on their number.
        """
        if not self.changes:
            return None
        log, self._log = self._log, _ChangeLog()
        frozen = FrozenRows(self._key_bytes, self._ends, self._arena, log)
        self._frozen = weakref.ref(frozen)
        self._first_change += log.size
        self._untold += log.size
        self._used[1] = self._used[0]
        return frozen

    def shrink(self, most_bytes: int) -> None:
        """Drop replaced rows and, if needed, entries, until about `most_bytes` are in use.

        Entries that were not used after they were added are dropped first, the oldest before the others.
        """
        # Written first, because an entry may be dropped only when the table has its row. A snapshot in progress no
        # longer needs the present buffer then.
        self.flush()
        kept = np.empty(self.size, np.int32)
        count = int(_choose(self._cells, self._ends, self.size, most_bytes, ENTRY_BYTES, kept))
        self._has_dropped = self._has_dropped or count < self.size
        self._keep_only(kept[:count])

    def _clear(self, capacity: int) -> None:
        self._slots = _free_slots(capacity)
        self._hashes = _new(capacity, np.uint64)
        self._ends = _new(capacity + 1, np.int64)
        self._ends[0] = 0
        self._key_bytes = _new(capacity * 16, np.uint8)
        self._cursor = np.zeros(2, np.int64)  # next row, entries
        self._cells = _new(capacity * FIELDS, np.int64)
        self._arena = _new(4096, np.uint8)
        self._used = np.zeros(2, np.int64)  # bytes in use, and how many of them are frozen
        self._log = _ChangeLog()
        self._first_change = 1
        self._last: tuple[ByteRows, Entries] | None = None
        self._measure()

    def _measure(self) -> None:
        arrays = (self._slots, self._hashes, self._ends, self._key_bytes, self._cells, self._arena)
        self.held_bytes = sum(int(array.nbytes) for array in arrays) + LOG_BYTES * len(self._log.entries)

    def _entries(self, keys: ByteRows) -> Entries:
        # Most operators read the rows of some keys, and then write them.
        if self._last is not None and self._last[0] is keys:
            return self._last[1]
        data, starts, ends = keys.data, keys.starts, keys.starts + keys.lengths
        hashes: Hashes = np.empty(len(keys), np.uint64)
        _hash_ranges(data, starts, ends, hashes)
        entries = self._add(data, starts, ends, hashes)
        _count_uses(entries, self._cells)
        self._last = keys, entries
        return entries

    def _add(self, data: Bytes, starts: Int64s, ends: Int64s, hashes: Hashes) -> Entries:
        out, added = np.empty(len(hashes), np.int32), np.empty(len(hashes), np.int64)
        before = self.size
        self._cursor[0] = 0
        while True:
            add_bytes(
                data, starts, ends, hashes,
                self._slots, self._hashes, self._ends, self._key_bytes, self._cursor, out, added,
            )  # fmt: skip
            row = int(self._cursor[0])
            if row == len(hashes):
                break
            if self.size == len(self._hashes):
                self._grow_entries()
            else:
                needed = int(ends[row] - starts[row])
                self._key_bytes = _grown(self._key_bytes, len(self._key_bytes) * 5 // 4 + needed)
                self._measure()
        if self.size > before:
            _begin(self._cells, before, self.size)
        return out

    def _grow_entries(self) -> None:
        size = len(self._hashes)
        capacity = min(size * 3 // 2, _slots_of(size) // 2 if _slots_of(size) > 2 * size else 2 * size)
        self._hashes = _grown(self._hashes, capacity)
        self._ends = _grown(self._ends, capacity + 1)
        self._cells = _grown(self._cells, capacity * FIELDS)
        if _slots_of(capacity) > len(self._slots):
            self._slots = _free_slots(capacity)
            fill_bytes(self._hashes[:size], self._slots)
        self._measure()

    def _keys_of(self, entries: Any) -> ByteRows:
        starts = self._ends[:-1][entries]
        return ByteRows(self._key_bytes, starts, self._ends[1:][entries] - starts)

    def _place(self, entries: Entries, rows: ByteRows, is_change: bool) -> None:
        """Store rows, and list those that are changes."""
        if self._used[1] and (self._frozen is None or self._frozen() is None):
            self._used[1] = 0  # no snapshot reads the buffer any more
        needed = int(self._used[0]) + int(rows.lengths.sum())
        if needed > len(self._arena):
            self._make_room(needed)
        if is_change and self._log.size + len(entries) > len(self._log.entries):
            self._log.reserve(len(entries))
            self._measure()
        self._log.size = int(
            _place_rows(
                entries, rows.data, rows.starts, rows.lengths, is_change, self._cells, self._arena, self._used,
                self._first_change, self._log.entries, self._log.at, self._log.lengths, self._log.size,
            )
        )  # fmt: skip

    def _make_room(self, needed: int) -> None:
        """Enlarge the buffer; if it is mostly replaced rows, without them."""
        cells = self._cells.reshape(-1, FIELDS)[: self.size]
        live = int(cells[:, 1].sum())
        if 2 * live > int(self._used[0]):
            self._arena = _grown(self._arena, max(needed, len(self._arena) * 5 // 4))
        else:
            if self._used[1]:
                self._before_write()  # so that a snapshot in progress does not keep the present buffer
            former = self._arena
            self._arena = _new(max(4096, (live + needed - int(self._used[0])) * 3 // 2), np.uint8)
            _pack_rows(cells.reshape(-1), former, self._arena, self._used, self._first_change, self._log.at)
        self._measure()

    def _keep_only(self, kept: Entries) -> None:
        """Forget other entries, and replaced rows. There are no changes."""
        self._slots = _free_slots(MIN_ENTRIES)  # so that its memory is free for the copies below
        size, hashes, cells = len(kept), self._hashes[kept], self._cells.reshape(-1, FIELDS)[kept]
        keys, ends = self._keys_of(kept).packed()
        rows, places = ByteRows(self._arena, cells[:, 0].copy(), cells[:, 1].copy()).packed()
        self._clear(max(MIN_ENTRIES, size))
        self._hashes[:size], self._ends[: size + 1], self._key_bytes = hashes, ends, _grown(keys, len(keys))
        fill_bytes(hashes, self._slots)
        self._cursor[1] = size
        cells[:, 0] = np.where(cells[:, 0] < 0, cells[:, 0], places[:-1])
        cells[:, 2], cells[:, 3] = 0, 1
        self._cells[: size * FIELDS] = cells.reshape(-1)
        self._arena, self._used[0] = _grown(rows, len(rows)), len(rows)
        self._measure()


def _free_slots(capacity: int) -> Int64s:
    slots: Int64s = _new(_slots_of(capacity), np.int64)
    slots.fill(FREE)
    return slots


def _slots_of(capacity: int) -> int:
    return 2 << max(capacity - 1, 1).bit_length()


def _grown(array: Any, capacity: int) -> Any:
    grown = _new(capacity, array.dtype)
    grown[: len(array)] = array
    return grown


def _new(size: int, dtype: Any) -> Any:
    """Return an array. A large one is mapped: the allocator would keep its memory when the array is freed."""
    wanted = size * np.dtype(dtype).itemsize
    if wanted < MAPPED_BYTES:
        return np.empty(size, dtype)
    # Private, so that a process that user code forks does not write to it.
    return np.frombuffer(mmap(-1, wanted, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype)


@kernel("void(u1[], i8[], i8[], u8[]!)")
def _hash_ranges(data: Any, starts: Any, ends: Any, out: Any) -> None:
    base = address_of(data)
    for i in range(len(out)):
        out[i] = xxh64(base + starts[i], ends[i] - starts[i])


@kernel("void(i8[]!, i8, i8)")
def _begin(cells: Any, first: Any, end: Any) -> None:
    for entry in range(first, end):
        cells[entry * FIELDS] = _UNKNOWN
        cells[entry * FIELDS + 1] = 0
        cells[entry * FIELDS + 2] = 0
        cells[entry * FIELDS + 3] = 0


@kernel("void(i4[], i8[]!)")
def _count_uses(entries: Any, cells: Any) -> None:
    for i in range(len(entries)):
        cells[np.int64(entries[i]) * FIELDS + 3] += 1


@kernel("i8(i8[], i8[], i8, i8, i8, i4[]!)")
def _choose(cells: Any, ends: Any, size: Any, most_bytes: Any, entry_bytes: Any, kept: Any) -> Any:
    """Write the entries that stay, and return their number: all if they fit, else those with several uses, then the
    newest."""
    total = size * entry_bytes + ends[size]
    for entry in range(size):
        total += cells[entry * FIELDS + 1]
    all_fit = total <= most_bytes
    left = most_bytes
    count = 0
    for entry in range(size):
        if all_fit or cells[entry * FIELDS + 3] > 1:
            left -= entry_bytes + ends[entry + 1] - ends[entry] + cells[entry * FIELDS + 1]
            if left >= 0:
                kept[count] = entry
                count += 1
    entry = size - 1
    while entry >= 0 and left >= 0 and not all_fit:
        if cells[entry * FIELDS + 3] <= 1:
            left -= entry_bytes + ends[entry + 1] - ends[entry] + cells[entry * FIELDS + 1]
            if left >= 0:
                kept[count] = entry
                count += 1
        entry -= 1
    return count


@kernel("b1(i4[], i8[], i8[]!, i8[]!)")
def _read(entries: Any, cells: Any, starts: Any, lengths: Any) -> Any:
    """Write the places of the rows, and return whether some are unknown."""
    any_unknown = False
    for i in range(len(entries)):
        at = np.int64(entries[i]) * FIELDS
        starts[i] = cells[at]
        lengths[i] = cells[at + 1]
        any_unknown = any_unknown or starts[i] == _UNKNOWN
    return any_unknown


@kernel("i8(i4[], i8[]!, i4[]!)")
def _list_unknown(entries: Any, cells: Any, unknown: Any) -> Any:
    """Write each entry once whose row is unknown, and return their number."""
    count = 0
    for i in range(len(entries)):
        at = np.int64(entries[i]) * FIELDS
        if cells[at] == _UNKNOWN:
            unknown[count] = entries[i]
            count += 1
            cells[at] = _ABSENT
    for i in range(count):
        cells[np.int64(unknown[i]) * FIELDS] = _UNKNOWN
    return count


@kernel("i8(i4[], u1[], i8[], i8[], b1, i8[]!, u1[]!, i8[]!, i8, i4[]!, i8[]!, i8[]!, i8)")
def _place_rows(
    entries: Any,
    data: Any,
    starts: Any,
    lengths: Any,
    is_change: Any,
    cells: Any,
    arena: Any,
    used: Any,
    first_change: Any,
    log_entries: Any,
    log_at: Any,
    log_lengths: Any,
    log_size: Any,
) -> Any:
    """Copy rows, and return the new size of the log."""
    source, target = address_of(data), address_of(arena)
    end, frozen = used[0], used[1]
    for i in range(len(entries)):
        cell = np.int64(entries[i]) * FIELDS
        length = lengths[i]
        if starts[i] < 0:
            cells[cell] = _ABSENT
            cells[cell + 1] = 0
        else:
            # The place of an absent or unknown entry is negative, and so always below the mark.
            if cells[cell] < frozen or cells[cell + 1] != length:
                cells[cell] = end
                cells[cell + 1] = length
                end += length
            copy_bytes(source + starts[i], target + cells[cell], length)
        if is_change:
            if cells[cell + 2] < first_change:
                cells[cell + 2] = first_change + log_size
                log_entries[log_size] = entries[i]
                log_size += 1
            number = cells[cell + 2] - first_change
            log_at[number] = cells[cell]
            log_lengths[number] = cells[cell + 1]
    used[0] = end
    return log_size


@kernel("void(i8[]!, u1[], u1[]!, i8[]!, i8, i8[]!)")
def _pack_rows(cells: Any, former: Any, arena: Any, used: Any, first_change: Any, log_at: Any) -> None:
    """Copy all rows to another buffer, without gaps."""
    source, target = address_of(former), address_of(arena)
    end = 0
    for cell in range(0, len(cells), FIELDS):
        if cells[cell] >= 0:
            copy_bytes(source + cells[cell], target + end, cells[cell + 1])
            cells[cell] = end
            end += cells[cell + 1]
            if cells[cell + 2] >= first_change:
                log_at[cells[cell + 2] - first_change] = cells[cell]
    used[0] = end
    used[1] = 0
