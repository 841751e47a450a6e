"""What waits to be written to one socket, and the writing, by whichever thread comes first."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

MAX_WRITE_BUFFERS = 128
"""Buffers given to the system in one call; POSIX promises 16, Linux and macOS take 1,024."""
MAX_WRITE_BYTES = 4 * 2**20
"""No more frames are added to a call beyond this many bytes, so that urgent ones get in between soon."""


class Outbox:
    """Frames in order; urgent ones (credits) go first, between two frames.

    `put` may be called from any thread; it tries to write at once, without blocking, which saves the hop to the I/O
    thread. Only when the socket is full does it ask for `on_full`, and nobody writes until `unblock`. What is queued is
    bounded by the credits of the channels that use it.
    """

    def __init__(self, on_full: Callable[[], None], on_error: Callable[[OSError], None]) -> None:
        """Args: on_full: the socket takes no more; arrange for `unblock` to be called when it does. Any thread.
        on_error: the connection is lost. Any thread, once."""
        self._on_full = on_full
        self._on_error = on_error
        self._socket: socket.socket | None = None
        self._is_blocked = False
        self._frames: deque[Sequence[Any]] = deque()
        self._urgent: deque[bytes] = deque()
        self._writing: list[memoryview] = []
        self._lock = threading.Lock()

    @property
    def is_blocked(self) -> bool:
        """The socket was full when last tried."""
        return self._is_blocked

    def attach(self, connection: socket.socket) -> None:
        """Write to `connection`, non-blocking, from now on; what was put before goes out."""
        self._socket = connection
        self._write()

    def detach(self) -> None:
        """Write no more, drop what waits. Returns when no other thread is writing: the socket may then be closed."""
        self._socket = None
        with self._lock:
            self._frames.clear()
            self._urgent.clear()
            self._writing.clear()

    def put(self, *buffers: Any) -> None:
        """Append a frame, given as buffers that must not change any more."""
        self._frames.append(buffers)
        self._write()

    def put_urgent(self, frame: bytes) -> None:
        """Put a frame in front of all that are not being written."""
        self._urgent.append(frame)
        self._write()

    def unblock(self) -> None:
        """The socket takes more."""
        self._is_blocked = False
        self._write()

    def _write(self) -> None:
        # Whoever holds the lock looks at the queues again after releasing it; so one who finds it held may go.
        while (self._frames or self._urgent or self._writing) and not self._is_blocked and self._socket is not None:
            if not self._lock.acquire(blocking=False):
                return
            try:
                self._write_some()
            finally:
                self._lock.release()

    def _write_some(self) -> None:
        connection = self._socket
        if connection is None or self._is_blocked:
            return
        if not self._writing:
            self._take_frames()
        if not self._writing:
            return
        try:
            sent = connection.sendmsg(self._writing)
        except BlockingIOError:
            self._is_blocked = True
            self._on_full()
        except OSError as error:
            self._socket = None
            self._on_error(error)
        else:
            self._writing = _drop_prefix(self._writing, sent)

    def _take_frames(self) -> None:
        size = 0
        taken = self._writing
        while len(taken) < MAX_WRITE_BUFFERS and size < MAX_WRITE_BYTES:
            if self._urgent:
                frame: Sequence[Any] = (self._urgent.popleft(),)
            elif self._frames:
                frame = self._frames.popleft()
            else:
                return
            for buffer in frame:
                view = memoryview(buffer)
                taken.append(view)
                size += view.nbytes


def _drop_prefix(buffers: list[memoryview], size_bytes: int) -> list[memoryview]:
    for number, view in enumerate(buffers):
        if size_bytes < view.nbytes:
            return [view[size_bytes:], *buffers[number + 1 :]]
        size_bytes -= view.nbytes
    return []
