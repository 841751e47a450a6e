"""Control connections on loopback: order, loss, refusal, bounds."""

from __future__ import annotations

import queue
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tidegate.channel.control import message_framing
from tidegate.channel.control.connections import ControlClient, ControlServer
from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    Cancel,
    Deploy,
    Deployed,
    Heartbeat,
    Over,
    Peer,
    Start,
    SubtaskRunning,
)
from tidegate.channel.failures import ChannelError, HandshakeError, PeerLostError
from tidegate.channel.tcp.handshake import DRIVER, Credentials, DiallerHandshake, Role
from tidegate.channel.tcp.sockets import dial

SECRET = b"s" * 32
WAIT_S = 60.0
"""For what another thread does at once; only a defect makes a test wait so long."""


class Driver:
    """A server that queues what it hears."""

    def __init__(self, resources: ExitStack) -> None:
        self.heard: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.server = ControlServer(SECRET, 3, "run-7", self._hear, self._hear)
        self.host, self.port = self.server.listen("127.0.0.1")
        resources.callback(self.server.close)
        self._resources = resources

    def _hear(self, slot: int, what: Any) -> None:
        self.heard.put((slot, what))

    def connect(self, slot: int, **changes: Any) -> tuple[ControlClient, queue.Queue[Any]]:
        heard: queue.Queue[Any] = queue.Queue()
        given = {"secret": SECRET, "generation": 3, "run_id": "run-7", **changes}
        client = ControlClient(self.host, self.port, slot=slot, on_message=heard.put, on_lost=heard.put, **given)
        self._resources.callback(client.close)
        # A client returns when it has the server's answer; the server knows the slot only a moment later, and drops
        # messages to slots that it does not know. The driver therefore sends only to slots it has heard, as here.
        client.send(Heartbeat(0))
        assert self.heard.get(timeout=WAIT_S) == (slot, Heartbeat(0))
        return client, heard

    def dial_raw(self, slot: int) -> socket.socket:
        """An authenticated socket on which a test can send what it likes; blocking."""
        handshake = DiallerHandshake(Credentials(Role.CONTROL, 3, "run-7", SECRET), slot, DRIVER)
        connection = dial(self.host, self.port, lambda: handshake, WAIT_S, "the driver")
        connection.settimeout(WAIT_S)
        self._resources.callback(connection.close)
        return connection


def deploy(state: str) -> Deploy:
    return Deploy((Peer(0, "here", 1),), {}, {"state": state}, False)


def acknowledged(state: str) -> Acknowledged:
    return Acknowledged((0, 1), 7, "run-7", {"op": {"inline": state}})


@pytest.fixture
def driver() -> Iterator[Driver]:
    with ExitStack() as resources:
        yield Driver(resources)


def test_messages_go_both_ways_in_order(driver: Driver) -> None:
    client, heard = driver.connect(5)
    for number in range(200):
        client.send(SubtaskRunning((1, number)))
    assert [driver.heard.get(timeout=WAIT_S) for _ in range(200)] == [
        (5, SubtaskRunning((1, number))) for number in range(200)
    ]
    for number in range(200):
        driver.server.send(5, Abort(number))
    assert [heard.get(timeout=WAIT_S).checkpoint_id for _ in range(200)] == list(range(200))


def test_a_broadcast_reaches_every_slot_and_a_message_only_its_own(driver: Driver) -> None:
    heard = [driver.connect(slot)[1] for slot in range(3)]
    driver.server.send(1, Start())
    driver.server.broadcast(Abort(3))
    assert heard[0].get(timeout=WAIT_S) == heard[2].get(timeout=WAIT_S) == Abort(3)
    assert [heard[1].get(timeout=WAIT_S) for _ in range(2)] == [Start(), Abort(3)]


def test_a_message_of_many_megabytes_arrives_whole(driver: Driver) -> None:
    client, heard = driver.connect(0)
    driver.server.send(0, deploy("y" * 20_000_000))
    client.send(acknowledged("x" * 20_000_000))
    assert driver.heard.get(timeout=WAIT_S)[1] == acknowledged("x" * 20_000_000)
    assert heard.get(timeout=WAIT_S) == deploy("y" * 20_000_000)


def test_a_message_beyond_the_bound_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    monkeypatch.setattr(message_framing, "MAX_MESSAGE_BYTES", 100)
    client, _ = driver.connect(0)
    with pytest.raises(ChannelError, match=r"type Acknowledged.*state_size_threshold"):
        client.send(acknowledged("x" * 100))


def test_what_a_slot_sent_before_it_closed_is_heard_before_its_loss(driver: Driver) -> None:
    client, _ = driver.connect(2)
    driver.server.send(2, Start())
    client.send(Over())
    assert client.flush(WAIT_S)
    client.close()
    assert driver.heard.get(timeout=WAIT_S) == (2, Over())
    assert driver.heard.get(timeout=WAIT_S)[1] == "the other process closed the connection"


def test_a_slot_learns_that_its_driver_is_gone_and_sends_into_the_void(driver: Driver) -> None:
    client, heard = driver.connect(2)
    driver.server.close()
    assert heard.get(timeout=WAIT_S) == "the other process closed the connection"
    client.send(Heartbeat(1))
    assert client.flush(0)


def test_a_server_that_closes_sends_what_is_queued_and_reports_no_loss(driver: Driver) -> None:
    _, heard = driver.connect(2)
    driver.server.send(2, Cancel())
    driver.server.close()
    assert heard.get(timeout=WAIT_S) == Cancel()
    assert heard.get(timeout=WAIT_S) == "the other process closed the connection"
    assert driver.heard.empty()


def test_a_second_connection_for_a_slot_is_refused_and_the_first_goes_on(driver: Driver) -> None:
    first, _ = driver.connect(4)
    with pytest.raises(HandshakeError):
        driver.connect(4)
    assert driver.server.refused == {"the slot is connected already": 1}
    first.send(Heartbeat(1))
    assert driver.heard.get(timeout=WAIT_S) == (4, Heartbeat(1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret": b"t" * 32}, "the other process does not know the secret of this run"),
        ({"generation": 2}, "the other process belongs to an older generation"),
        ({"run_id": "run-6"}, "the other process belongs to another run"),
    ],
    ids=["secret", "generation", "run"],
)
def test_a_zombie_or_stranger_is_closed_counted_and_never_heard(
    driver: Driver, changes: dict[str, Any], reason: str
) -> None:
    """S9.2."""
    with pytest.raises(HandshakeError, match="the other process refused the connection"):
        driver.connect(1, **changes)
    assert driver.server.refused == {reason: 1}
    driver.connect(1)[0].send(Deployed())
    assert driver.heard.get(timeout=WAIT_S) == (1, Deployed())


def test_a_stranger_that_talks_http_is_closed_without_an_answer(driver: Driver) -> None:
    with socket.create_connection((driver.host, driver.port), timeout=WAIT_S) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n".ljust(88, b" "))
        assert stranger.recv(100) == b""
    assert driver.server.refused == {"the other process is not tidegate": 1}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 2**31),
        struct.pack("<I", 3) + b"{,}",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"{}",
    ],
    ids=["too long", "not JSON", "no object", "no type"],
)
def test_a_slot_that_breaks_the_protocol_is_lost(driver: Driver, data: bytes) -> None:
    connection = driver.dial_raw(6)
    connection.sendall(data)
    slot, reason = driver.heard.get(timeout=WAIT_S)
    assert slot == 6
    assert "message between driver and slot" in reason
    assert connection.recv(1) == b""


def test_messages_cut_anywhere_by_the_network_arrive_whole(driver: Driver) -> None:
    connection = driver.dial_raw(6)
    for byte in message_framing.encode_message(Heartbeat(1)) + message_framing.encode_message(Heartbeat(2)):
        connection.sendall(bytes([byte]))
    assert [driver.heard.get(timeout=WAIT_S) for _ in range(2)] == [(6, Heartbeat(1)), (6, Heartbeat(2))]


def test_a_slot_that_reads_nothing_is_lost_when_too_much_waits(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    monkeypatch.setattr(message_framing, "MAX_QUEUED_BYTES", 2**20)
    connection = driver.dial_raw(6)
    connection.sendall(message_framing.encode_message(Deployed()))
    driver.heard.get(timeout=WAIT_S)
    for _ in range(64):
        driver.server.send(6, deploy("x" * 2**20))
    slot, reason = driver.heard.get(timeout=WAIT_S)
    assert slot == 6
    assert "does not read" in reason


def test_an_error_in_taking_a_message_loses_that_slot_only(caplog: pytest.LogCaptureFixture) -> None:
    heard: queue.Queue[tuple[int, Any]] = queue.Queue()

    def take(slot: int, message: Any) -> None:
        if slot == 1:
            raise ValueError("cannot take it")
        heard.put((slot, message))

    with ExitStack() as resources:
        server = ControlServer(SECRET, 3, "run-7", take, lambda slot, reason: heard.put((slot, reason)))
        host, port = server.listen("127.0.0.1")
        resources.callback(server.close)
        ignore: Callable[[Any], None] = lambda _: None  # noqa: E731
        clients = [ControlClient(host, port, SECRET, 3, "run-7", slot, ignore, ignore) for slot in (1, 2)]
        for client in clients:
            resources.callback(client.close)
        clients[0].send(Heartbeat(1))
        assert heard.get(timeout=WAIT_S) == (1, "cannot take it")
        clients[1].send(Heartbeat(1))
        assert heard.get(timeout=WAIT_S) == (2, Heartbeat(1))
    assert "cannot take it" in caplog.text


def test_a_message_to_a_slot_that_is_not_there_is_dropped(driver: Driver) -> None:
    driver.server.send(9, Cancel())
    driver.server.broadcast(Cancel())


def test_a_driver_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PeerLostError, match=f"the driver at 127.0.0.1:{port}"):
        ControlClient("127.0.0.1", port, SECRET, 3, "run-7", 0, print, print)
