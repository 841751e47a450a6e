"""The listening side: accept connections that prove to belong to this run, close and count all others."""

from __future__ import annotations

import selectors
import socket
from collections import Counter
from collections.abc import Callable

from tidegate.channel.failures import HandshakeError
from tidegate.channel.tcp.handshake import ListenerHandshake
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.sockets import HANDSHAKE_TIMEOUT_S, tune

MAX_PENDING_HANDSHAKES = 256
"""Most connections that are being authenticated at one time. More wait in the kernel's backlog."""
ACCEPT_PAUSE_S = 0.1
"""Pause of accepting connections after the system had no file descriptor left, seconds."""


class Acceptor:
    """Serves one listener on a socket thread. A handshake never blocks that thread.

    Attributes:
        refused: number of connections that were closed before authentication, by reason.
    """

    def __init__(
        self,
        thread: SocketThread,
        listener: socket.socket,
        new_handshake: Callable[[], ListenerHandshake],
        on_authenticated: Callable[[socket.socket, int], None],
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """Args: on_authenticated: called on the thread with a tuned non-blocking socket and the slot of the peer."""
        self._thread = thread
        self._listener = listener
        self._new_handshake = new_handshake
        self._on_authenticated = on_authenticated
        self._timeout_s = timeout_s
        self._pending: dict[socket.socket, _PendingHandshake] = {}
        self._closed = False
        self.refused: Counter[str] = Counter()

    def open(self) -> None:
        """Start accepting, also after a pause. Call it on the thread."""
        if not self._closed:
            self._thread.watch(self._listener, selectors.EVENT_READ, self._on_connection)

    def close(self) -> None:
        """Close the listener and all connections that are not authenticated. Call it on the thread."""
        self._closed = True
        self._thread.unwatch(self._listener)
        self._listener.close()
        for connection in list(self._pending):
            self._drop(connection)

    def _on_connection(self, _events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        # The peer closed its connection before it was accepted here.
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            self.refused["the process has no free file descriptor"] += 1
            # The listener stays readable, so that the selector would report it immediately in every round.
            self._thread.unwatch(self._listener)
            self._thread.call_later(ACCEPT_PAUSE_S, self.open)
            return
        connection.setblocking(False)
        self._pending[connection] = _PendingHandshake(self._new_handshake())
        self._thread.watch(connection, selectors.EVENT_READ, lambda _: self._advance(connection))
        self._thread.call_later(self._timeout_s, lambda: self._expire(connection))
        if len(self._pending) >= MAX_PENDING_HANDSHAKES:
            self._thread.unwatch(self._listener)

    def _advance(self, connection: socket.socket) -> None:
        pending = self._pending[connection]
        try:
            done = pending.advance(connection)
        except BlockingIOError:
            return
        except HandshakeError as error:
            self._refuse(connection, error.reason)
            return
        except OSError:
            self._refuse(connection, "the connection was lost before it was authenticated")
            return
        if done:
            self._forget(connection)
            tune(connection)
            self._on_authenticated(connection, pending.handshake.slot)

    def _expire(self, connection: socket.socket) -> None:
        if connection in self._pending:
            self._refuse(connection, "the other process did not answer in time")

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        self.refused[reason] += 1
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._thread.unwatch(connection)
        del self._pending[connection]
        # Accepting may have paused because of MAX_PENDING_HANDSHAKES.
        self.open()


class _PendingHandshake:
    """A handshake and the received bytes of its current message."""

    def __init__(self, handshake: ListenerHandshake) -> None:
        self.handshake = handshake
        self._received = b""

    def advance(self, connection: socket.socket) -> bool:
        """Read available bytes, at most as many as the message needs. Return True when authenticated."""
        # Bytes after the handshake must stay in the socket for the connection's next reader.
        piece = connection.recv(self.handshake.needed - len(self._received))
        if not piece:
            raise HandshakeError("the connection was lost before it was authenticated")
        self._received += piece
        if len(self._received) == self.handshake.needed:
            message, self._received = self._received, b""
            answer = self.handshake.receive(message)
            # The answer is shorter than any send buffer, so that only a broken connection accepts a part of it.
            if connection.send(answer) != len(answer):
                raise HandshakeError("the connection was lost before it was authenticated")
        return self.handshake.needed == 0
