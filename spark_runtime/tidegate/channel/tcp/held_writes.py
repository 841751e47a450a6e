"""Small frames that a step of the slot's loop has sent, until they are written together."""

from __future__ import annotations

from typing import Any

from tidegate.channel.tcp.outbox import Outbox

HELD_BYTES = 16 * 1024
"""Larger frames are written at once, so that their receiver begins early."""


class HeldWrites:
    """Writes the small frames of one step in one system call per connection.

    A source sends a batch, and then the watermark that the batch advanced. Written one by one, each costs a system call
    and wakes the receiver. Only the slot's loop uses it. It never waits for more frames: the loop calls `write` after
    every step.
    """

    def __init__(self) -> None:
        self._holds = False
        self._outboxes: dict[int, Outbox] = {}

    def hold(self) -> None:
        """Hold small frames from now on. The caller promises to call `write` after every step."""
        self._holds = True

    def put(self, outbox: Outbox, *buffers: Any, size_bytes: int) -> None:
        """Append a frame to `outbox`. Frames of one outbox keep their order."""
        if not self._holds or size_bytes > HELD_BYTES:
            outbox.put(*buffers)
            return
        outbox.append(*buffers)
        self._outboxes[id(outbox)] = outbox

    def write(self) -> None:
        """Write all frames that are held."""
        if self._outboxes:
            for outbox in self._outboxes.values():
                outbox.write()
            self._outboxes.clear()
