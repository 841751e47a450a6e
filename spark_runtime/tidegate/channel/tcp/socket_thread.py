"""One thread around one selector: the only place in a process that waits for sockets."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

OnReady = Callable[[int], None]
"""Called with the events of `selectors` that a socket is ready for."""
JOIN_TIMEOUT_S = 5.0
"""How long `stop` waits for the thread, seconds; its calls do not block."""


class SocketThread:
    """Runs calls, timers and socket callbacks one at a time on its own daemon thread.

    `call`, `start` and `stop` are safe from any thread. Call everything else only on this thread. Callbacks must not
    block.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        """Args: on_error: called with the error of a callback.

        Such an error is a bug: callbacks handle network errors.
        """
        self._on_error = on_error
        self._selector = selectors.DefaultSelector()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._selector.register(self._read_end, selectors.EVENT_READ, self._on_wake)
        self._poked = False
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._stopping = False
        self._pipe_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def call(self, todo: Callable[[], None]) -> None:
        """Run `todo` soon on the thread, in order of the calls. After `stop` it is not run."""
        self._calls.append(todo)
        self._wake()

    def call_later(self, delay_s: float, todo: Callable[[], None]) -> None:
        """Run `todo` after `delay_s`."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), todo))

    def watch(self, connection: socket.socket, events: int, on_ready: OnReady) -> None:
        """Watch for `events`. Replaces the events that are watched on this socket."""
        if self._is_watched(connection):
            self._selector.modify(connection, events, on_ready)
        else:
            self._selector.register(connection, events, on_ready)

    def unwatch(self, connection: socket.socket) -> None:
        """Stop watching `connection`. Call it before the connection is closed."""
        if self._is_watched(connection):
            self._selector.unregister(connection)

    def _is_watched(self, connection: socket.socket) -> bool:
        number = connection.fileno()
        return number >= 0 and number in self._selector.get_map()

    @property
    def is_current(self) -> bool:
        """True if the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Finish the calls made so far, then end. May be called twice. On this thread it does not wait."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive() and not self.is_current:
            self._thread.join(JOIN_TIMEOUT_S)
        if not self._thread.is_alive():
            self._release()

    def _release(self) -> None:
        with self._pipe_lock:
            if self._write_end >= 0:
                os.close(self._write_end)
                os.close(self._read_end)
                self._write_end = self._read_end = -1
                self._selector.close()

    def _wake(self) -> None:
        if not self._poked:  # one byte in the pipe wakes the thread for all calls queued so far
            self._poked = True
            with self._pipe_lock:  # `_release` may close the pipe at the same time
                if self._write_end >= 0:
                    os.write(self._write_end, b"\0")

    def _on_wake(self, _events: int) -> None:
        os.read(self._read_end, 64)
        # Before the queued calls are run: a call that is added from now on writes a byte again.
        self._poked = False

    def _run(self) -> None:
        while not (self._stopping and not self._calls):
            ready = self._selector.select(self._timeout_s())
            for key, events in ready:
                self._dispatch(key, events)
            while self._calls:
                self._guard(self._calls.popleft())
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._guard(heapq.heappop(self._timers)[2])
        self._release()

    def _dispatch(self, key: selectors.SelectorKey, events: int) -> None:
        """Call the callback that watches this socket now.

        An earlier callback of the round may have closed the socket.
        """
        current = self._selector.get_map().get(key.fd)
        if current is not None and current.fileobj is key.fileobj:
            self._guard(lambda: current.data(events))

    def _timeout_s(self) -> float | None:
        if self._calls or self._stopping:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _guard(self, todo: Callable[[], None]) -> None:
        try:
            todo()
        except Exception as error:
            self._on_error(error)
