"""The listening side: accept connections that prove to belong to this run, close and count all others.

Strangers may open any number of connections and send nothing. They cannot keep processes of the run out: a connection
is silent until it has sent a valid hello, which names the run. There are limits on silent connections of one address
and of all addresses. At a limit the oldest silent connection is dropped, with a reset. A process of the run dials again
after a reset (`sockets.dial`), so it costs the process some milliseconds if it was the one.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from tidegate.channel.failures import HandshakeError
from tidegate.channel.tcp.handshake import ListenerHandshake
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.sockets import HANDSHAKE_TIMEOUT_S, tune

MAX_PENDING_HANDSHAKES = 256
"""Most connections that are being authenticated at one time. Each holds a file descriptor, and a process often has only
1,024. While so many have sent a valid hello, more wait in the kernel's backlog."""
MAX_SILENT_PER_PEER = 64
"""Most connections of one peer address without a valid hello. More than the slots of one host that connect in the same
moment: a slot sends its hello at once."""
ACCEPT_PAUSE_S = 0.1
"""Pause of accepting connections after the system had no file descriptor left, seconds."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: `close` sends a reset. A refusal ends the connection normally, so the other process can
distinguish the two."""


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: on_authenticated: called on the thread with a tuned non-blocking socket and the slot of the peer.
        clock: steady time in seconds."""
        self._thread = thread
        self._listener = listener
        self._new_handshake = new_handshake
        self._on_authenticated = on_authenticated
        self._timeout_s = timeout_s
        self._clock = clock
        # In order of their start, so that the first is the oldest.
        self._pending: dict[socket.socket, _PendingHandshake] = {}
        self._silent: Counter[str] = Counter()
        self._sweeps = False
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
            self._close(connection)

    def _on_connection(self, _events: int) -> None:
        # All of them know the run, so that none is dropped for a newer one.
        if len(self._pending) >= MAX_PENDING_HANDSHAKES and not self._silent:
            self._thread.unwatch(self._listener)
            return
        try:
            connection, address = self._listener.accept()
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
        peer = str(address[0])
        self._make_room(peer)
        self._pending[connection] = _PendingHandshake(self._new_handshake(), peer, self._clock() + self._timeout_s)
        self._silent[peer] += 1
        self._thread.watch(connection, selectors.EVENT_READ, lambda _: self._advance(connection))
        self._expect_expiry()

    def _make_room(self, peer: str) -> None:
        """Drop a silent connection if one more of `peer` would exceed a limit."""
        if self._silent[peer] >= MAX_SILENT_PER_PEER:
            self._drop_oldest(peer)
        elif len(self._pending) >= MAX_PENDING_HANDSHAKES and self._silent:
            # The address with most of them: one connection of another address is more likely a process of the run.
            self._drop_oldest(max(self._silent, key=lambda address: self._silent[address]))

    def _drop_oldest(self, peer: str) -> None:
        victims = (c for c, pending in self._pending.items() if pending.is_silent and pending.peer == peer)
        for connection in list(islice(victims, 1)):
            self._drop(connection, "too many connections were silent at the same time")

    def _advance(self, connection: socket.socket) -> None:
        pending = self._pending[connection]
        was_silent = pending.is_silent
        try:
            done = pending.advance(connection)
        except BlockingIOError:
            return
        except HandshakeError as error:
            self.refused[error.reason] += 1
            self._close(connection)
            return
        except OSError:
            self._drop(connection, "the connection was lost before it was authenticated")
            return
        if was_silent and not pending.is_silent:
            self._count_silent_down(pending.peer)
        if done:
            self._forget(connection)
            tune(connection)
            self._on_authenticated(connection, pending.handshake.slot)

    def _expect_expiry(self) -> None:
        """Set the timer for the oldest connection, if none is set. One timer serves all of them."""
        if self._pending and not self._sweeps:
            oldest = next(iter(self._pending.values()))
            self._sweeps = True
            self._thread.call_later(max(0.0, oldest.deadline_s - self._clock()), self._sweep)

    def _sweep(self) -> None:
        self._sweeps = False
        now_s = self._clock()
        for connection in [c for c, pending in self._pending.items() if pending.deadline_s <= now_s]:
            self._drop(connection, "the other process did not answer in time")
        self._expect_expiry()

    def _drop(self, connection: socket.socket, reason: str) -> None:
        """Close with a reset: the other process may dial again."""
        self.refused[reason] += 1
        with suppress(OSError):  # a connection that is lost already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._thread.unwatch(connection)
        pending = self._pending.pop(connection)
        if pending.is_silent:
            self._count_silent_down(pending.peer)
        # Accepting may have paused because of MAX_PENDING_HANDSHAKES.
        self.open()

    def _count_silent_down(self, peer: str) -> None:
        self._silent[peer] -= 1
        if not self._silent[peer]:
            del self._silent[peer]


class _PendingHandshake:
    """A handshake, the received bytes of its current message, the peer's address, and the time when it expires."""

    def __init__(self, handshake: ListenerHandshake, peer: str, deadline_s: float) -> None:
        self.handshake = handshake
        self.peer = peer
        self.deadline_s = deadline_s
        self._received = b""

    @property
    def is_silent(self) -> bool:
        """True until the peer has sent a valid hello."""
        return not self.handshake.knows_run

    def advance(self, connection: socket.socket) -> bool:
        """Read available bytes, at most as many as the message needs. Return True when authenticated."""
        # Bytes after the handshake must stay in the socket for the connection's next reader.
        piece = connection.recv(self.handshake.needed - len(self._received))
        if not piece:
            raise ConnectionResetError("the connection was lost before it was authenticated")
        self._received += piece
        if len(self._received) == self.handshake.needed:
            message, self._received = self._received, b""
            answer = self.handshake.receive(message)
            # The answer is shorter than any send buffer, so that only a broken connection accepts a part of it.
            if connection.send(answer) != len(answer):
                raise ConnectionResetError("the connection was lost before it was authenticated")
        return self.handshake.needed == 0
