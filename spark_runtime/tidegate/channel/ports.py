"""The interfaces of the two ends of a channel for a subtask, for any kind of channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias, runtime_checkable

from tidegate.channel.column_blocks import Block
from tidegate.channel.elements import CheckpointBarrier, Element, EndOfPartition

Announced: TypeAlias = CheckpointBarrier | EndOfPartition
"""Elements of which a receiver is notified before it has polled the elements queued before them (S3.7)."""
Announce: TypeAlias = Callable[[Announced], None]
"""Callback for a barrier or the end that has arrived in the queue. Called on any thread; must not block."""


class OutputChannel(Protocol):
    """The sending end. Only the slot's loop calls it; no call blocks.

    Elements arrive in the order in which they were sent, each exactly once, or the run fails (S3.1).
    """

    def has_capacity(self) -> bool:
        """Return whether another record batch may be sent.

        It may while fewer bytes than the channel's capacity are sent and not consumed. One batch may exceed the
        capacity, so that a batch of any size can pass.
        """

    def send(self, element: Element) -> None:
        """Send `element`. A record batch needs `has_capacity()`, else AssertionError; an event does not.

        The batch's buffers must not be changed afterwards. After a failure of the transport the element is dropped,
        because the run is over anyway.
        """

    def overdraw(self, allowed: bool) -> None:
        """Add the channel's overdraft to its capacity, or remove it.

        Use it only to end an emission for which an unaligned barrier waits (S3.7). The overdraft is limited, and
        consumption reduces it.
        """


@runtime_checkable
class BlockChannel(Protocol):
    """The sending end of a channel that can send a block of memory which the sender has filled. See `OutputChannel`."""

    def reserve(self, size_bytes: int) -> Block | None:
        """Return memory for the next batch; None: there is none, and the batch must be sent as a record batch.

        The sender must send each block that it reserves.
        """

    def send_block(self, block: Block) -> None:
        """Send the rows in a block that `reserve` returned, as `send` sends a batch."""


class InputChannel(Protocol):
    """The receiving end. Only the slot's loop calls it; no call blocks.

    A receiver that does not poll holds the sender back (S3.2): bytes count as consumed when `poll` returns them.
    """

    @property
    def queued_bytes(self) -> int:
        """Bytes of the record batches that have arrived and are not polled."""

    def poll(self) -> Element | None:
        """Return the next element, or None if there is none now."""

    def next_batch_bytes(self) -> int:
        """Return the bytes of the next element if it is a record batch that `poll` would return now; else 0."""

    def on_barrier_queued(self, announce: Announce) -> None:
        """Call `announce` for every checkpoint barrier and for the end, in order, once they are in the queue.

        The element may be polled before the receiver has processed the call. Register once, before anything arrives.
        """

    def queued_before(self, checkpoint_id: int) -> list[Element]:
        """Return the queued elements before barrier `checkpoint_id`, or else before the end of the partition, in order.

        Nothing is consumed. The barrier or the end must have been announced, and not yet polled.
        """


def elements_before_barrier(checkpoint_id: int, elements: Iterable[Element]) -> list[Element]:
    """Return the elements before barrier `checkpoint_id` or the end of the partition, whichever comes first."""
    front: list[Element] = []
    for element in elements:
        if isinstance(element, EndOfPartition):
            break
        # Barriers of other checkpoints before it are skipped by the capture, and do not end the search.
        if isinstance(element, CheckpointBarrier) and element.checkpoint_id == checkpoint_id:
            break
        front.append(element)
    return front
