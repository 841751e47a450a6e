"""Kernels of the key indexes. The number of slots is a power of two, and at most half of them are in use.

A slot of numbers is an int32 entry number, or -1 if it is free. A slot of bytes is an int64: the upper half of the
hash, and the entry number as lower half; or -1 if it is free, since no entry has that number. So the bytes of another
key are hardly ever read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.byte_words import address_of, copy_bytes, load_half, load_word, prefetch, same_bytes
from tidegate.state.numba_kernels import inlined, kernel

MAX_ENTRIES = 2**30
"""Most entries of an index: entry numbers are int32."""
FREE = -1
UPPER_BITS = np.uint64(0xFFFFFFFF00000000)
LOWER_BITS = np.uint64(0x00000000FFFFFFFF)
MANY_SLOTS = 2**16
"""Number of slots from which memory is requested in advance. Smaller indexes fit into the processor's cache."""
NEAR, MIDDLE, FAR = 8, 16, 24
"""Rows ahead for which memory is requested. A row takes about as long as a tenth of an access to main memory."""


@inlined
def slot_of(h: Any, mask: Any) -> Any:
    # Not the hash of key groups: all keys of one subtask have some bits of that hash in common.
    mixed = np.uint64(h) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))


@inlined
def prefetch_entry(far: Any, middle: Any, near: Any, slots_at: Any, bounds_at: Any, held: Any, mask: Any) -> None:
    """Request memory for three later rows: the slot of hash `far`, the bounds of `middle`, the bytes of `near`.

    Each needs the one before, which was requested some rows ago. Most keys are in the first slot, so no other is tried.
    """
    prefetch(slots_at + 8 * slot_of(far, mask))
    prefetch(bounds_at + 8 * np.int64(load_half(slots_at + 8 * slot_of(middle, mask))))
    slot = load_word(slots_at + 8 * slot_of(near, mask))
    if np.int64(slot) != FREE:
        prefetch(held + np.int64(load_word(bounds_at + 8 * np.int64(slot & LOWER_BITS))))


@inlined
def prefetch_number(middle: Any, near: Any, slots_at: Any, known_at: Any, mask: Any) -> None:
    """Do as `prefetch_entry` for numbers, which need two steps."""
    prefetch(slots_at + 4 * slot_of(middle, mask))
    prefetch(known_at + 8 * np.int64(load_half(slots_at + 4 * slot_of(near, mask))))


@kernel("void(i8[], i4[]!, i8[]!, i8[]!, i4[]!)")
def add_fixed(values: Any, slots: Any, known: Any, cursor: Any, out: Any) -> None:
    """Write the entry of each value from row cursor[0] on; new values get entry cursor[1] and up. Stops when `known` is
    full.
    """
    slots_at, known_at = address_of(slots), address_of(known)
    mask = len(slots) - 1
    limit = len(known)
    size = cursor[1]
    rows = len(values)
    ahead = MIDDLE if mask >= MANY_SLOTS else rows
    for i in range(cursor[0], rows):
        if i + ahead < rows:
            prefetch_number(values[i + MIDDLE], values[i + NEAR], slots_at, known_at, mask)
        value = values[i]
        at = slot_of(value, mask)
        entry = slots[at]
        while entry >= 0 and known[entry] != value:
            at = (at + 1) & mask
            entry = slots[at]
        if entry < 0:
            if size == limit:
                cursor[0] = i
                cursor[1] = size
                return
            entry = np.int32(size)
            known[size] = value
            slots[at] = entry
            size += 1
        out[i] = entry
    cursor[0] = len(values)
    cursor[1] = size


@kernel("void(i8[], u1[], i4[]!, i8[]!, i8[]!, i4[]!)")
def add_fixed_or_null(values: Any, valid: Any, slots: Any, known: Any, cursor: Any, out: Any) -> None:
    """Do as `add_fixed`; rows with valid[i] = 0 share entry cursor[2], which is -1 until the first one."""
    mask = len(slots) - 1
    limit = len(known)
    for i in range(cursor[0], len(values)):
        size = cursor[1]
        entry = np.int64(-1)
        at = np.int64(-1)
        if valid[i]:
            at = slot_of(values[i], mask)
            entry = slots[at]
            while entry >= 0 and known[entry] != values[i]:
                at = (at + 1) & mask
                entry = slots[at]
        else:
            entry = cursor[2]
        if entry < 0:
            if size == limit:
                cursor[0] = i
                return
            entry = size
            if at >= 0:
                known[size] = values[i]
                slots[at] = np.int32(entry)
            else:
                known[size] = 0
                cursor[2] = entry
            cursor[1] = size + 1
        out[i] = np.int32(entry)
    cursor[0] = len(values)


@kernel("void(i8[], i4[], i8[], i4[]!)")
def find_fixed(values: Any, slots: Any, known: Any, out: Any) -> None:
    """Write the entry of each value, or -1."""
    mask = len(slots) - 1
    for i in range(len(values)):
        at = slot_of(values[i], mask)
        entry = slots[at]
        while entry >= 0 and known[entry] != values[i]:
            at = (at + 1) & mask
            entry = slots[at]
        out[i] = entry


@kernel("void(i8[], i8, i4[]!)")
def fill_fixed(known: Any, null_entry: Any, slots: Any) -> None:
    """Insert all known values except the null key into empty slots."""
    mask = len(slots) - 1
    for entry in range(len(known)):
        if entry != null_entry:
            at = slot_of(known[entry], mask)
            while slots[at] >= 0:
                at = (at + 1) & mask
            slots[at] = np.int32(entry)


@kernel("void(u1[], i8[], i8[], u8[], i8[]!, u8[]!, i8[]!, u1[]!, i8[]!, i4[]!, i8[]!)")
def add_bytes(
    data: Any,
    starts: Any,
    ends: Any,
    hashes: Any,
    slots: Any,
    known: Any,
    bounds: Any,
    arena: Any,
    cursor: Any,
    out: Any,
    added: Any,
) -> None:
    """Write the entry of each row's bytes from row cursor[0] on, and list rows with new entries in `added`.

    Row i is data[starts[i]:ends[i]]; entry e is arena[bounds[e]:bounds[e + 1]]. Stops when `known` or `arena` is full.
    """
    read, held = address_of(data), address_of(arena)
    slots_at, bounds_at = address_of(slots), address_of(bounds)
    mask = len(slots) - 1
    limit = len(known)
    size = cursor[1]
    first = size
    rows = len(hashes)
    ahead = FAR if mask >= MANY_SLOTS else rows
    for i in range(cursor[0], rows):
        if i + ahead < rows:
            prefetch_entry(hashes[i + FAR], hashes[i + MIDDLE], hashes[i + NEAR], slots_at, bounds_at, held, mask)
        h = hashes[i]
        start = read + starts[i]
        length = ends[i] - starts[i]
        at = slot_of(h, mask)
        entry = np.int64(-1)
        slot = slots[at]
        while slot != FREE and entry < 0:
            found = np.int64(np.uint64(slot) ^ (h & UPPER_BITS))
            if 0 <= found < MAX_ENTRIES and (
                bounds[found + 1] - bounds[found] == length and same_bytes(start, held + bounds[found], length)
            ):
                entry = found
            else:
                at = (at + 1) & mask
                slot = slots[at]
        if entry < 0:
            free = bounds[size]
            if size == limit or free + length > len(arena):
                cursor[0] = i
                cursor[1] = size
                return
            copy_bytes(start, held + free, length)
            entry = size
            bounds[size + 1] = free + length
            known[size] = h
            slots[at] = np.int64((h & UPPER_BITS) | np.uint64(entry))
            added[size - first] = i
            size += 1
        out[i] = np.int32(entry)
    cursor[0] = rows
    cursor[1] = size


@kernel("void(u1[], i8[], i8[], u8[], i8[], i8[], u1[], i4[]!)")
def find_bytes(data: Any, starts: Any, ends: Any, hashes: Any, slots: Any, bounds: Any, arena: Any, out: Any) -> None:
    """Write the entry of each row's bytes, or -1."""
    read, held = address_of(data), address_of(arena)
    slots_at, bounds_at = address_of(slots), address_of(bounds)
    mask = len(slots) - 1
    rows = len(hashes)
    ahead = FAR if mask >= MANY_SLOTS else rows
    for i in range(rows):
        if i + ahead < rows:
            prefetch_entry(hashes[i + FAR], hashes[i + MIDDLE], hashes[i + NEAR], slots_at, bounds_at, held, mask)
        h = hashes[i]
        start = read + starts[i]
        length = ends[i] - starts[i]
        at = slot_of(h, mask)
        entry = np.int64(-1)
        slot = slots[at]
        while slot != FREE and entry < 0:
            found = np.int64(np.uint64(slot) ^ (h & UPPER_BITS))
            if 0 <= found < MAX_ENTRIES and (
                bounds[found + 1] - bounds[found] == length and same_bytes(start, held + bounds[found], length)
            ):
                entry = found
            else:
                at = (at + 1) & mask
                slot = slots[at]
        out[i] = np.int32(entry)


@kernel("void(u8[], i8[]!)")
def fill_bytes(known: Any, slots: Any) -> None:
    """Insert all known hashes into empty slots."""
    mask = len(slots) - 1
    for entry in range(len(known)):
        at = slot_of(known[entry], mask)
        while slots[at] != FREE:
            at = (at + 1) & mask
        slots[at] = np.int64((known[entry] & UPPER_BITS) | np.uint64(entry))
