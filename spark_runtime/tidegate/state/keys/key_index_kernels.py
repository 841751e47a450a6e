"""Kernels of the key indexes. Slots are int32 entry numbers, -1 if free; a power of two, at most half full."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.numba_kernels import inlined, kernel


@inlined
def slot_of(h: Any, mask: Any) -> Any:
    # Not the hash of key groups: all keys of one subtask have some bits of that hash in common.
    mixed = np.uint64(h) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))


@kernel("void(i8[], i4[]!, i8[]!, i8[]!, i4[]!)")
def add_fixed(values: Any, slots: Any, known: Any, cursor: Any, out: Any) -> None:
    """Write the entry of each value from row cursor[0] on; new values get entry cursor[1] and up. Stops when `known` is
    full.
    """
    mask = len(slots) - 1
    limit = len(known)
    size = cursor[1]
    for i in range(cursor[0], len(values)):
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


@inlined
def same_bytes(data: Any, start: Any, end: Any, arena: Any, other: Any, other_end: Any) -> Any:
    same = end - start == other_end - other
    i = 0
    while same and i < end - start:
        same = data[start + i] == arena[other + i]
        i += 1
    return same


@kernel("void(u1[], i8[], u8[], i4[]!, u8[]!, i8[]!, u1[]!, i8[]!, i4[]!, i8[]!)")
def add_bytes(
    data: Any,
    offsets: Any,
    hashes: Any,
    slots: Any,
    known: Any,
    ends: Any,
    arena: Any,
    cursor: Any,
    out: Any,
    added: Any,
) -> None:
    """Write the entry of each row's bytes from row cursor[0] on, and list rows with new entries in `added`.

    Stops when `known` or `arena` is full.
    """
    mask = len(slots) - 1
    limit = len(known)
    size = cursor[1]
    first = size
    for i in range(cursor[0], len(hashes)):
        h = hashes[i]
        start = offsets[i]
        end = offsets[i + 1]
        at = slot_of(h, mask)
        entry = slots[at]
        while entry >= 0 and not (
            known[entry] == h and same_bytes(data, start, end, arena, ends[entry], ends[entry + 1])
        ):
            at = (at + 1) & mask
            entry = slots[at]
        if entry < 0:
            free = ends[size]
            if size == limit or free + end - start > len(arena):
                cursor[0] = i
                cursor[1] = size
                return
            for j in range(end - start):
                arena[free + j] = data[start + j]
            entry = np.int32(size)
            ends[size + 1] = free + end - start
            known[size] = h
            slots[at] = entry
            added[size - first] = i
            size += 1
        out[i] = entry
    cursor[0] = len(hashes)
    cursor[1] = size


@kernel("void(u1[], i8[], u8[], i4[], u8[], i8[], u1[], i4[]!)")
def find_bytes(data: Any, offsets: Any, hashes: Any, slots: Any, known: Any, ends: Any, arena: Any, out: Any) -> None:
    """Write the entry of each row's bytes, or -1."""
    mask = len(slots) - 1
    for i in range(len(hashes)):
        h = hashes[i]
        at = slot_of(h, mask)
        entry = slots[at]
        while entry >= 0 and not (
            known[entry] == h and same_bytes(data, offsets[i], offsets[i + 1], arena, ends[entry], ends[entry + 1])
        ):
            at = (at + 1) & mask
            entry = slots[at]
        out[i] = entry


@kernel("void(u8[], i4[]!)")
def fill_bytes(known: Any, slots: Any) -> None:
    """Insert all known hashes into empty slots."""
    mask = len(slots) - 1
    for entry in range(len(known)):
        at = slot_of(known[entry], mask)
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = np.int32(entry)
