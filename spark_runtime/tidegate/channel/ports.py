"""The two ends of a channel as a subtask sees them, whatever carries the elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from tidegate.channel.elements import CheckpointBarrier, Element, EndOfPartition

Announced: TypeAlias = CheckpointBarrier | EndOfPartition
"""What a receiver may learn of before it has polled what lies in front of it (S3.7)."""
Announce: TypeAlias = Callable[[Announced], None]
"""Told that a barrier or the end has arrived in the queue; on any thread, must not block."""


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

    def overdraw(self, allowed: bool) -> None:
        """From now on the capacity is larger by the channel's overdraft, or no longer so. Only so that an emission ends
        which an unaligned barrier waits for (S3.7); what is overdrawn is bounded and paid back by consuming."""


class InputChannel(Protocol):
    """The receiving end. Called by the slot's loop alone; nothing here blocks.

    Not polling is what holds the sender back (S3.2): bytes count as consumed when `poll` returns them.
    """

    @property
    def queued_bytes(self) -> int:
        """Bytes of the record batches that have arrived and were not polled."""

    def poll(self) -> Element | None:
        """The next element, or None when none is there now."""

    def on_barrier_queued(self, announce: Announce) -> None:
        """Call `announce` for every checkpoint barrier, and for the end, once it is in the queue, in their order. It
        may be polled before that call has been looked at. Once, before anything arrives."""

    def queued_before(self, checkpoint_id: int) -> list[Element]:
        """What has arrived and lies in front of barrier `checkpoint_id`, else of the end of the partition, in order,
        without consuming it. One of the two has been announced and was not polled."""


def elements_before_barrier(checkpoint_id: int, elements: Iterable[Element]) -> list[Element]:
    """The elements up to barrier `checkpoint_id` or the end of the partition, whichever comes first."""
    front: list[Element] = []
    for element in elements:
        if isinstance(element, EndOfPartition):
            break
        if isinstance(element, CheckpointBarrier) and element.checkpoint_id == checkpoint_id:
            break
        front.append(element)
    return front
