"""Frames that a step of the loop has sent: written together, in order, and never kept longer than the step (S3.1)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tidegate.channel.tcp.held_writes import HELD_BYTES, HeldWrites
from tidegate.channel.tcp.outbox import Outbox


class Connection:
    """An outbox and the other end of its socket."""

    def __init__(self) -> None:
        self._mine, self._theirs = socket.socketpair()
        self._mine.setblocking(False)
        self._theirs.setblocking(False)
        self.outbox = Outbox(lambda: None, lambda error: None)
        self.outbox.attach(self._mine)

    def arrived(self) -> bytes:
        try:
            return self._theirs.recv(1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self._mine.close()
        self._theirs.close()


@pytest.fixture
def two() -> Iterator[list[Connection]]:
    connections = [Connection(), Connection()]
    yield connections
    for connection in connections:
        connection.close()


def test_small_frames_of_a_step_are_written_together_in_order(two: list[Connection]) -> None:
    writes = HeldWrites()
    writes.hold()
    for frame in (b"batch ", b"watermark "):
        for connection in two:
            writes.put(connection.outbox, frame, size_bytes=len(frame))
    assert [connection.arrived() for connection in two] == [b"", b""]
    writes.write()
    assert [connection.arrived() for connection in two] == [b"batch watermark "] * 2
    writes.put(two[0].outbox, b"next", size_bytes=4)
    writes.write()
    assert [connection.arrived() for connection in two] == [b"next", b""]


def test_a_large_frame_is_written_at_once_with_the_frames_before_it(two: list[Connection]) -> None:
    writes = HeldWrites()
    writes.hold()
    writes.put(two[0].outbox, b"small ", size_bytes=6)
    writes.put(two[0].outbox, b"header ", b"large", size_bytes=HELD_BYTES + 1)
    assert two[0].arrived() == b"small header large"
    writes.write()
    assert two[0].arrived() == b""


def test_without_a_loop_that_promises_to_write_nothing_is_held(two: list[Connection]) -> None:
    HeldWrites().put(two[0].outbox, b"event", size_bytes=0)
    assert two[0].arrived() == b"event"


def test_any_other_frame_of_the_connection_takes_the_held_frames_along(two: list[Connection]) -> None:
    """The close frame of a slot that has ended, and credits, do not wait for a step."""
    writes = HeldWrites()
    writes.hold()
    writes.put(two[0].outbox, b"end ", size_bytes=0)
    two[0].outbox.put(b"close")
    assert two[0].arrived() == b"end close"
    writes.write()
    assert two[0].arrived() == b""
