"""Control messages on a non-blocking socket: length as u32, little-endian, then a JSON object of that many bytes.

`protocol_codec` defines the objects.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import Iterator

from tidegate.channel.control.protocol_codec import Message, message_document, message_of
from tidegate.channel.failures import ChannelError, PeerLostError, ProtocolError
from tidegate.jobs.json_documents import JsonDocumentError, parse_json

MAX_MESSAGE_BYTES = 64 * 2**20
"""Longest control message. It must hold all state handles and inline states of one subtask snapshot."""
MAX_QUEUED_BYTES = 256 * 2**20
"""Most bytes that wait for one connection. A peer that lets more accumulate counts as lost."""
READ_BYTES = 2**20
"""Most bytes to read before other connections get their turn."""
_LENGTH = struct.Struct("<I")


def encode_message(message: Message) -> bytes:
    """Return length and JSON of a message.

    Raises:
        ChannelError: it is longer than `MAX_MESSAGE_BYTES`.
        TypeError: it contains a value that JSON cannot represent.
    """
    body = json.dumps(message_document(message), separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ChannelError(
            f"a message between slot and driver is too long: {len(body):,} bytes",
            where=f"type {type(message).__name__}",
            cause=f"at most {MAX_MESSAGE_BYTES:,} bytes are allowed, including small states of a snapshot",
            remedy="Lower the option state_size_threshold, so that more states are written to files",
        )
    return _LENGTH.pack(len(body)) + body


class MessageConnection:
    """One authenticated socket. `queue` is safe from any thread, everything else only from its socket thread."""

    def __init__(self, connection: socket.socket) -> None:
        """Args: connection: a non-blocking socket."""
        self.connection = connection
        self._outgoing: deque[bytes] = deque()
        self._sent = 0
        self._incoming = bytearray()

    @property
    def has_outgoing(self) -> bool:
        """True while messages wait to be written."""
        return bool(self._outgoing)

    def queue(self, data: bytes) -> None:
        """Append an encoded message."""
        self._outgoing.append(data)

    def write(self) -> bool:
        """Write as much as the socket accepts. Return True when everything is written.

        Raises:
            OSError: the connection is lost.
            PeerLostError: the peer does not read.
        """
        while self._outgoing:
            data = self._outgoing[0]
            try:
                self._sent += self.connection.send(memoryview(data)[self._sent :])
            except BlockingIOError:
                # Checked only when the socket is full: a long queue that drains is no sign of a hung peer. The copy is
                # needed because other threads append, and a deque must not change during iteration.
                if sum(map(len, tuple(self._outgoing))) > MAX_QUEUED_BYTES:
                    raise PeerLostError(
                        "the process at the other end of the connection between driver and slot does not read: more "
                        f"than {MAX_QUEUED_BYTES:,} bytes wait to be sent",
                        remedy="Check the logs of the driver and the slot: one of them may hang",
                    ) from None
                return False
            if self._sent == len(data):
                self._sent = 0
                self._outgoing.popleft()
        return True

    def read(self) -> Iterator[Message]:
        """Yield the messages that have arrived completely.

        Raises:
            OSError: the connection is lost; ConnectionResetError also when it was closed.
            ProtocolError: the data is too long, or not a message.
        """
        try:
            piece = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not piece:
            raise ConnectionResetError("the other process closed the connection")
        self._incoming += piece
        start = 0
        try:
            while len(self._incoming) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._incoming, start)
                if length > MAX_MESSAGE_BYTES:
                    raise ProtocolError(
                        f"internal error: a message between driver and slot states a length of {length:,} bytes, more "
                        f"than {MAX_MESSAGE_BYTES:,}"
                    )
                end = start + _LENGTH.size + length
                if len(self._incoming) < end:
                    break
                body = bytes(self._incoming[start + _LENGTH.size : end])
                start = end
                yield _decode(body)
        finally:
            # Also when the caller stops early: a message must not be returned twice.
            del self._incoming[:start]


def _decode(body: bytes) -> Message:
    try:
        document = parse_json(body, max_bytes=MAX_MESSAGE_BYTES)
    except JsonDocumentError as error:
        raise ProtocolError(
            "internal error: a message between driver and slot cannot be read", cause=str(error)
        ) from error
    return message_of(document)
