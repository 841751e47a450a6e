"""The frames that wait to be written to one socket. The first free thread writes them."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

MAX_WRITE_BUFFERS = 128
"""Most buffers per system call. POSIX guarantees 16; Linux and macOS accept 1,024."""
MAX_WRITE_BYTES = 4 * 2**20
"""Bytes after which no more frames are added to a system call, so that urgent frames are sent soon."""


class Outbox:
    """Frames in order. Urgent frames (credits) go first, between two frames.

    `put` may be called from any thread. It tries to write immediately, without blocking, which saves the switch to the
    I/O thread. Only if the socket is full it calls `on_full`, and no thread writes until `unblock`. The queue is
    limited by the credits of the channels that use it.
    """

    def __init__(self, on_full: Callable[[], None], on_error: Callable[[OSError], None]) -> None:
        """Create an outbox.

        Args:
            on_full: the socket accepts no more; arrange a call of `unblock` when it does. Called on any thread.
            on_error: the connection is lost. Called on any thread, once.
        """
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
        """True if the socket was full at the last attempt."""
        return self._is_blocked

    def attach(self, connection: socket.socket) -> None:
        """Write to the non-blocking `connection` from now on, beginning with the frames that are already queued."""
        self._socket = connection
        self._write()

    def detach(self) -> None:
        """Stop writing and drop queued frames.

        When it returns, no other thread is writing, so that the socket may be closed.
        """
        self._socket = None
        with self._lock:  # waits for a thread that is writing
            self._frames.clear()
            self._urgent.clear()
            self._writing.clear()

    def put(self, *buffers: Any) -> None:
        """Append a frame, passed as buffers that must not change any more."""
        self._frames.append(buffers)
        self._write()

    def append(self, *buffers: Any) -> None:
        """Append a frame that the next call of `write`, or of any other method that writes, will write."""
        self._frames.append(buffers)

    def write(self) -> None:
        """Write the frames that were appended."""
        self._write()

    def put_urgent(self, frame: bytes) -> None:
        """Add a frame before all frames that are not being written."""
        self._urgent.append(frame)
        self._write()

    def unblock(self) -> None:
        """Continue writing, because the socket accepts more."""
        self._is_blocked = False
        self._write()

    def _write(self) -> None:
        # The holder of the lock checks the queues again after releasing it. So a thread that finds it held may return.
        while (self._frames or self._urgent or self._writing) and not self._is_blocked and self._socket is not None:
            if not self._lock.acquire(blocking=False):
                return
            try:
                self._write_some()
            finally:
                self._lock.release()

    def _write_some(self) -> None:
        connection = self._socket
        # Checked again under the lock: another thread may have blocked or lost the socket since.
        if connection is None or self._is_blocked:
            return
        if not self._writing:
            self._take_frames()
        if not self._writing:
            return
        try:
            sent = connection.sendmsg(self._writing)
        except BlockingIOError:
            # Set before `on_full`, whose work on the I/O thread reads it.
            self._is_blocked = True
            self._on_full()
        except OSError as error:
            # No thread writes after this, so that `on_error` is called once.
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
            # A frame is taken as a whole, so that no urgent frame comes between its buffers.
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
