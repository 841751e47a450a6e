"""The data connection to one other slot: reads frames, holds the outbox, and notifies its owner."""

from __future__ import annotations

import logging
import selectors
import socket
from typing import Protocol

import pyarrow as pa

from tidegate.channel.failures import ChannelError, PeerLostError, ProtocolError
from tidegate.channel.tcp.outbox import Outbox
from tidegate.channel.tcp.shared_blocks import MappedBlocks, SharedBlocks
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.wire_format import (
    FLAG_SHARED,
    HEADER_BYTES,
    Header,
    Kind,
    accept_frame,
    close_frame,
    decode_offer,
    decode_place,
    offer_frame,
    unpack_header,
)

logger = logging.getLogger("tidegate.channel")

READ_BUDGET_BYTES = 16 * 2**20
"""Most bytes to read from one connection before the others get their turn."""
READ_AHEAD_BYTES = 64 * 1024
"""Bytes read beyond the rest of a payload in one system call. Small frames, such as a few rows and a watermark of each
channel, then arrive together. They are copied once more, which costs less than a system call for each."""


class LinkOwner(Protocol):
    """Callbacks of a link. Called on the I/O thread; must not block."""

    def on_frame(self, link: PeerLink, header: Header, payload: pa.Buffer) -> None:
        """Process a frame for a channel. Frames arrive in order.

        Raises:
            ChannelError: the frame is not allowed; ends the link.
        """

    def on_read(self, link: PeerLink) -> None:
        """Some frames of `link` have just been passed to `on_frame`."""

    def on_failure(self, error: ChannelError) -> None:
        """The link has failed and cannot be used any more."""


class PeerLink:
    """A link to one slot. Frames may be queued before it is connected, and are sent when it is.

    Attributes:
        slot: the slot at the other end.
        outbox: outbox of this connection; after a loss it drops frames.
        shared: memory for batches to this slot, once it has mapped it; else None.
    """

    def __init__(
        self,
        slot: int,
        own_slot: int,
        thread: SocketThread,
        owner: LinkOwner,
        blocks: SharedBlocks | None = None,
    ) -> None:
        """Args: blocks: the own slot's shared memory, which is offered to the other slot; None: there is none."""
        self.slot = slot
        self.shared: SharedBlocks | None = None
        self._blocks = blocks
        self._mapped: MappedBlocks | None = None
        self._own_slot = own_slot
        self._thread = thread
        self._owner = owner
        self._socket: socket.socket | None = None
        self._reads = False
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._part_of_header = b""
        self._frame: Header | None = None
        self._payload = pa.allocate_buffer(0)
        self._payload_view = memoryview(self._payload)
        self._payload_size = 0
        self._farewell_sent = False
        self._farewell_answered = False
        self._peer_has_ended = False
        self._is_closed = False
        self.outbox = Outbox(
            lambda: thread.call(self._watch), lambda error: thread.call(lambda: self._on_disconnect(error))
        )

    @property
    def is_connected(self) -> bool:
        """True once it has received a socket, even if that is closed since."""
        return self._socket is not None

    @property
    def peer_has_ended(self) -> bool:
        """True when the peer has sent CLOSE: nothing more comes from it, and only credit may be sent to it."""
        return self._peer_has_ended

    @property
    def is_flushed(self) -> bool:
        """True when everything put before `send_close` has arrived, or the peer has ended and needs nothing more."""
        return self._farewell_answered or self._peer_has_ended

    # ------------------------------------------------------------ on the I/O thread

    def attach(self, connection: socket.socket, reads: bool) -> None:
        """Use the authenticated socket.

        `reads`: read immediately; else the system buffers data until `start_reading`.
        """
        assert self._socket is None, f"slot {self.slot} is connected twice"
        self._socket = connection
        self._reads = reads
        self.outbox.attach(connection)
        if self._blocks is not None:
            self.outbox.put(offer_frame(self._blocks.offer))
        self._watch()

    def start_reading(self) -> None:
        """Start passing frames to the owner."""
        self._reads = True
        self._watch()

    def close(self) -> None:
        """Close the connection without notifying the owner. May be called twice."""
        self._is_closed = True
        if self._socket is not None:
            # In this order, because the kernel reuses the number of a closed socket: no thread may still use it.
            self._thread.unwatch(self._socket)
            self.outbox.detach()
            self._socket.close()

    def _watch(self) -> None:
        if self._socket is None or self._is_closed:
            return
        events = selectors.EVENT_READ if self._reads else 0
        if self.outbox.is_blocked:
            events |= selectors.EVENT_WRITE
        if events:
            self._thread.watch(self._socket, events, self._on_ready)
        else:
            self._thread.unwatch(self._socket)

    def _on_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.outbox.unblock()
            if not self.outbox.is_blocked:
                self._watch()
        if events & selectors.EVENT_READ and not self._is_closed:
            try:
                self._read()
            except OSError as error:
                self._on_disconnect(error)
            except ChannelError as error:
                self._fail(error)
            except Exception:
                # A bug: the socket thread passes it to the transport, which fails the run.
                self.close()
                raise
            finally:
                self._owner.on_read(self)

    def _on_disconnect(self, error: OSError) -> None:
        """Process the loss of the connection: expected after the peer has ended, else a failure."""
        if self._peer_has_ended:
            self.close()
        elif not self._is_closed:
            self._fail(
                PeerLostError(
                    f"slot {self.slot} was lost",
                    where=f"data connection of slot {self._own_slot}",
                    cause=str(error) or type(error).__name__,
                    remedy=f"Check the log of slot {self.slot} for the cause",
                )
            )

    def _fail(self, error: ChannelError) -> None:
        self.close()
        self._owner.on_failure(error)

    # ------------------------------------------------------------ reading

    def _read(self) -> None:
        """Read until no data is left. A large payload is read where it stays, what follows it into `_ahead`."""
        connection = self._socket
        assert connection is not None
        budget = READ_BUDGET_BYTES
        while budget > 0 and not self._is_closed:
            payload = self._payload_view[self._payload_size :]
            try:
                if self._frame is None:
                    size = connection.recv_into(self._ahead)
                else:
                    size = connection.recvmsg_into([payload, self._ahead])[0]
            except BlockingIOError:
                return
            if size == 0:
                raise ConnectionResetError("the other process closed the connection")
            budget -= size
            wanted = payload.nbytes + READ_AHEAD_BYTES
            self._take(size)
            # A short read means that the socket is empty. This saves the call that would raise BlockingIOError.
            if size < wanted:
                return

    def _take(self, size: int) -> None:
        """Account for `size` bytes read into the payload, then into `_ahead`."""
        if self._frame is not None:
            of_payload = min(size, self._frame.length - self._payload_size)
            self._payload_size += of_payload
            size -= of_payload
            if self._payload_size < self._frame.length:
                return
            frame, payload = self._frame, self._payload
            self._frame, self._payload_view, self._payload_size = None, memoryview(b""), 0
            self._finish_frame(frame, payload)
        if size:
            self._take_ahead(self._ahead[:size])

    def _take_ahead(self, data: memoryview) -> None:
        """Process frames that begin in `data`. The last one may be incomplete."""
        if self._part_of_header:
            data = memoryview(self._part_of_header + bytes(data))
            self._part_of_header = b""
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = unpack_header(data[at : at + HEADER_BYTES])
            at += HEADER_BYTES
            end = at + header.length
            if end > len(data):
                # A new buffer for each frame, because decoded batches remain views of it.
                self._payload = pa.allocate_buffer(header.length)
                self._payload_view = memoryview(self._payload).cast("B")
                self._payload_size = len(data) - at
                self._payload_view[: self._payload_size] = data[at:]
                self._frame = header
                return
            self._finish_frame(header, pa.py_buffer(bytes(data[at:end])))
            at = end
            if self._is_closed:
                return
        self._part_of_header = bytes(data[at:])

    def _finish_frame(self, header: Header, payload: pa.Buffer) -> None:
        if header.kind is Kind.CLOSE:
            self._peer_has_ended = True
            # Urgent: it confirms the other direction, and the peer's `flush` must not wait for frames that are queued
            # here.
            self.outbox.put_urgent(close_frame(Kind.CLOSE_ACK))
        elif header.kind is Kind.CLOSE_ACK:
            if not self._farewell_sent:
                raise ProtocolError(
                    "internal error: a slot confirms an end of records that was not sent (CLOSE_ACK without CLOSE)",
                    where=f"slot {self.slot}",
                )
            self._farewell_answered = True
        elif header.kind is Kind.OFFER:
            self._map(payload)
        elif header.kind is Kind.ACCEPT:
            self.shared = self._blocks
        elif header.flags & FLAG_SHARED:
            self._owner.on_frame(self, *self._found(header, payload))
        else:
            self._owner.on_frame(self, header, payload)

    def _map(self, payload: pa.Buffer) -> None:
        """Map the memory that the other slot offers. It cannot be mapped if the slot runs on another host."""
        try:
            self._mapped = MappedBlocks(decode_offer(payload))
        except (OSError, ValueError) as error:
            logger.debug("slots %d and %d share no memory: %s", self._own_slot, self.slot, error)
        else:
            self.outbox.put_urgent(accept_frame())

    def _found(self, header: Header, payload: pa.Buffer) -> tuple[Header, pa.Buffer]:
        """Return the frame as if the batch had been sent in it."""
        if self._mapped is None:
            raise ProtocolError(
                "internal error: a record batch is in shared memory that was not mapped",
                where=f"channel {header.channel_id} from slot {self.slot}",
            )
        view = self._mapped.view(decode_place(payload))
        return header._replace(flags=header.flags & ~FLAG_SHARED, length=view.size), view

    # ------------------------------------------------------------ any thread

    def send_close(self) -> None:
        """Send CLOSE after the last element. Call it once."""
        self._farewell_sent = True
        self.outbox.put(close_frame(Kind.CLOSE))
