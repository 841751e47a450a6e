"""The channel between two subtasks of one slot: a deque."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from tidegate.channel.elements import CheckpointBarrier, Element, EndOfPartition, batch_bytes
from tidegate.channel.ports import Announce, elements_before_barrier


class MemoryChannel:
    """Both ends of the channel: OutputChannel and InputChannel. Only for the slot's loop. Batches are not copied."""

    def __init__(self, capacity_bytes: int, overdraft_bytes: int = 0) -> None:
        """Create an empty channel.

        Args:
            capacity_bytes: queued bytes from which `has_capacity` is False; events do not count.
            overdraft_bytes: additional bytes that `overdraw` allows.
        """
        assert capacity_bytes > 0, f"capacity_bytes = {capacity_bytes}"
        self._capacity_bytes = capacity_bytes
        self._overdraft_bytes = overdraft_bytes
        self._limit_bytes = capacity_bytes
        self._queued_bytes = 0
        self._queue: deque[tuple[Element, int]] = deque()
        self._announce: Announce | None = None

    @property
    def queued_bytes(self) -> int:
        """Bytes of the record batches that are sent and not polled."""
        return self._queued_bytes

    def has_capacity(self) -> bool:
        """Return whether another record batch may be sent."""
        return self._queued_bytes < self._limit_bytes

    def overdraw(self, allowed: bool) -> None:
        """See `OutputChannel.overdraw`."""
        self._limit_bytes = self._capacity_bytes + (self._overdraft_bytes if allowed else 0)

    def send(self, element: Element) -> None:
        """Append `element`. A record batch needs `has_capacity()`."""
        size = 0
        if isinstance(element, pa.RecordBatch):
            assert self._queued_bytes < self._limit_bytes, "a record batch was sent on a full channel"
            size = batch_bytes(element)
            self._queued_bytes += size
        self._queue.append((element, size))
        if self._announce is not None and isinstance(element, CheckpointBarrier | EndOfPartition):
            self._announce(element)

    def poll(self) -> Element | None:
        """Return the next element, or None."""
        if not self._queue:
            return None
        element, size = self._queue.popleft()
        self._queued_bytes -= size
        return element

    def next_batch_bytes(self) -> int:
        """See `InputChannel.next_batch_bytes`."""
        return self._queue[0][1] if self._queue else 0

    def on_barrier_queued(self, announce: Announce) -> None:
        """See `InputChannel.on_barrier_queued`."""
        self._announce = announce

    def queued_before(self, checkpoint_id: int) -> list[Element]:
        """See `InputChannel.queued_before`."""
        return elements_before_barrier(checkpoint_id, (element for element, _ in self._queue))
