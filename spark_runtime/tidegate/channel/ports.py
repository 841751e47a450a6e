"""The two ends of a channel as a subtask sees them, whatever carries the elements."""

from __future__ import annotations

from typing import Protocol

from tidegate.channel.elements import Element


class OutputChannel(Protocol):
    """The sending end. Called by the slot's loop alone; nothing here blocks.

    Elements arrive in the order in which they were sent, each exactly once, or the run fails (S3.1).
    """

    def has_capacity(self) -> bool:
        """Another record batch may be sent: fewer than the channel's capacity in bytes are sent and not yet consumed.
        One batch may go beyond the capacity, so that any batch can pass."""

    def send(self, element: Element) -> None:
        """Send `element`. A record batch needs `has_capacity()`, else AssertionError; an event never does.

        The batch's buffers must not be changed afterwards. After a failure of the transport the element is dropped:
        the run is over anyway.
        """


class InputChannel(Protocol):
    """The receiving end. Called by the slot's loop alone; nothing here blocks.

    Not polling is what holds the sender back (S3.2): bytes count as consumed when `poll` returns them.
    """

    @property
    def queued_bytes(self) -> int:
        """Bytes of the record batches that have arrived and were not polled."""

    def poll(self) -> Element | None:
        """The next element, or None when none is there now."""
