"""The channel between two subtasks of one slot: a deque."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from tidegate.channel.elements import Element


class MemoryChannel:
    """Both ends at once: OutputChannel and InputChannel. For the slot's loop alone; batches are not copied."""

    def __init__(self, capacity_bytes: int) -> None:
        """Args: capacity_bytes: with that much queued, `has_capacity` is False; events do not count."""
        assert capacity_bytes > 0, f"capacity_bytes = {capacity_bytes}"
        self._capacity_bytes = capacity_bytes
        self._queued_bytes = 0
        self._queue: deque[tuple[Element, int]] = deque()

    @property
    def queued_bytes(self) -> int:
        """Bytes of the record batches sent and not polled."""
        return self._queued_bytes

    def has_capacity(self) -> bool:
        """Another record batch may be sent."""
        return self._queued_bytes < self._capacity_bytes

    def send(self, element: Element) -> None:
        """Append `element`; a record batch needs `has_capacity()`."""
        size = 0
        if isinstance(element, pa.RecordBatch):
            assert self._queued_bytes < self._capacity_bytes, "a record batch was sent on a full channel"
            size = element.nbytes
            self._queued_bytes += size
        self._queue.append((element, size))

    def poll(self) -> Element | None:
        """The next element, or None."""
        if not self._queue:
            return None
        element, size = self._queue.popleft()
        self._queued_bytes -= size
        return element
