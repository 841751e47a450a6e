"""Channels between slots: one TCP connection per pair of slots, many channels on each, one I/O thread (design, "Data").

The slot's loop uses only deques and counters, and writes to a socket only if that does not block. In each pair of slots
the lower number connects to the higher. Every process that connects must prove that it belongs to this run
(`handshake`).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

from tidegate.channel.column_blocks import Block
from tidegate.channel.elements import CheckpointBarrier, Element, EndOfPartition
from tidegate.channel.failures import ChannelError, PeerLostError, ProtocolError
from tidegate.channel.ports import Announce, InputChannel, OutputChannel, elements_before_barrier
from tidegate.channel.tcp.acceptor import Acceptor
from tidegate.channel.tcp.credit import ReceiverCredit, SenderCredit
from tidegate.channel.tcp.handshake import Credentials, DiallerHandshake, ListenerHandshake, Role
from tidegate.channel.tcp.held_writes import HeldWrites
from tidegate.channel.tcp.peer_link import PeerLink
from tidegate.channel.tcp.shared_blocks import SHARED_FROM_BYTES, SharedBlocks
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.sockets import dial, listen_on
from tidegate.channel.tcp.wire_format import (
    FLAG_BLOCK,
    MAX_FRAME_BYTES,
    SEQUENCES,
    BatchDecoder,
    Header,
    Kind,
    credit_frame,
    decode_credit,
    decode_event,
    encode_batch,
    event_frame,
    pack_header,
    shared_frame,
)

logger = logging.getLogger("tidegate.channel")

_ANNOUNCED_EVENTS = (Kind.BARRIER, Kind.END_OF_PARTITION)
FLUSH_TIMEOUT_S = 30.0
"""Longest wait of `flush` for all other slots, seconds. Their I/O threads answer, not their loops."""


class TcpOutputChannel:
    """OutputChannel to a subtask of another slot."""

    def __init__(
        self,
        channel_id: int,
        link: PeerLink,
        writes: HeldWrites,
        capacity_bytes: int,
        overdraft_bytes: int = 0,
    ) -> None:
        self.channel_id = channel_id
        self.link = link
        self._writes = writes
        self.credit = SenderCredit(capacity_bytes, overdraft_bytes)
        self._sequence = 0
        # Bound directly to the account, without a call between, because the loop asks before every element.
        self.has_capacity = self.credit.has_capacity
        self.overdraw = self.credit.overdraw

    @property
    def outstanding_bytes(self) -> int:
        """Payload bytes that are sent and not known to be consumed: at most capacity, overdraft and one batch."""
        return self.credit.outstanding_bytes

    def send(self, element: Element) -> None:
        """Serialise and send an element.

        Raises:
            ChannelError: the batch is too large, or the receiving slot has ended.
            DataError: a row is too large.
        """
        self._require_peer()
        sequence = self._sequence
        if isinstance(element, pa.RecordBatch):
            flags, payload = encode_batch(element)
            self.credit.sent(payload.size)
            shared = self.link.shared
            place = shared.store(payload) if shared is not None and payload.size >= SHARED_FROM_BYTES else None
            if place is not None:
                frame = shared_frame(place, flags, self.channel_id, sequence)
                self._writes.put(self.link.outbox, frame, size_bytes=0)
            else:
                header = pack_header(Kind.BATCH, self.channel_id, sequence, payload.size, flags)
                self._writes.put(self.link.outbox, header, payload, size_bytes=payload.size)
        else:
            self._writes.put(self.link.outbox, event_frame(element, self.channel_id, sequence), size_bytes=0)
        self._sequence = (sequence + 1) % SEQUENCES

    def _require_peer(self) -> None:
        if self.link.peer_has_ended:
            raise ProtocolError(
                f"internal error: records were sent to slot {self.link.slot}, which has ended",
                where=f"channel {self.channel_id}",
            )

    def reserve(self, size_bytes: int) -> Block | None:
        """See `BlockChannel.reserve`: memory that the receiver has mapped."""
        shared = self.link.shared
        if shared is None or not SHARED_FROM_BYTES <= size_bytes <= MAX_FRAME_BYTES:
            return None
        place = shared.reserve(size_bytes)
        return None if place is None else Block(shared.memory(place), place)

    def send_block(self, block: Block) -> None:
        """See `BlockChannel.send_block`. Raises ChannelError as `send` does."""
        self._require_peer()
        self.credit.sent(len(block.memory))
        frame = shared_frame(block.place, FLAG_BLOCK, self.channel_id, self._sequence)
        self._writes.put(self.link.outbox, frame, size_bytes=0)
        self._sequence = (self._sequence + 1) % SEQUENCES


class TcpInputChannel:
    """InputChannel from a subtask of another slot."""

    def __init__(self, channel_id: int, schema: pa.Schema, capacity_bytes: int, overdraft_bytes: int = 0) -> None:
        self.channel_id = channel_id
        self._decoder = BatchDecoder(schema)
        self._credit = ReceiverCredit(capacity_bytes, overdraft_bytes)
        self._announce: Announce | None = None
        self._queue: deque[tuple[Header, pa.Buffer]] = deque()
        self._link: PeerLink | None = None
        self._sequence = 0

    @property
    def queued_bytes(self) -> int:
        """Payload bytes of batches that have arrived and are not polled."""
        return self._credit.queued_bytes

    def poll(self) -> Element | None:
        """Return the next element, or None. Grants credit for it.

        Raises:
            ProtocolError: the element cannot be read.
        """
        if not self._queue:
            return None
        header, payload = self._queue.popleft()
        if header.kind is not Kind.BATCH:
            return decode_event(header, payload)
        link = self._link
        assert link is not None
        consumed_bytes = self._credit.consumed(header.length)
        # A peer that has ended sends no more batches, and needs no credit.
        if consumed_bytes and not link.peer_has_ended:
            link.outbox.put_urgent(credit_frame(self.channel_id, consumed_bytes))
        return self._decoder.decode(header.flags, payload)

    def next_batch_bytes(self) -> int:
        """See `InputChannel.next_batch_bytes`."""
        if not self._queue:
            return 0
        header, _ = self._queue[0]
        return header.length if header.kind is Kind.BATCH else 0

    def on_barrier_queued(self, announce: Announce) -> None:
        """See `InputChannel.on_barrier_queued`. `announce` is called on the I/O thread."""
        self._announce = announce

    def queued_before(self, checkpoint_id: int) -> list[Element]:
        """See `InputChannel.queued_before`. Batches are views of the received bytes.

        Raises:
            ProtocolError: an element cannot be read.
        """
        # A copy: the I/O thread appends while elements are decoded, and a deque must not change during iteration.
        return elements_before_barrier(checkpoint_id, map(self._decode, self._queue.copy()))

    def _decode(self, frame: tuple[Header, pa.Buffer]) -> Element:
        header, payload = frame
        if header.kind is Kind.BATCH:
            return self._decoder.decode(header.flags, payload)
        return decode_event(header, payload)

    def take(self, link: PeerLink, header: Header, payload: pa.Buffer) -> None:
        """Queue an element that has arrived. Call it on the I/O thread.

        Raises:
            ProtocolError: an element before it is missing, it exceeds the credit, or another slot sent the elements
                before it.
        """
        if self._link is None:
            self._link = link
        elif self._link is not link:
            raise ProtocolError(
                f"internal error: slots {self._link.slot} and {link.slot} both send to one channel",
                where=f"channel {self.channel_id}",
            )
        if header.sequence != self._sequence:
            raise ProtocolError(
                f"internal error: message {header.sequence} of a channel arrived instead of message {self._sequence}",
                where=f"channel {self.channel_id} from slot {link.slot}",
                cause="a message was lost, or arrived twice",
            )
        self._sequence = (self._sequence + 1) % SEQUENCES
        if header.kind is Kind.BATCH:
            self._credit.arrived(header.length)
        # Queued before it is announced: the loop may call `queued_before` as soon as it knows of the barrier.
        self._queue.append((header, payload))
        if self._announce is not None and header.kind in _ANNOUNCED_EVENTS:
            event = decode_event(header, payload)
            assert isinstance(event, CheckpointBarrier | EndOfPartition), event
            self._announce(event)


class DataTransport:
    """All connections of one slot to the others.

    Call order, from one thread: `listen`; `open_input` and `open_output` for every channel; when every slot has done so
    `connect`, `start`; when this slot has sent its last element `flush`; `close` always. Nothing arrives on an input
    before `start`. A transport is not restarted: a new run has a new one.

    Attributes:
        writes: frames of the outputs that are not written yet.
    """

    def __init__(
        self,
        slot: int,
        secret: bytes,
        generation: int,
        run_id: str,
        capacity_bytes: int,
        wake: Callable[[], None],
        overdraft_bytes: int = 0,
        *,
        shares_memory: bool = True,
    ) -> None:
        """Create the transport.

        Args:
            secret: secret of this run.
            capacity_bytes, overdraft_bytes: limits of each channel, the same in every slot.
            wake: called on the I/O thread when an input has elements, an output may have capacity, or there is a
                failure. Must not block.
            shares_memory: send batches to slots of the same host through shared memory, where the system has it.
        """
        self.writes = HeldWrites()
        self._slot = slot
        self._credentials = Credentials(Role.DATA, generation, run_id, secret)
        self._capacity_bytes = capacity_bytes
        self._overdraft_bytes = overdraft_bytes
        self._wake = wake
        self._inputs: dict[int, TcpInputChannel] = {}
        self._outputs: dict[int, TcpOutputChannel] = {}
        self._links: dict[int, PeerLink] = {}
        self._links_lock = threading.Lock()
        self._changed = threading.Condition()
        self._acceptor: Acceptor | None = None
        self._thread = SocketThread(f"tidegate-data-{slot}", self._on_internal_error)
        self._blocks = _shared_blocks() if shares_memory else None
        self._started = False
        self._closed = False
        self._failure: BaseException | None = None

    @property
    def failure(self) -> BaseException | None:
        """The first error. From then on elements may be missing, and the run must fail."""
        return self._failure

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of connections that were closed before authentication, by reason."""
        return dict(self._acceptor.refused) if self._acceptor is not None else {}

    # ------------------------------------------------------------ setting up

    def listen(self, host: str) -> tuple[str, int]:
        """Listen on a free port of `host` and start the I/O thread. Return the address for `connect` of the other
        slots.

        Raises:
            OSError: `host` is not an address of this machine.
        """
        assert self._acceptor is None, "listen is called once"
        listener = listen_on(host)
        self._acceptor = Acceptor(self._thread, listener, self._new_handshake, self._attach)
        self._thread.start()
        self._thread.call(self._acceptor.open)
        return host, listener.getsockname()[1]

    def open_input(self, channel_id: int, schema: pa.Schema) -> InputChannel:
        """Return the receiving end of `channel_id`, whose batches have `schema`."""
        assert channel_id not in self._inputs, f"channel {channel_id} is opened twice"
        channel = TcpInputChannel(channel_id, schema, self._capacity_bytes, self._overdraft_bytes)
        self._inputs[channel_id] = channel
        return channel

    def open_output(self, channel_id: int, target_slot: int) -> OutputChannel:
        """Return the sending end of `channel_id`, which ends in another slot, `target_slot`."""
        assert channel_id not in self._outputs, f"channel {channel_id} is opened twice"
        assert target_slot != self._slot, "a channel within a slot needs no transport"
        link = self._link(target_slot)
        channel = TcpOutputChannel(channel_id, link, self.writes, self._capacity_bytes, self._overdraft_bytes)
        self._outputs[channel_id] = channel
        return channel

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout_s: float) -> None:
        """Connect to every slot of `peers` (may include this one): dial higher numbers, wait for lower ones. Blocks.

        Raises:
            PeerLostError: a slot cannot be reached, or did not connect in time.
            HandshakeError: a slot belongs to another run or generation.
        """
        deadline = time.monotonic() + timeout_s
        for slot, (host, port) in sorted(peers.items()):
            if slot > self._slot:
                new_handshake = partial(DiallerHandshake, self._credentials, self._slot, slot)
                connection = dial(host, port, new_handshake, deadline - time.monotonic(), f"slot {slot}")
                # Attached on the I/O thread, because only that thread may use the selector.
                self._thread.call(partial(self._attach, connection, slot))
        links = [self._link(slot) for slot in peers if slot != self._slot]
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(link.is_connected for link in links), max(0.0, deadline - time.monotonic())
            ):
                missing = [link.slot for link in links if not link.is_connected]
                raise PeerLostError(
                    f"slots {missing} did not connect in {timeout_s:g} s",
                    where=f"slot {self._slot}",
                    cause=f"slot {self._slot} refused connections: {dict(self.refused)}"
                    if self.refused
                    else f"no connection from these slots arrived at slot {self._slot}",
                    remedy="Check the logs of these slots, and that the network lets executors reach each other",
                )

    def start(self) -> None:
        """Start receiving elements."""
        self._thread.call(self._start_reading)

    def _link(self, slot: int) -> PeerLink:
        with self._links_lock:
            if slot not in self._links:
                self._links[slot] = PeerLink(slot, self._slot, self._thread, self, self._blocks)
            return self._links[slot]

    # ------------------------------------------------------------ ending

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Notify every connected slot of the end, and return when everything sent has arrived there.

        Call it once; send nothing afterwards. After it, `close` loses nothing, and the other slots do not take it for a
        failure.

        Raises:
            ChannelError: the transport has failed, or the time is up.
        """
        links = [link for link in self._links.values() if link.is_connected]
        for link in links:
            link.send_close()
        with self._changed:
            flushed = self._changed.wait_for(
                lambda: self._failure is not None or all(link.is_flushed for link in links), timeout_s
            )
        if self._failure is not None:
            raise self._failure
        if not flushed:
            raise PeerLostError(
                f"slots {[link.slot for link in links if not link.is_flushed]} did not confirm within {timeout_s:g} s "
                "that all records have arrived",
                where=f"slot {self._slot}",
                remedy="Check the logs of these slots: their processes or the network may hang",
            )

    def close(self) -> None:
        """Close every connection and end the thread. May be called twice.

        Without a `flush` before, the other slots take it for a loss.
        """
        if not self._closed:
            self._closed = True
            self._thread.call(self._close_all)
            self._thread.stop()
            if self._blocks is not None:
                self._blocks.close()

    def _close_all(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for link in list(self._links.values()):
            link.close()

    # ------------------------------------------------------------ on the I/O thread

    def _new_handshake(self) -> ListenerHandshake:
        return ListenerHandshake(self._credentials, self._slot, self._admit)

    def _admit(self, slot: int) -> str | None:
        if slot >= self._slot:
            return "only slots with a lower number may connect"
        return "the slot is connected already" if self._link(slot).is_connected else None

    def _attach(self, connection: socket.socket, slot: int) -> None:
        self._link(slot).attach(connection, reads=self._started)
        with self._changed:
            self._changed.notify_all()

    def _start_reading(self) -> None:
        self._started = True
        for link in list(self._links.values()):
            link.start_reading()

    def on_frame(self, link: PeerLink, header: Header, payload: pa.Buffer) -> None:
        """LinkOwner: process an element or a credit."""
        if header.kind is Kind.CREDIT:
            output = self._outputs.get(header.channel_id)
            if output is None or output.link is not link:
                raise ProtocolError(
                    "internal error: a slot reports consumed bytes of an unknown channel",
                    where=f"channel {header.channel_id} from slot {link.slot}",
                )
            output.credit.granted(decode_credit(payload))
        else:
            channel = self._inputs.get(header.channel_id)
            if channel is None:
                raise ProtocolError(
                    "internal error: records arrived for an unknown channel",
                    where=f"channel {header.channel_id} from slot {link.slot}",
                )
            channel.take(link, header, payload)

    def on_read(self, link: PeerLink) -> None:
        """LinkOwner: wake the loop once for all frames that have arrived."""
        self._wake()
        if link.peer_has_ended or link.is_flushed:
            with self._changed:
                self._changed.notify_all()

    def on_failure(self, error: ChannelError) -> None:
        """LinkOwner: record the error. Only the first one is kept."""
        self._record(error)

    def _on_internal_error(self, error: BaseException) -> None:
        self._record(error)

    def _record(self, error: BaseException) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
        with self._changed:
            self._changed.notify_all()
        self._wake()


def _shared_blocks() -> SharedBlocks | None:
    """Return memory to share; None: the system has none."""
    try:
        return SharedBlocks()
    except OSError as error:
        logger.info("slots of this host share no memory, and use connections only: %s", error)
        return None
