"""Indexes from keys to entry numbers whose keys can be erased; their numbers are reused for other keys.

They read keys as `key_index` does, but accept distinct keys, and work in two steps: `find`, then `add` for missing
keys. Erased keys leave no marks: the slots after them move back. Entry numbers stay dense, because the number that was
freed last is reused first.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tidegate.state.byte_words import address_of, gather_bytes, same_bytes
from tidegate.state.copy_on_write import Entries
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_index import BytesKeys, FixedKeys, KeyReader
from tidegate.state.keys.key_index_kernels import MAX_ENTRIES, find_fixed, slot_of
from tidegate.state.numba_kernels import kernel

MIN_CAPACITY = 64
"""Number of entries that a new index has room for."""


class ErasableIndex(Protocol):
    """Interface of both indexes. Rows are rows of `keys`.

    Attributes:
        size: entry numbers 0..size - 1 are, or were, in use.
        capacity: number of entries there is room for.
        count: number of keys.
    """

    size: int
    capacity: int
    count: int

    def find(self, keys: Any) -> Entries:
        """Return the entry of each row, or -1."""

    def add(self, keys: Any, rows: Int64s) -> Entries:
        """Return new entries for `rows`, whose keys are distinct and missing. `size` and `capacity` may grow."""

    def erase(self, entries: Entries) -> None:
        """Erase the keys of these distinct entries."""


def new_erasable(reader: KeyReader) -> ErasableIndex:
    """Return an empty index for the keys of `reader`."""
    return ErasableFixed() if reader.is_fixed else ErasableBytes()


class _Slots:
    """Entry numbers by the 64 bits that determine their slot."""

    def __init__(self) -> None:
        self.size = 0
        self.count = 0
        self.capacity = MIN_CAPACITY
        self._known = np.zeros(MIN_CAPACITY, np.int64)
        self._slots = np.full(2 * MIN_CAPACITY, -1, np.int32)
        self._free: Entries = np.empty(MIN_CAPACITY, np.int32)
        self._freed = 0

    def _allocate(self, count: int) -> Entries:
        entries = np.empty(count, np.int32)
        reused = min(count, self._freed)
        entries[:reused] = self._free[self._freed - reused : self._freed][::-1]
        self._freed -= reused
        entries[reused:] = np.arange(self.size, self.size + count - reused)
        self.size += count - reused
        self.count += count
        if self.size > self.capacity:
            self._grow()
        return entries

    def _enter(self, entries: Entries, known: Int64s) -> None:
        self._known[entries] = known
        insert_entries(self._known, entries, self._slots)

    def _release(self, entries: Entries) -> None:
        self.count -= len(entries)
        # No key is left. Numbering starts again, so that later snapshots contain no dead entries.
        if not self.count:
            self.size = self._freed = 0
            return
        self._free[self._freed : self._freed + len(entries)] = entries
        self._freed += len(entries)

    def _grow(self) -> None:
        assert self.size <= MAX_ENTRIES, f"a state of one subtask holds at most {MAX_ENTRIES} entries"
        # A power of two, because slots are addressed with a mask.
        former, self.capacity = self.capacity, max(2 * self.capacity, 1 << (self.size - 1).bit_length())
        self._known = _longer(self._known, self.capacity)
        self._free = _longer(self._free, self.capacity)
        held = self._slots[self._slots >= 0]
        self._slots = np.full(2 * self.capacity, -1, np.int32)
        assert len(held) <= former
        insert_entries(self._known, held, self._slots)


class ErasableFixed(_Slots):
    """Index over int64 values; see `ErasableIndex`."""

    def __init__(self) -> None:
        super().__init__()
        self._null = -1

    def find(self, keys: FixedKeys) -> Entries:
        """See `ErasableIndex`."""
        out = np.empty(len(keys.values), np.int32)
        find_fixed(keys.values, self._slots, self._known, out)
        if keys.valid is not None:
            out[keys.valid == 0] = self._null
        return out

    def add(self, keys: FixedKeys, rows: Int64s) -> Entries:
        """See `ErasableIndex`."""
        entries = self._allocate(len(rows))
        at = entries
        # The null key is found by its entry number and has no slot, because its raw value is arbitrary.
        if keys.valid is not None and len(null := np.flatnonzero(keys.valid[rows] == 0)):
            self._null = int(entries[null[0]])
            rows, at = np.delete(rows, null), np.delete(entries, null)
        self._enter(at, keys.values[rows])
        return entries

    def erase(self, entries: Entries) -> None:
        """See `ErasableIndex`."""
        placed = entries
        if self._null >= 0 and (entries == self._null).any():
            placed = entries[entries != self._null]
            self._null = -1
        erase_entries(self._known, placed, self._slots)
        self._release(entries)


class ErasableBytes(_Slots):
    """Index over canonical bytes; see `ErasableIndex`."""

    def __init__(self) -> None:
        super().__init__()
        self._starts = np.zeros(MIN_CAPACITY, np.int64)
        self._lengths = np.zeros(MIN_CAPACITY, np.int64)
        self._bytes = np.empty(16 * MIN_CAPACITY, np.uint8)
        self._used = 0
        self._dead = 0

    def find(self, keys: BytesKeys) -> Entries:
        """See `ErasableIndex`."""
        out = np.empty(len(keys.hashes), np.int32)
        known = self._known.view(np.uint64)
        find_ranges(
            keys.data, keys.starts, keys.ends, keys.hashes,
            self._slots, known, self._starts, self._lengths, self._bytes, out,
        )  # fmt: skip
        return out

    def add(self, keys: BytesKeys, rows: Int64s) -> Entries:
        """See `ErasableIndex`."""
        entries = self._allocate(len(rows))
        starts = keys.starts[rows]
        lengths = keys.ends[rows] - starts
        data = gather_bytes(keys.data, starts, lengths)
        self._make_room(len(data))
        self._bytes[self._used : self._used + len(data)] = data
        self._starts[entries] = self._used + np.cumsum(lengths) - lengths
        self._lengths[entries] = lengths
        self._used += len(data)
        self._enter(entries, keys.hashes[rows].view(np.int64))
        return entries

    def erase(self, entries: Entries) -> None:
        """See `ErasableIndex`."""
        erase_entries(self._known, entries, self._slots)
        self._dead += int(self._lengths[entries].sum())
        self._lengths[entries] = 0
        self._release(entries)
        if not self.count:
            self._used = self._dead = 0

    def _make_room(self, more: int) -> None:
        if self._used + more <= len(self._bytes):
            return
        held = self._bytes
        if 2 * self._dead > self._used:
            held = gather_bytes(self._bytes, self._starts, self._lengths)
            self._starts = np.cumsum(self._lengths) - self._lengths
            self._used, self._dead = len(held), 0
        self._bytes = np.empty(max(2 * self._used, self._used + more, 1024), np.uint8)
        self._bytes[: self._used] = held[: self._used]

    def _grow(self) -> None:
        super()._grow()
        self._starts = _longer(self._starts, self.capacity)
        self._lengths = _longer(self._lengths, self.capacity)


def _longer(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    longer = np.zeros(capacity, array.dtype)
    longer[: len(array)] = array
    return longer


@kernel("void(i8[], i4[], i4[]!)")
def insert_entries(known: Any, entries: Any, slots: Any) -> None:
    """Insert entries that are not in the slots."""
    mask = len(slots) - 1
    for i in range(len(entries)):
        at = slot_of(known[entries[i]], mask)
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = entries[i]


@kernel("void(i8[], i4[], i4[]!)")
def erase_entries(known: Any, entries: Any, slots: Any) -> None:
    """Remove entries from the slots.

    Each following entry, up to the next free slot, moves into the gap unless its own place is after the gap.
    """
    mask = len(slots) - 1
    for i in range(len(entries)):
        gap = slot_of(known[entries[i]], mask)
        while slots[gap] != entries[i]:
            gap = (gap + 1) & mask
        at = (gap + 1) & mask
        while slots[at] >= 0:
            place = slot_of(known[slots[at]], mask)
            if ((at - place) & mask) >= ((at - gap) & mask):
                slots[gap] = slots[at]
                gap = at
            at = (at + 1) & mask
        slots[gap] = np.int32(-1)


@kernel("void(u1[], i8[], i8[], u8[], i4[], u8[], i8[], i8[], u1[], i4[]!)")
def find_ranges(
    data: Any,
    row_starts: Any,
    row_ends: Any,
    hashes: Any,
    slots: Any,
    known: Any,
    starts: Any,
    lengths: Any,
    held: Any,
    out: Any,
) -> None:
    """Write the entry of each row's bytes, or -1; entry e has held[starts[e]:starts[e] + lengths[e]]."""
    read, held_at = address_of(data), address_of(held)
    mask = len(slots) - 1
    for i in range(len(hashes)):
        h = hashes[i]
        at = slot_of(h, mask)
        entry = slots[at]
        while entry >= 0 and not (
            known[entry] == h
            and lengths[entry] == row_ends[i] - row_starts[i]
            and same_bytes(read + row_starts[i], held_at + starts[entry], lengths[entry])
        ):
            at = (at + 1) & mask
            entry = slots[at]
        out[i] = entry
