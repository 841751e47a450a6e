"""Flat arrays that can be written while a frozen version of them is read: copy-on-write by chunk (S5.2).

`CopyOnWriteArrays` are named numpy arrays of one length, indexed by entry number; kernels work on them directly.
Entries are grouped in chunks of `CHUNK_ENTRIES`. `freeze` only stores the number of entries and references to the
arrays, so it takes the same time for any size.

A writer first calls `touch` with the entries that it will write. Chunks of a frozen version that have not been read are
then copied. An array that grows is replaced; the frozen version keeps the old one.

One thread writes and freezes; any other may read a frozen version. While there is no frozen version, no lock is used.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.state.numba_kernels import kernel

CHUNK_SHIFT = 15
CHUNK_ENTRIES = 1 << CHUNK_SHIFT
"""Entries of a chunk: the least that a first write after a freeze copies, and that an incremental snapshot writes."""

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Entries: TypeAlias = npt.NDArray[np.int32]


class CopyOnWriteArrays:
    """Named arrays of one length. See the module."""

    def __init__(self, capacity: int) -> None:
        """Create without arrays. Args: capacity: number of entries to allocate, at least one."""
        self.capacity = capacity
        self.arrays: dict[str, Array] = {}
        self.stamps = np.zeros(_chunks(capacity), np.int64)
        self._fill: dict[str, Any] = {}
        self._epoch = 1
        self._frozen: list[weakref.ref[FrozenArrays]] = []
        self._lock = threading.Lock()

    def add(self, name: str, dtype: np.dtype[Any] | type[Any], fill: Any = 0) -> None:
        """Add an array. Args: fill: value of entries that were never written."""
        assert name not in self.arrays, f"array {name!r} exists already"
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
        """Replace an array by another with the same content per entry: no chunk counts as changed."""
        assert len(array) == self.capacity
        self.arrays[name] = array

    @property
    def entry_bytes(self) -> int:
        """Return the bytes of an entry, over all arrays."""
        return sum(array.itemsize for array in self.arrays.values())

    @property
    def is_watched(self) -> bool:
        """Return whether a frozen version may still have to be read."""
        return bool(self._frozen)

    def touch(self, entries: Entries) -> None:
        """Prepare `entries` for writing. Call it before they are written."""
        # Stamped before the copy: `keep` finds the chunks to copy by their newer stamps.
        stamp_chunks(entries, CHUNK_SHIFT, self._epoch, self.stamps)
        if self._frozen:
            self._copy_chunk()

    def touch_all(self, size: int) -> None:
        """Prepare all of the entries 0..size - 1 for writing."""
        self.stamps[: _chunks(size)] = self._epoch
        if self._frozen:
            self._copy_chunk()

    def freeze(self, size: int) -> FrozenArrays:
        """Return a frozen version of entries 0..size - 1. It costs nothing once it is not referenced any more."""
        frozen = FrozenArrays(self, size, self._lock)
        self._frozen = [*(ref for ref, _ in self._pending_freezes()), weakref.ref(frozen)]
        # Stamps of later writes are higher than every stamp of this version, so that changed chunks are recognised.
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
        stamps: for each chunk, the stamp of its last write: equal stamps of one chunk mean equal content, over all
            versions of the same arrays.
    """

    def __init__(self, cells: CopyOnWriteArrays, size: int, lock: threading.Lock) -> None:
        """Create a version. Args: see `CopyOnWriteArrays.freeze`."""
        self.size = size
        self.stamps = cells.stamps[: _chunks(size)].copy()
        self._cells = cells
        self._arrays = dict(cells.arrays)
        self._lock = lock
        self._safe = np.zeros(len(self.stamps), np.bool_)  # copied, or read
        self._aside: dict[int, Arrays] = {}

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return len(self.stamps)

    @property
    def is_read(self) -> bool:
        """Return whether all chunks have been read or copied, so that writers need not copy more."""
        return bool(self._safe.all())

    def read(self, chunk: int) -> Arrays:
        """Return copies of the entries of a chunk, by array. Read each chunk once.

        A chunk that was read is not preserved any more: reading it again after a write fails.
        """
        with self._lock:
            aside = self._aside.pop(chunk, None)
            if aside is not None:
                return aside
            assert not self._safe[chunk] or not self._is_newer()[chunk], (
                f"chunk {chunk} was read before and has changed since"
            )
            copied = self._copy(chunk)
            self._safe[chunk] = True  # set last: a writer that sees it writes without waiting for the lock
            return copied

    def keep(self) -> None:
        """Copy the chunks that are about to be written. For `CopyOnWriteArrays`."""
        wanted = np.flatnonzero(self._is_newer() & ~self._safe)
        live = self._cells.arrays
        # If growth has replaced all arrays, only the frozen version still has the former ones, and nobody writes to
        # them.
        if not wanted.size or not any(live.get(name) is array for name, array in self._arrays.items()):
            return
        with self._lock:
            # Checked again under the lock: a reader may have read some of the chunks since.
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
    # np.zeros gets zeroed pages from the kernel when they are first used. np.full would write all of them now.
    return np.zeros(length, dtype) if isinstance(fill, int) and fill == 0 else np.full(length, fill, dtype)


@kernel("void(i4[], i8, i8, i8[]!)")
def stamp_chunks(entries: Any, shift: Any, stamp: Any, stamps: Any) -> None:
    """Set the stamp of every chunk that contains one of the entries."""
    for i in range(len(entries)):
        stamps[entries[i] >> shift] = stamp
