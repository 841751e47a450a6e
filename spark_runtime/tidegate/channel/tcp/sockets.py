"""Create, connect, tune and authenticate the sockets of this package."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

from tidegate.channel.failures import HandshakeError, PeerLostError
from tidegate.channel.tcp.handshake import DiallerHandshake

HANDSHAKE_TIMEOUT_S = 5.0
"""A connection that is not authenticated after this time is closed, seconds."""
ATTEMPT_TIMEOUT_S = 2 * HANDSHAKE_TIMEOUT_S
"""Timeout of one attempt to connect and authenticate, seconds. Longer than the listener's own, which then ends it."""
FIRST_REDIAL_S = 0.05
"""Longest pause before the second attempt to connect, seconds. It doubles with each attempt."""
LONGEST_REDIAL_S = 1.0
"""Longest pause between two attempts to connect, seconds: a dropped process has some 30 attempts in 30 s."""
BACKLOG = 1_024
"""Connections that the kernel queues for a listener. In a large job, all slots connect at the same time."""
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
"""The loss of a silent peer's host is noticed after 10 + 4 x 5 s."""


def listen_on(host: str) -> socket.socket:
    """Return a non-blocking listener on a free port of `host` (address or name, IPv4 or IPv6).

    Raises:
        OSError: `host` is not an address of this machine.
    """
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def tune(connection: socket.socket) -> None:
    """Send data immediately, and detect dead hosts.

    Buffer sizes are left to the kernel: setting them ends its automatic tuning.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)  # not all of them exist on every system
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def dial(
    host: str,
    port: int,
    new_handshake: Callable[[], DiallerHandshake],
    timeout_s: float,
    who: str,
    pause: Callable[[float], None] = time.sleep,
) -> socket.socket:
    """Connect and authenticate; blocks up to `timeout_s`. Return a tuned non-blocking socket.

    Dials again after an attempt that was reset or was not answered: a listener that strangers flood with connections
    may drop one of this process. A refusal, and an address where nobody listens, end the call at once.

    Args:
        new_handshake: returns the handshake of one attempt.
        who: the expected listener, for errors: "slot 3", "the driver".
        pause: waits between two attempts; receives seconds.

    Raises:
        PeerLostError: there is no listener, or it is too slow.
        HandshakeError: one of the sides refused.
    """
    deadline = time.monotonic() + timeout_s
    longest_s = FIRST_REDIAL_S
    while True:
        try:
            return _dial_once(host, port, new_handshake(), min(deadline - time.monotonic(), ATTEMPT_TIMEOUT_S), who)
        except (HandshakeError, PeerLostError) as error:
            # Random, because many slots start, and are dropped, in the same moment.
            pause_s = random.uniform(longest_s / 2, longest_s)
            if not _may_pass(error) or time.monotonic() + pause_s >= deadline:
                raise
        pause(pause_s)
        longest_s = min(2 * longest_s, LONGEST_REDIAL_S)


def _may_pass(error: HandshakeError | PeerLostError) -> bool:
    """Return whether another attempt may succeed."""
    cause = error.__cause__
    if isinstance(cause, socket.gaierror):
        return cause.errno == socket.EAI_AGAIN
    # A refused connection: no process has this port any more. A clean end of the connection: the listener refused.
    return isinstance(cause, OSError) and not isinstance(cause, ConnectionRefusedError | HandshakeError | _RefusedError)


class _RefusedError(ConnectionError):
    """The listener ended the connection normally, without an answer."""


def _dial_once(host: str, port: int, handshake: DiallerHandshake, timeout_s: float, who: str) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    where = f"{who} at {host}:{port}"
    try:
        # A timeout of 0 would make the socket non-blocking, and a negative one is an error.
        connection = socket.create_connection((host, port), timeout=max(0.001, timeout_s))
    except OSError as error:
        raise PeerLostError(
            f"{who} cannot be reached",
            where=where,
            cause=str(error),
            remedy=f"Check the log of {who}, and that the network lets executors and driver reach each other",
        ) from error
    try:
        tune(connection)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.sendall(handshake.hello)
        while handshake.needed:
            data = _receive_exactly(connection, handshake.needed, deadline)
            answer = handshake.receive(data)
            connection.sendall(answer)
        connection.setblocking(False)
        return connection
    except HandshakeError as error:
        connection.close()
        raise HandshakeError(error.reason, where=where) from error
    except OSError as error:
        connection.close()
        raise HandshakeError(
            "the other process did not answer in time"
            if isinstance(error, TimeoutError)
            else "the other process refused the connection",
            where=where,
            remedy=f"Check the log of {who}: its process may have ended, or may belong to another run of the job",
        ) from error


def _receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(size - len(received))
        if not piece:
            raise _RefusedError("the other process closed the connection before it was authenticated")
        received += piece
    return received
