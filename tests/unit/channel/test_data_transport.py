"""Data connections between slots on loopback: order, credit, failures, the end."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.channel.column_blocks import BlockLayout, begin_block
from tidegate.channel.elements import CheckpointBarrier, Element, EndOfData, EndOfPartition, Watermark
from tidegate.channel.failures import ChannelError, HandshakeError, PeerLostError, ProtocolError
from tidegate.channel.tcp import wire_format
from tidegate.channel.tcp.data_transport import DataTransport, TcpInputChannel, TcpOutputChannel
from tidegate.channel.tcp.handshake import Credentials, DiallerHandshake, Role
from tidegate.channel.tcp.shared_blocks import SHARED_BYTES, SHARED_FROM_BYTES
from tidegate.channel.tcp.sockets import dial
from tidegate.channel.tcp.wire_format import Kind

SECRET = b"s" * 32
SCHEMA = pa.schema([("n", pa.int64())])
WAIT_S = 60.0
"""For what another thread does at once; only a defect makes a test wait so long."""


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + count), pa.int64())], schema=SCHEMA)


@dataclass
class Slots:
    """Connected transports of one run, all in this process."""

    resources: ExitStack
    capacity_bytes: int
    transports: list[DataTransport] = field(default_factory=list)
    wakes: list[threading.Event] = field(default_factory=list)
    channels: dict[int, tuple[TcpOutputChannel, TcpInputChannel]] = field(default_factory=dict)

    def add(self, slot: int, **changes: Any) -> DataTransport:
        wake = threading.Event()
        given = {"secret": SECRET, "generation": 3, "run_id": "run-7", **changes}
        transport = DataTransport(slot, capacity_bytes=self.capacity_bytes, wake=wake.set, **given)
        self.resources.callback(transport.close)
        self.transports.append(transport)
        self.wakes.append(wake)
        return transport

    def open(self, channel_id: int, source: int, target: int) -> None:
        received = self.transports[target].open_input(channel_id, SCHEMA)
        sent = self.transports[source].open_output(channel_id, target)
        assert isinstance(received, TcpInputChannel)
        assert isinstance(sent, TcpOutputChannel)
        self.channels[channel_id] = (sent, received)

    def connect(self) -> None:
        peers = {slot: transport.listen("127.0.0.1") for slot, transport in enumerate(self.transports)}
        in_parallel([lambda t=t: t.connect(peers, WAIT_S) for t in self.transports])
        for transport in self.transports:
            transport.start()

    def poll(self, channel_id: int) -> Element:
        """The next element, waited for."""
        return self.wait(self.channels[channel_id][1].poll)

    def wait(self, ask: Callable[[], Any]) -> Any:
        """The first answer of `ask` that is not None or False, asked again at each wake-up."""
        deadline = time.monotonic() + WAIT_S
        while True:
            answer = ask()
            if answer is not None and answer is not False:
                return answer
            failures = [t.failure for t in self.transports if t.failure is not None]
            assert not failures, failures
            assert time.monotonic() < deadline, "nothing came in time"
            any_wake(self.wakes, 0.02)

    def failure(self, slot: int) -> BaseException:
        """The failure of `slot`, waited for."""
        transport, wake = self.transports[slot], self.wakes[slot]
        deadline = time.monotonic() + WAIT_S
        while transport.failure is None:
            assert time.monotonic() < deadline, "no failure in time"
            wake.wait(WAIT_S)
            wake.clear()
        return transport.failure


def any_wake(wakes: list[threading.Event], timeout_s: float) -> None:
    for wake in wakes:
        if wake.wait(timeout_s):
            wake.clear()
            return


def in_parallel(calls: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result(WAIT_S)


def start_slots(resources: ExitStack, count: int, routes: Mapping[int, tuple[int, int]], capacity_bytes: int) -> Slots:
    """`routes`: channel id -> (source slot, target slot)."""
    slots = Slots(resources, capacity_bytes)
    for slot in range(count):
        slots.add(slot)
    for channel_id, (source, target) in routes.items():
        slots.open(channel_id, source, target)
    slots.connect()
    return slots


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_batches_and_events_of_a_channel_arrive_in_order(resources: ExitStack) -> None:
    """S3.1."""
    slots = start_slots(resources, 2, {7: (1, 0)}, 2**20)
    elements = [
        rows(10),
        Watermark(5),
        rows(0),
        CheckpointBarrier(1, "savepoint", 99, None),
        rows(3, 10),
        EndOfData(True),
        EndOfPartition(),
    ]
    for element in elements:
        slots.channels[7][0].send(element)
    assert [slots.poll(7) for _ in elements] == elements


def test_elements_sent_before_the_connection_arrive_after_start_and_not_before(resources: ExitStack) -> None:
    slots = Slots(resources, 2**20)
    first, second = slots.add(0), slots.add(1)
    slots.open(0, 0, 1)
    slots.open(1, 0, 1)
    slots.channels[0][0].send(Watermark(1))
    peers = {0: first.listen("127.0.0.1"), 1: second.listen("127.0.0.1")}
    in_parallel([lambda: first.connect(peers, WAIT_S), lambda: second.connect(peers, WAIT_S)])
    first.start()
    assert slots.channels[0][1].poll() is None
    second.start()
    assert slots.poll(0) == Watermark(1)


def test_a_batch_of_many_megabytes_passes_a_small_channel(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 1)
    batch = rows(2_000_000)
    output, _ = slots.channels[0]
    for _ in range(2):
        assert slots.wait(output.has_capacity)
        output.send(batch)
        assert not output.has_capacity()
        assert slots.poll(0).equals(batch)


def test_large_batches_pass_through_shared_memory_in_order(resources: ExitStack) -> None:
    """S3.1: also if the receiver keeps its batches until the memory is used up, so that some travel in frames."""
    slots = start_slots(resources, 2, {0: (0, 1)}, 10**9)
    output, _ = slots.channels[0]
    slots.wait(lambda: output.link.shared is not None)
    shared = output.link.shared
    assert shared is not None
    size = 150_000
    sent = 2 * SHARED_BYTES // (8 * size)
    for number in range(sent):
        output.send(rows(size, number))
        output.send(rows(3, number))
        output.send(Watermark(number))
    assert sent // 3 < shared.blocks_in_use < sent
    kept = []
    for number in range(sent):
        kept.append(slots.poll(0))
        assert kept[-1].equals(rows(size, number))
        assert slots.poll(0).equals(rows(3, number))
        assert slots.poll(0) == Watermark(number)
    kept.clear()
    output.send(rows(size))
    assert shared.blocks_in_use < sent // 3, "what nobody keeps is released"
    assert slots.poll(0).equals(rows(size))


def test_a_block_that_the_sender_has_filled_arrives_like_a_batch(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 10**9)
    output, received = slots.channels[0]
    slots.wait(lambda: output.link.shared is not None)
    assert output.reserve(SHARED_FROM_BYTES - 1) is None, "small batches travel in frames"
    assert output.reserve(SHARED_BYTES + 1) is None
    count = SHARED_FROM_BYTES
    begin, size_bytes = BlockLayout(rows(1).schema).offsets(count)
    block = output.reserve(size_bytes)
    assert block is not None
    begin_block(block, count)
    block.memory[begin : begin + 8 * count].view("<i8")[:] = range(count)
    output.send_block(block)
    output.send(Watermark(1))
    assert output.outstanding_bytes == size_bytes
    slots.wait(lambda: received.queued_bytes == size_bytes)
    assert slots.poll(0).equals(rows(count))
    assert slots.poll(0) == Watermark(1)


def test_slots_of_different_hosts_use_frames_only(resources: ExitStack) -> None:
    slots = Slots(resources, 10**9)
    for slot in range(2):
        slots.add(slot, shares_memory=slot == 1)
    slots.open(0, 0, 1)
    slots.open(1, 1, 0)
    slots.connect()
    slots.channels[0][0].send(rows(100_000))
    assert slots.poll(0).equals(rows(100_000))
    slots.wait(lambda: slots.channels[1][0].link.shared is not None)
    assert slots.channels[0][0].reserve(SHARED_FROM_BYTES) is None
    assert slots.channels[0][0].link.shared is None


def test_a_batch_in_memory_that_was_never_offered_is_an_error(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 10_000)
    output, _ = slots.channels[0]
    slots.wait(lambda: output.link.shared is not None)
    slots.transports[1]._links[0]._mapped = None
    output.send(rows(100_000))
    assert isinstance(slots.failure(1), ProtocolError)


def test_a_channel_that_is_not_polled_stops_its_sender_and_no_other(resources: ExitStack) -> None:
    """S3.2: aligning is granting no credit to one channel."""
    slots = start_slots(resources, 2, {0: (0, 1), 1: (0, 1)}, 10_000)
    blocked, free = slots.channels[0][0], slots.channels[1][0]
    sent = 0
    while blocked.has_capacity():
        blocked.send(rows(100, sent))
        sent += 100
    blocked.send(Watermark(9))
    for number in range(50):
        slots.wait(free.has_capacity)
        free.send(rows(100, number))
        assert slots.poll(1).equals(rows(100, number))
    assert not blocked.has_capacity()
    slots.wait(lambda: slots.channels[0][1].queued_bytes == blocked.outstanding_bytes)
    for start in range(0, sent, 100):
        assert slots.poll(0).equals(rows(100, start))
    assert slots.poll(0) == Watermark(9)
    assert slots.wait(blocked.has_capacity)


def test_the_event_behind_unpolled_batches_needs_no_credit(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 1)
    output, received = slots.channels[0]
    output.send(rows(1))
    for checkpoint_id in range(1_000):
        output.send(CheckpointBarrier(checkpoint_id, "checkpoint", 0))
    slots.poll(0)
    for checkpoint_id in range(1_000):
        assert slots.poll(0) == CheckpointBarrier(checkpoint_id, "checkpoint", 0)
    assert received.queued_bytes == 0


def test_many_channels_between_three_slots_keep_apart(resources: ExitStack) -> None:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    routes = {number: pairs[number % 6] for number in range(300)}
    slots = start_slots(resources, 3, routes, 4_096)
    for channel_id, (output, _) in slots.channels.items():
        output.send(rows(10, channel_id))
        output.send(Watermark(channel_id))
    for channel_id in slots.channels:
        assert slots.poll(channel_id).equals(rows(10, channel_id))
        assert slots.poll(channel_id) == Watermark(channel_id)


def payload_bytes(element: Element) -> int:
    return wire_format.encode_batch(element)[1].size if isinstance(element, pa.RecordBatch) else 0


ELEMENTS = st.one_of(
    st.integers(0, 3_000).map(rows), st.builds(Watermark, st.integers(-5, 5)), st.just(EndOfData(False))
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(ELEMENTS, max_size=15), min_size=4, max_size=4),
    st.integers(1, 20_000),
    st.randoms(use_true_random=True),  # how much is drawn depends on the threads: nothing Hypothesis could repeat
)
def test_what_goes_into_a_channel_comes_out_whatever_the_interleaving(
    contents: list[list[Element]], capacity_bytes: int, randomness: random.Random
) -> None:
    """S3.1."""
    with ExitStack() as resources:
        routes = {0: (0, 1), 1: (1, 0), 2: (0, 1), 3: (1, 0)}
        slots = start_slots(resources, 2, routes, capacity_bytes)
        to_send = {channel_id: list(contents[channel_id]) for channel_id in routes}
        arrived: dict[int, list[Element]] = {channel_id: [] for channel_id in routes}
        largest = {c: max([payload_bytes(element) for element in contents[c]], default=0) for c in routes}

        def move() -> bool:
            """One step on a channel chosen at random. True: all has arrived."""
            channel_id = randomness.choice(list(routes))
            output, received = slots.channels[channel_id]
            if randomness.random() < 0.6 and to_send[channel_id]:
                if not isinstance(to_send[channel_id][0], pa.RecordBatch) or output.has_capacity():
                    output.send(to_send[channel_id].pop(0))
            else:
                element = received.poll()
                if element is not None:
                    arrived[channel_id].append(element)
            assert output.outstanding_bytes <= capacity_bytes + largest[channel_id]
            assert received.queued_bytes <= capacity_bytes + largest[channel_id]
            return all(len(arrived[c]) == len(contents[c]) for c in routes)

        deadline = time.monotonic() + WAIT_S
        while not move():
            assert time.monotonic() < deadline, "nothing came in time"
            assert [t.failure for t in slots.transports] == [None, None]
        assert arrived == dict(enumerate(contents))


# ------------------------------------------------------------ the end


def test_a_slot_that_flushed_may_close_while_others_work_on(resources: ExitStack) -> None:
    slots = start_slots(resources, 3, {0: (0, 1), 1: (1, 2)}, 2**20)
    slots.channels[0][0].send(rows(1_000))
    slots.channels[0][0].send(EndOfPartition())
    slots.transports[0].flush(WAIT_S)
    slots.transports[0].close()
    assert slots.poll(0).equals(rows(1_000))
    assert slots.poll(0) == EndOfPartition()
    slots.channels[1][0].send(EndOfPartition())
    assert slots.poll(1) == EndOfPartition()
    in_parallel([lambda: slots.transports[1].flush(WAIT_S), lambda: slots.transports[2].flush(WAIT_S)])
    assert [t.failure for t in slots.transports] == [None, None, None]


def test_all_slots_may_flush_and_close_at_once(resources: ExitStack) -> None:
    slots = start_slots(resources, 4, {}, 2**20)

    def end(transport: DataTransport) -> None:
        transport.flush(WAIT_S)
        transport.close()

    in_parallel([lambda t=t: end(t) for t in slots.transports])
    assert [t.failure for t in slots.transports] == [None] * 4


def test_sending_to_a_slot_that_has_ended_is_an_error(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 2**20)
    slots.transports[1].flush(WAIT_S)
    with pytest.raises(ProtocolError, match="records were sent to slot 1, which has ended"):
        slots.channels[0][0].send(rows(1))


def test_a_flush_names_the_slot_that_does_not_take_what_was_sent(resources: ExitStack) -> None:
    slots = Slots(resources, 2**20)
    first, second = slots.add(0), slots.add(1)
    peers = {0: first.listen("127.0.0.1"), 1: second.listen("127.0.0.1")}
    in_parallel([lambda: first.connect(peers, WAIT_S), lambda: second.connect(peers, WAIT_S)])
    first.start()
    with pytest.raises(PeerLostError, match=r"slots \[1\] did not confirm within 0.05 s"):
        first.flush(timeout_s=0.05)


# ------------------------------------------------------------ failures


def test_a_slot_that_closes_without_farewell_is_reported_as_lost(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 2**20)
    slots.channels[0][0].send(rows(5))
    assert slots.poll(0).equals(rows(5))
    slots.transports[0].close()
    failure = slots.failure(1)
    assert isinstance(failure, PeerLostError)
    assert isinstance(failure, ConnectionError)
    assert "slot 0 was lost" in str(failure)


def test_sending_after_a_failure_raises_nothing(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {0: (0, 1)}, 2**20)
    slots.transports[1].close()
    slots.failure(0)
    for _ in range(3):
        slots.channels[0][0].send(rows(5))
    with pytest.raises(PeerLostError, match="slot 1 was lost"):
        slots.transports[0].flush(WAIT_S)


class Impostor:
    """Slot 0, authenticated, sending what a test likes to slot 1."""

    def __init__(self, resources: ExitStack, capacity_bytes: int = 2**20) -> None:
        self.slots = Slots(resources, capacity_bytes)
        self.slots.add(0).close()
        victim = self.slots.add(1)
        victim.open_input(0, SCHEMA)
        self.output = victim.open_output(1, 0)
        host, port = victim.listen("127.0.0.1")
        handshake = DiallerHandshake(Credentials(Role.DATA, 3, "run-7", SECRET), 0, 1)
        self.connection = dial(host, port, lambda: handshake, WAIT_S, "slot 1")
        self.connection.settimeout(WAIT_S)
        resources.callback(self.connection.close)
        victim.connect({0: ("127.0.0.1", 0)}, WAIT_S)
        victim.start()

    def batch(self, sequence: int, channel_id: int = 0) -> bytes:
        flags, payload = wire_format.encode_batch(rows(1))
        return wire_format.pack_header(Kind.BATCH, channel_id, sequence, payload.size, flags) + payload.to_pybytes()

    def failure_after(self, *frames: bytes) -> str:
        self.connection.sendall(b"".join(frames))
        failure = self.slots.failure(1)
        assert isinstance(failure, ProtocolError)
        return str(failure)


def test_a_gap_in_the_sequence_of_a_channel_is_detected(resources: ExitStack) -> None:
    """S3.1."""
    slot = Impostor(resources)
    assert "message 2 of a channel arrived instead of message 1 [channel 0 from slot 0]" in slot.failure_after(
        slot.batch(0), slot.batch(2)
    )


def test_an_element_that_comes_twice_is_detected(resources: ExitStack) -> None:
    """S3.1."""
    slot = Impostor(resources)
    assert "message 0 of a channel arrived instead of message 1" in slot.failure_after(slot.batch(0), slot.batch(0))


def test_a_frame_for_an_unknown_channel_is_detected(resources: ExitStack) -> None:
    slot = Impostor(resources)
    assert "records arrived for an unknown channel [channel 5 from slot 0]" in slot.failure_after(
        slot.batch(0, channel_id=5)
    )


def test_a_sender_beyond_its_credit_is_detected(resources: ExitStack) -> None:
    slot = Impostor(resources, capacity_bytes=1)
    assert "more bytes than the receiver has allowed" in slot.failure_after(slot.batch(0), slot.batch(1))


def test_credit_for_nothing_is_detected(resources: ExitStack) -> None:
    assert "but only 0 bytes were sent" in Impostor(resources).failure_after(wire_format.credit_frame(1, 1))


def test_credit_for_an_unknown_channel_is_detected(resources: ExitStack) -> None:
    assert "consumed bytes of an unknown channel" in Impostor(resources).failure_after(wire_format.credit_frame(0, 1))


def test_two_slots_that_send_on_one_channel_are_detected(resources: ExitStack) -> None:
    slots = Slots(resources, 2**20)
    for slot in range(3):
        slots.add(slot)
    target = slots.transports[2].open_input(0, SCHEMA)
    outputs = [slots.transports[slot].open_output(0, 2) for slot in (0, 1)]
    slots.connect()
    outputs[0].send(rows(1))
    assert slots.wait(target.poll).equals(rows(1))
    outputs[1].send(rows(1))
    assert "slots 0 and 1 both send to one channel [channel 0]" in str(slots.failure(2))


def test_a_frame_beyond_its_bound_is_refused_before_its_payload(resources: ExitStack) -> None:
    header = wire_format.pack_header(Kind.BATCH, 0, 0, wire_format.MAX_FRAME_BYTES + 1)
    assert "BATCH message between slots states" in Impostor(resources).failure_after(header)


def test_an_answer_to_no_farewell_is_detected(resources: ExitStack) -> None:
    assert "without CLOSE" in Impostor(resources).failure_after(wire_format.close_frame(Kind.CLOSE_ACK))


def test_frames_cut_anywhere_by_the_network_arrive_whole(resources: ExitStack) -> None:
    slot = Impostor(resources)
    received = slot.slots.transports[1].open_input(2, SCHEMA)
    frames = slot.batch(0, channel_id=2) + wire_format.event_frame(Watermark(4), 2, 1)
    for byte in frames + wire_format.event_frame(EndOfPartition(), 2, 2):
        slot.connection.sendall(bytes([byte]))
    expected = [rows(1), Watermark(4), EndOfPartition()]
    assert [slot.slots.wait(received.poll) for _ in expected] == expected


# ------------------------------------------------------------ who may connect


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret": b"t" * 32}, "the other process does not know the secret of this run"),
        ({"generation": 2}, "the other process belongs to an older generation"),
        ({"run_id": "run-6"}, "the other process belongs to another run"),
    ],
    ids=["secret", "generation", "run"],
)
def test_a_slot_of_another_run_is_refused_by_both_sides(
    resources: ExitStack, changes: dict[str, Any], reason: str
) -> None:
    """S9.2."""
    slots = Slots(resources, 2**20)
    zombie, ours = slots.add(0, **changes), slots.add(1)
    peers = {1: ours.listen("127.0.0.1")}
    zombie.listen("127.0.0.1")
    with pytest.raises(HandshakeError, match="slot 1 at 127.0.0.1"):
        zombie.connect(peers, WAIT_S)
    with pytest.raises(PeerLostError, match=rf"slots \[0\] did not connect in 0.01 s.*{reason}"):
        ours.connect({0: ("127.0.0.1", 0)}, timeout_s=0.01)
    assert ours.refused == {reason: 1}


def test_a_second_connection_of_a_slot_and_one_the_wrong_way_round_are_refused(resources: ExitStack) -> None:
    slots = start_slots(resources, 2, {}, 2**20)
    target = Slots(resources, 2**20).add(1)
    host, port = target.listen("127.0.0.1")
    credentials = Credentials(Role.DATA, 3, "run-7", SECRET)
    resources.callback(dial(host, port, lambda: DiallerHandshake(credentials, 0, 1), WAIT_S, "slot 1").close)
    for slot in (0, 2):
        with pytest.raises(HandshakeError):
            dial(host, port, partial(DiallerHandshake, credentials, slot, 1), WAIT_S, "slot 1")
    assert target.refused == {"the slot is connected already": 1, "only slots with a lower number may connect": 1}
    assert [t.failure for t in slots.transports] == [None, None]


def test_a_slot_that_is_not_there_is_named(resources: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    transport = Slots(resources, 2**20).add(0)
    with pytest.raises(PeerLostError, match="slot 1 cannot be reached"):
        transport.connect({1: address}, WAIT_S)


def test_a_channel_error_is_for_the_user_and_a_lost_peer_counts_as_consequence() -> None:
    assert issubclass(PeerLostError, ChannelError)
    assert issubclass(HandshakeError, ConnectionError)
    assert not issubclass(ProtocolError, ConnectionError)


def test_a_barrier_is_announced_and_what_lies_in_front_of_it_told_without_polling(resources: ExitStack) -> None:
    """S3.7: everything sent arrives, whether or not anybody consumes it."""
    slots = start_slots(resources, 2, {0: (0, 1)}, 10_000)
    output, received = slots.channels[0]
    announced: list[Element] = []
    received.on_barrier_queued(announced.append)
    in_front: list[Element] = []
    while output.has_capacity():
        in_front += [rows(100, len(in_front)), Watermark(len(in_front))]
        output.send(in_front[-2])
        output.send(in_front[-1])
    barriers = [CheckpointBarrier(n, "checkpoint", 7) for n in (1, 2)]
    for event in (barriers[0], EndOfData(True), barriers[1], EndOfPartition()):
        output.send(event)
    slots.wait(lambda: len(announced) == 3)
    assert announced == [*barriers, EndOfPartition()]
    first_bytes = received.next_batch_bytes()
    assert 0 < first_bytes < received.queued_bytes
    assert received.queued_before(1) == in_front
    queued_bytes = received.queued_bytes
    assert slots.poll(0) == in_front.pop(0)
    assert received.queued_bytes == queued_bytes - first_bytes
    assert received.next_batch_bytes() == 0, "a watermark"
    assert received.queued_before(2) == [*in_front, barriers[0], EndOfData(True)]
    assert received.queued_before(3) == [*in_front, barriers[0], EndOfData(True), barriers[1]]
    for element in in_front:
        assert slots.poll(0) == element


def test_what_is_in_front_of_a_barrier_can_be_told_while_more_arrives(resources: ExitStack) -> None:
    """S3.7: the queue is filled by the I/O thread."""
    slots = start_slots(resources, 2, {0: (0, 1)}, 2**30)
    output, received = slots.channels[0]
    received.on_barrier_queued(lambda _: None)
    output.send(rows(3))
    output.send(CheckpointBarrier(1, "checkpoint", 0))
    slots.wait(lambda: received.queued_bytes > 0)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [output.send(Watermark(n)) for n in range(20_000)])
        while not sending.done():
            assert [e for e in received.queued_before(1) if isinstance(e, pa.RecordBatch)] == [rows(3)]
        sending.result(WAIT_S)


def test_an_overdraft_carries_an_emission_beyond_the_capacity_to_a_receiver_that_knows_of_it(
    resources: ExitStack,
) -> None:
    """S3.7."""
    slots = Slots(resources, 10_000)
    slots.add(0, overdraft_bytes=10_000)
    slots.add(1, overdraft_bytes=10_000)
    slots.open(0, 0, 1)
    slots.connect()
    output, received = slots.channels[0]
    sent = 0
    for allowed in (False, True):
        output.overdraw(allowed)
        while output.has_capacity():
            output.send(rows(100, sent))
            sent += 100
    assert 20_000 <= output.outstanding_bytes < 22_000
    slots.wait(lambda: received.queued_bytes == output.outstanding_bytes)
    output.overdraw(False)
    for start in range(0, sent, 100):
        assert slots.poll(0).equals(rows(100, start))
    assert slots.wait(output.has_capacity)


def test_a_sender_that_overdraws_where_nobody_may_is_a_failure_of_the_run(resources: ExitStack) -> None:
    """S3.7: checked by the receiver too."""
    slots = Slots(resources, 1_000)
    slots.add(0, overdraft_bytes=10_000)
    slots.add(1)
    slots.open(0, 0, 1)
    slots.connect()
    output = slots.channels[0][0]
    output.overdraw(True)
    while output.has_capacity():
        output.send(rows(100))
    assert isinstance(slots.failure(1), ProtocolError)
    assert "more bytes than the receiver has allowed" in str(slots.failure(1))
