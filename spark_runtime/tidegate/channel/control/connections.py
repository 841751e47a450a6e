"""Control connections: every slot connects to the driver, and both exchange the messages of `protocol`.

Each side is notified once when the other is lost. The callers decide whether that is a failure.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidegate.channel.control.message_framing import MessageConnection, encode_message
from tidegate.channel.control.protocol import DriverMessage, SlotMessage
from tidegate.channel.tcp.acceptor import Acceptor
from tidegate.channel.tcp.handshake import DRIVER, Credentials, DiallerHandshake, ListenerHandshake, Role
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.sockets import dial, listen_on
from tidegate.errors import TidegateError

logger = logging.getLogger("tidegate.channel")

DIAL_TIMEOUT_S = 30.0
"""Time in which a slot must reach the driver and be authenticated, seconds."""
CLOSE_TIMEOUT_S = 1.0
"""Time in which `close` sends queued messages, seconds."""
USER_TIMEOUT_MS = 60_000
"""Time without acknowledgement of sent bytes after which a control connection is lost, milliseconds."""


class _ControlEndpoint:
    """One authenticated control connection on a socket thread; both sides use this class.

    Calls `on_message` for each message, then `on_lost` once, but never after `shut`; both on the thread.
    """

    def __init__(
        self,
        thread: SocketThread,
        connection: socket.socket,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # only on Linux
        # The kernel sends no keepalive probes while sent bytes are unacknowledged. This option limits that time too.
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, USER_TIMEOUT_MS)
        self._thread = thread
        self._messages = MessageConnection(connection)
        self._on_message = on_message
        self._on_lost = on_lost
        self._drained = threading.Condition()
        self._is_open = True

    def open(self) -> None:
        """Start reading. Call it on the thread."""
        self._watch(selectors.EVENT_READ)

    def send(self, data: bytes) -> None:
        """Queue an encoded message. Safe from any thread; does not block. After a loss the message is dropped."""
        if self._is_open:
            self._messages.queue(data)
            self._thread.call(self._write)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the operating system has accepted all sent messages.

        Return False on timeout or a lost connection.
        """
        # Only this thread writes after the socket was full, so that waiting for it here would never end.
        if self._thread.is_current:
            self._write()
            return not self._messages.has_outgoing
        with self._drained:
            self._drained.wait_for(lambda: not self._is_open or not self._messages.has_outgoing, timeout_s)
            return not self._messages.has_outgoing

    def shut(self) -> None:
        """Close without a call of `on_lost`. Call it on the thread."""
        if self._is_open:
            self._is_open = False
            self._thread.unwatch(self._messages.connection)
            self._messages.connection.close()
            with self._drained:
                self._drained.notify_all()

    def _watch(self, events: int) -> None:
        self._thread.watch(self._messages.connection, events, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._read()
        if events & selectors.EVENT_WRITE:
            self._write()

    def _read(self) -> None:
        try:
            for message in self._messages.read():
                self._on_message(message)
        except (OSError, TidegateError) as error:
            self._on_disconnect(error)
        except Exception as error:
            # A message that disappears without notice could make the run hang, so the connection ends too.
            logger.exception(
                "internal error: a message between driver and slot could not be processed; the run fails, and restarts"
            )
            self._on_disconnect(error)

    def _write(self) -> None:
        if not self._is_open:
            return
        try:
            done = self._messages.write()
        except (OSError, TidegateError) as error:
            self._on_disconnect(error)
            return
        self._watch(selectors.EVENT_READ if done else selectors.EVENT_READ | selectors.EVENT_WRITE)
        if done:
            with self._drained:
                self._drained.notify_all()

    def _on_disconnect(self, error: BaseException) -> None:
        if self._is_open:
            self.shut()
            self._on_lost(str(error) or type(error).__name__)


class ControlServer:
    """The driver's side. One thread serves all slots.

    `on_message(slot, message)` and `on_lost(slot, reason)` are called on that thread and must not block. They are
    called in order: all messages of a slot, then its loss, once. A second connection for a slot number is refused, even
    after a loss, because a lost slot ends its run.
    """

    def __init__(
        self,
        secret: bytes,
        generation: int,
        run_id: str,
        on_message: Callable[[int, SlotMessage], None],
        on_lost: Callable[[int, str], None],
    ) -> None:
        self._credentials = Credentials(Role.CONTROL, generation, run_id, secret)
        self._on_message = on_message
        self._on_lost = on_lost
        self._ends: dict[int, _ControlEndpoint] = {}
        self._acceptor: Acceptor | None = None
        self._thread = SocketThread("tidegate-control", on_error=_log_error)
        self._is_closed = False

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of connections that were closed before authentication, by reason."""
        return dict(self._acceptor.refused) if self._acceptor is not None else {}

    def listen(self, host: str) -> tuple[str, int]:
        """Listen on a free port of `host` and start the thread. Return the address to connect to. Call it once.

        Raises:
            OSError: `host` is not an address of this machine.
        """
        assert self._acceptor is None, "listen is called once"
        listener = listen_on(host)
        self._acceptor = Acceptor(self._thread, listener, self._new_handshake, self._on_authenticated)
        self._thread.start()
        self._thread.call(self._acceptor.open)
        return host, listener.getsockname()[1]

    def _new_handshake(self) -> ListenerHandshake:
        return ListenerHandshake(self._credentials, DRIVER, self._admit)

    def _admit(self, slot: int) -> str | None:
        return "the slot is connected already" if slot in self._ends else None

    def _on_authenticated(self, connection: socket.socket, slot: int) -> None:
        end = _ControlEndpoint(
            self._thread,
            connection,
            lambda message: self._on_message(slot, message),
            lambda reason: self._on_lost(slot, reason),
        )
        self._ends[slot] = end
        end.open()

    def send(self, slot: int, message: DriverMessage) -> None:
        """Send to one slot. Safe from any thread; does not block. Messages to lost or unknown slots are dropped.

        Raises:
            ChannelError: the message is too long.
        """
        end = self._ends.get(slot)
        if end is not None:
            end.send(encode_message(message))

    def broadcast(self, message: DriverMessage) -> None:
        """Send to every connected slot."""
        data = encode_message(message)
        for end in tuple(self._ends.values()):
            end.send(data)

    def close(self) -> None:
        """Send queued messages for up to CLOSE_TIMEOUT_S, then close everything without `on_lost`.

        May be called twice.
        """
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for end in tuple(self._ends.values()):
            end.flush(max(0.0, deadline - time.monotonic()))
        self._thread.call(self._shut_all)
        self._thread.stop()

    def _shut_all(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for end in self._ends.values():
            end.shut()


class ControlClient:
    """A slot's side. The constructor connects to the driver and blocks until both are authenticated.

    `on_message(message)` and `on_lost(reason)` are called on the client's own thread, in order, and must not block;
    `on_lost` once, and not after `close`.

    Raises:
        PeerLostError: the driver cannot be reached.
        HandshakeError: the driver belongs to another run or generation, or this slot is already connected.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        generation: int,
        run_id: str,
        slot: int,
        on_message: Callable[[DriverMessage], None],
        on_lost: Callable[[str], None],
        timeout_s: float = DIAL_TIMEOUT_S,
    ) -> None:
        credentials = Credentials(Role.CONTROL, generation, run_id, secret)
        connection = dial(host, port, partial(DiallerHandshake, credentials, slot, DRIVER), timeout_s, "the driver")
        self._thread = SocketThread("tidegate-control", on_error=_log_error)
        self._end = _ControlEndpoint(self._thread, connection, on_message, on_lost)
        self._thread.start()
        self._thread.call(self._end.open)

    def send(self, message: SlotMessage) -> None:
        """Send to the driver. Safe from any thread; does not block. After a loss the message is dropped.

        Raises:
            ChannelError: the message is too long.
        """
        self._end.send(encode_message(message))

    def flush(self, timeout_s: float) -> bool:
        """Wait until the operating system has accepted all sent messages.

        Return False on timeout or a lost connection.
        """
        return self._end.flush(timeout_s)

    def close(self) -> None:
        """Send queued messages for up to CLOSE_TIMEOUT_S, then close. May be called twice."""
        self._end.flush(CLOSE_TIMEOUT_S)
        self._thread.call(self._end.shut)
        self._thread.stop()


def _log_error(error: BaseException) -> None:
    logger.error(
        "internal error: an event of the connection between driver and slot could not be processed", exc_info=error
    )
