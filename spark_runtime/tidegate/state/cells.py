"""Flat arrays that are written while a frozen version of them is read: copy-on-write by chunk (S5.2).

`CopyOnWriteArrays` are named numpy arrays of one length, indexed by entry number; kernels work on them directly.
Entries are seen in chunks of `CHUNK_ENTRIES`. `freeze` only notes how many entries there are and remembers the
arrays, whatever their size.
Whoever writes says first which entries it will write (`touch`): chunks of a frozen version that were not read yet are
then copied aside. An array that grows is replaced; the frozen version keeps the old one.

One thread writes and freezes; any other may read a frozen version. While none is alive, no lock is taken.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.state.compiler import kernel

CHUNK_SHIFT = 15
CHUNK_ENTRIES = 1 << CHUNK_SHIFT
"""Entries of a chunk: what a first write after a freeze copies, and what an incremental snapshot writes, at least."""

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Entries: TypeAlias = npt.NDArray[np.int32]


class CopyOnWriteArrays:
    """Named arrays of one length. See the module."""

    def __init__(self, capacity: int) -> None:
        """Args: capacity: entries to have room for, at least one."""
        self.capacity = capacity
        self.arrays: dict[str, Array] = {}
        self.stamps = np.zeros(_chunks(capacity), np.int64)
        self._fill: dict[str, Any] = {}
        self._epoch = 1
        self._frozen: list[weakref.ref[FrozenArrays]] = []
        self._lock = threading.Lock()

    def add(self, name: str, dtype: np.dtype[Any] | type[Any], fill: Any = 0) -> None:
        """A new array. Args: fill: what entries hold that were never written."""
        assert name not in self.arrays, f"there is an array {name!r} already"
        self._fill[name] = fill
        self.arrays[name] = _filled(self.capacity, np.dtype(dtype), fill)

    def grow(self, capacity: int) -> None:
        """Make room for entries 0..capacity - 1."""
        if capacity <= self.capacity:
            return
        for name, old in self.arrays.items():
            grown = _filled(capacity, old.dtype, self._fill[name])
            grown[: self.capacity] = old
            self.arrays[name] = grown
        stamps = np.zeros(_chunks(capacity), np.int64)
        stamps[: len(self.stamps)] = self.stamps
        self.capacity, self.stamps = capacity, stamps

    def replace(self, name: str, array: Array) -> None:
        """Put another array in place of one. What the entries stand for must be the same: no chunk counts as
        changed."""
        assert len(array) == self.capacity
        self.arrays[name] = array

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry, over all arrays."""
        return sum(array.itemsize for array in self.arrays.values())

    @property
    def is_watched(self) -> bool:
        """There is, or was until lately, a frozen version that waits to be read."""
        return bool(self._frozen)

    def touch(self, entries: Entries) -> None:
        """Say that `entries` will be written; to be called before they are."""
        stamp_chunks(entries, CHUNK_SHIFT, self._epoch, self.stamps)
        if self._frozen:
            self._copy_chunk()

    def touch_all(self, size: int) -> None:
        """Say that any of entries 0..size - 1 will be written."""
        self.stamps[: _chunks(size)] = self._epoch
        if self._frozen:
            self._copy_chunk()

    def freeze(self, size: int) -> FrozenArrays:
        """Entries 0..size - 1 as they are now. A frozen version costs nothing once nobody refers to it."""
        frozen = FrozenArrays(self, size, self._lock)
        self._frozen = [*(ref for ref, _ in self._pending_freezes()), weakref.ref(frozen)]
        self._epoch += 1
        return frozen

    def _pending_freezes(self) -> list[tuple[weakref.ref[FrozenArrays], FrozenArrays]]:
        return [(ref, frozen) for ref in self._frozen if (frozen := ref()) is not None and not frozen.is_read]

    def _copy_chunk(self) -> None:
        alive = self._pending_freezes()
        for _, frozen in alive:
            frozen.keep()
        self._frozen = [ref for ref, _ in alive]


class FrozenArrays:
    """A version of `CopyOnWriteArrays`. Any thread may read it.

    Attributes:
        size: number of entries.
        stamps: for each chunk when it was written last: equal stamps of one chunk mean equal content, over all
            versions of the same Cells.
    """

    def __init__(self, cells: CopyOnWriteArrays, size: int, lock: threading.Lock) -> None:
        """Args: as `CopyOnWriteArrays.freeze` has them."""
        self.size = size
        self.stamps = cells.stamps[: _chunks(size)].copy()
        self._cells = cells
        self._arrays = dict(cells.arrays)
        self._lock = lock
        self._safe = np.zeros(len(self.stamps), np.bool_)  # copied aside, or read
        self._aside: dict[int, Arrays] = {}

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.stamps)

    @property
    def is_read(self) -> bool:
        """Nothing of it needs to be kept any more."""
        return bool(self._safe.all())

    def read(self, chunk: int) -> Arrays:
        """Copies of the entries of a chunk, by array. To be read once: a chunk that was read is not kept any more, and
        reading it again after a write fails."""
        with self._lock:
            aside = self._aside.pop(chunk, None)
            if aside is not None:
                return aside
            assert not self._safe[chunk] or not self._is_newer()[chunk], f"chunk {chunk} was read and changed since"
            copied = self._copy(chunk)
            self._safe[chunk] = True  # not before: whoever finds it so writes without waiting for the lock
            return copied

    def keep(self) -> None:
        """Copy aside the chunks that are about to be written. For `CopyOnWriteArrays`."""
        wanted = np.flatnonzero(self._is_newer() & ~self._safe)
        live = self._cells.arrays
        if not wanted.size or not any(live.get(name) is array for name, array in self._arrays.items()):
            return
        with self._lock:
            for chunk in wanted[~self._safe[wanted]].tolist():
                self._aside[chunk] = self._copy(chunk)
                self._safe[chunk] = True

    def _is_newer(self) -> npt.NDArray[np.bool_]:
        newer: npt.NDArray[np.bool_] = self._cells.stamps[: len(self.stamps)] > self.stamps
        return newer

    def _copy(self, chunk: int) -> Arrays:
        part = slice(chunk << CHUNK_SHIFT, min((chunk + 1) << CHUNK_SHIFT, self.size))
        return {name: array[part].copy() for name, array in self._arrays.items()}


def _chunks(entries: int) -> int:
    return -(-entries // CHUNK_ENTRIES)


def _filled(length: int, dtype: np.dtype[Any], fill: Any) -> Array:
    return np.zeros(length, dtype) if isinstance(fill, int) and fill == 0 else np.full(length, fill, dtype)


@kernel("void(i4[], i8, i8, i8[]!)")
def stamp_chunks(entries: Any, shift: Any, stamp: Any, stamps: Any) -> None:
    """Set the stamp of every chunk that one of the entries is in."""
    for i in range(len(entries)):
        stamps[entries[i] >> shift] = stamp
