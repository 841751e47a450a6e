"""Frames are read as they were sent, however the network divides their bytes (S3.1)."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import closing

import pyarrow as pa
import pytest

from tidegate.channel.elements import Watermark
from tidegate.channel.failures import ChannelError
from tidegate.channel.tcp.peer_link import READ_AHEAD_BYTES, PeerLink
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.wire_format import Header, Kind, decode_event, event_frame, pack_header

WAIT_S = 20.0


class Received:
    """Records the frames of a link, and its failure."""

    def __init__(self, expected: int) -> None:
        self.frames: list[tuple[Kind, int, bytes]] = []
        self.failure: ChannelError | None = None
        self.reads = 0
        self.complete = threading.Event()
        self._expected = expected

    def on_frame(self, link: PeerLink, header: Header, payload: pa.Buffer) -> None:
        assert payload.size == header.length
        self.frames.append((header.kind, header.sequence, payload.to_pybytes()))
        if len(self.frames) == self._expected:
            self.complete.set()

    def on_read(self, link: PeerLink) -> None:
        self.reads += 1

    def on_failure(self, error: ChannelError) -> None:
        self.failure = error
        self.complete.set()


def received(chunks: list[bytes], expected: int) -> Received:
    """Send the chunks one by one; return what a link has received."""
    owner = Received(expected)
    errors: list[BaseException] = []
    thread = SocketThread("link", errors.append)
    link = PeerLink(1, 0, thread, owner)
    mine, other = socket.socketpair()
    mine.setblocking(False)
    thread.start()
    with closing(other):
        thread.call(lambda: link.attach(mine, reads=True))
        for chunk in chunks:
            other.sendall(chunk)
        assert owner.complete.wait(WAIT_S)
        thread.call(link.close)
        thread.stop()
    assert not errors
    return owner


def frame(kind: Kind, sequence: int, payload: bytes) -> bytes:
    return pack_header(kind, 3, sequence, len(payload)) + payload


@pytest.mark.parametrize("seed", range(6))
def test_frames_of_all_sizes_arrive_however_their_bytes_are_divided(seed: int) -> None:
    """Empty, small, as large as the read-ahead and larger payloads, cut inside headers and payloads."""
    random_numbers = random.Random(seed)
    sizes = [0, 1, 8, 15, 16, 17, READ_AHEAD_BYTES - 17, READ_AHEAD_BYTES - 16, READ_AHEAD_BYTES, 300_000]
    sent = [
        (Kind.BATCH if size > 64 else Kind.END_OF_PARTITION, number, random_numbers.randbytes(size))
        for number, size in enumerate(random_numbers.choices(sizes, k=60))
    ]
    data = b"".join(frame(*each) for each in sent)
    cuts = sorted(random_numbers.randrange(len(data)) for _ in range(200))
    chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    owner = received(chunks, len(sent))
    assert owner.failure is None
    assert owner.frames == sent


def test_small_frames_that_arrive_together_are_read_together() -> None:
    """One system call reads a batch and the watermarks after it."""
    events = [event_frame(Watermark(number), 3, number) for number in range(1, 200)]
    owner = received([frame(Kind.BATCH, 0, b"x" * 1_000) + b"".join(events)], 200)
    times = [decode_event(Header(kind, 0, 3, at, len(data)), data) for kind, at, data in owner.frames[1:]]
    assert times == [Watermark(number) for number in range(1, 200)]
    assert owner.reads <= 2


def test_a_damaged_header_behind_good_frames_ends_the_link() -> None:
    owner = received([frame(Kind.BATCH, 0, b"x") + b"\xff" * 16], 2)
    assert [kind for kind, _, _ in owner.frames] == [Kind.BATCH]
    assert owner.failure is not None and "unknown kind" in str(owner.failure)
