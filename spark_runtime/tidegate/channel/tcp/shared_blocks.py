"""Record batches in memory that slots of one host share (docs/adr/0037-shared-memory.md).

A slot that sends creates one memory file (`memfd`), which has no name in any file system. So the kernel frees it when
the last process that uses it ends, also after a SIGKILL. A slot that receives maps the file if it can: it opens the
file through `/proc`, and compares a nonce that it received over the authenticated connection. On another host, in
another container, or on another system than Linux this fails, and the batches travel in the frames as before.

The file begins with the nonce and one byte for each block in use. The sender sets the byte when it stores a batch, the
receiver clears it when nothing refers to the batch any more. If a receiver keeps its batches, the memory is used up,
and further batches travel in frames. So nobody waits for memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
from bisect import insort
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.column_blocks import ALIGNMENT_BYTES
from tidegate.channel.failures import ProtocolError

SHARED_BYTES = 128 * 2**20
"""Memory of one sending slot, bytes. Only what is used becomes resident: the lowest free block is used first. Credits
limit the use, too: the capacity of each channel, and one batch.

With half of it, a third of the batches of 32 slots on two cores found no block, as their receivers waited for a core.
"""
SHARED_FROM_BYTES = 64 * 1024
"""Smaller batches travel in frames. With 48 KiB both ways cost the same, with 256 KiB frames cost 2.3 times as much."""
MAX_BLOCKS = 2_048
"""Most blocks in use. 64 slots may each have 32 batches of one sender in their queues."""
NONCE_BYTES = 16
NAME = "tidegate"
_STATES_AT = 64
_DATA_AT = 4_096
"""Where blocks begin. Must be at least `_STATES_AT + MAX_BLOCKS`."""
_PROC_NAME = f"/memfd:{NAME} (deleted)"


class Offer(NamedTuple):
    """Where a slot's memory can be found by processes of the same host."""

    pid: int
    descriptor: int
    size_bytes: int
    nonce: bytes


class Place(NamedTuple):
    """A stored batch: its block, and its bytes in the file."""

    block: int
    offset: int
    length: int


class FreeRanges:
    """Allocates ranges, the lowest that is large enough first. Pure."""

    def __init__(self, begin: int, end: int) -> None:
        self._free = [(begin, end)]

    def take(self, size: int) -> int | None:
        """Return the begin of a range of `size`; None: no free range is large enough."""
        for number, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                if end - begin == size:
                    del self._free[number]
                else:
                    self._free[number] = (begin + size, end)
                return begin
        return None

    def give_back(self, begin: int, size: int) -> None:
        """Free a range that `take` returned."""
        insort(self._free, (begin, begin + size))
        merged: list[tuple[int, int]] = []
        for low, high in self._free:
            if merged and merged[-1][1] == low:
                merged[-1] = (merged[-1][0], high)
            else:
                merged.append((low, high))
        self._free = merged


class SharedBlocks:
    """The sender's side. Only the slot's loop calls `store`."""

    def __init__(self, size_bytes: int = SHARED_BYTES) -> None:
        """Create the memory file.

        Raises:
            OSError: the system has no memory files, or refuses one.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files")
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size_bytes)
            # A receiver would be killed by the kernel if the file became shorter.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self.offer = Offer(os.getpid(), descriptor, size_bytes, secrets.token_bytes(NONCE_BYTES))
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self._states = self._bytes[_STATES_AT : _STATES_AT + MAX_BLOCKS]
        self._bytes[:NONCE_BYTES] = np.frombuffer(self.offer.nonce, np.uint8)
        self._ranges = FreeRanges(_DATA_AT, size_bytes)
        self._unused = list(range(MAX_BLOCKS))
        self._used: deque[tuple[int, int, int]] = deque()
        self._closed = False

    @property
    def blocks_in_use(self) -> int:
        """Blocks that no receiver has released, as far as the sender has noticed."""
        return len(self._used)

    def store(self, payload: pa.Buffer) -> Place | None:
        """Copy a batch into a block. None: there is no memory left for it."""
        place = self.reserve(payload.size)
        if place is not None:
            self.memory(place)[:] = np.frombuffer(payload, np.uint8)
        return place

    def memory(self, place: Place) -> npt.NDArray[np.uint8]:
        """Return the bytes of a block, to be filled before its place is sent."""
        return self._bytes[place.offset : place.offset + place.length]

    def reserve(self, size_bytes: int) -> Place | None:
        """Return a block for a batch that will be sent. None: there is no memory left for it."""
        size = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        # The oldest blocks are usually released first. Kept ones are searched only when the memory is used up.
        while self._used and not self._states[self._used[0][0]]:
            self._release(*self._used.popleft())
        begin = self._ranges.take(size) if self._unused else None
        if begin is None:
            if not self._collect():
                return None
            begin = self._ranges.take(size)
            if begin is None:
                return None
        block = self._unused.pop()
        self._states[block] = 1
        self._used.append((block, begin, size))
        return Place(block, begin, size_bytes)

    def _collect(self) -> bool:
        """Release all blocks that no receiver needs. Return whether there was one."""
        kept: deque[tuple[int, int, int]] = deque()
        for used in self._used:
            if self._states[used[0]]:
                kept.append(used)
            else:
                self._release(*used)
        found = len(kept) < len(self._used)
        self._used = kept
        return found

    def _release(self, block: int, begin: int, size: int) -> None:
        self._ranges.give_back(begin, size)
        self._unused.append(block)

    def close(self) -> None:
        """Close the file. Receivers keep what they have mapped. May be called twice."""
        if not self._closed:
            self._closed = True
            os.close(self.offer.descriptor)


class MappedBlocks:
    """The receiver's side: the memory of one sender. It stays mapped as long as a batch refers to it."""

    def __init__(self, offer: Offer) -> None:
        """Map the memory.

        Raises:
            OSError: it belongs to a process of another host or container, or may not be opened.
        """
        path = f"/proc/{offer.pid}/fd/{offer.descriptor}"
        # Checked before it is opened: the path may name any file of an unrelated process, such as a pipe.
        if os.readlink(path) != _PROC_NAME:
            raise OSError(f"{path} is not a memory file of tidegate")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != offer.size_bytes:
                raise OSError(f"{path} has {found.st_size} bytes instead of {offer.size_bytes}")
            memory = mmap.mmap(descriptor, offer.size_bytes)
        finally:
            os.close(descriptor)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        if self._bytes[:NONCE_BYTES].tobytes() != offer.nonce:
            raise OSError(f"{path} belongs to another run")
        self._address = int(self._bytes.ctypes.data)
        self._pid = os.getpid()
        self._states = self._bytes[_STATES_AT : _STATES_AT + MAX_BLOCKS]

    def view(self, place: Place) -> pa.Buffer:
        """Return the bytes of a stored batch, without a copy. The block is released with the last reference to them.

        Raises:
            ProtocolError: the place is outside of the memory.
        """
        inside = _DATA_AT <= place.offset <= place.offset + place.length <= len(self._bytes)
        if not inside or not 0 <= place.block < MAX_BLOCKS:
            raise ProtocolError(
                "internal error: a message between slots names a place outside of their shared memory",
                where=f"block {place.block}, bytes {place.offset} to {place.offset + place.length}",
            )
        return pa.foreign_buffer(self._address + place.offset, place.length, base=_Lease(self, place.block))

    def release(self, block: int) -> None:
        """Return a block to the sender. Does nothing in a process that user code has forked, as the parent uses it."""
        if os.getpid() == self._pid:
            self._states[block] = 0


class _Lease:
    """Keeps a block, and the mapping, until Arrow drops the last buffer that refers to it. Safe on any thread."""

    __slots__ = ("_block", "_blocks")

    def __init__(self, blocks: MappedBlocks, block: int) -> None:
        self._blocks, self._block = blocks, block

    def __del__(self) -> Any:
        self._blocks.release(self._block)
