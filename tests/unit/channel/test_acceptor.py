"""Strangers that open connections and stay silent: they cost neither memory without limit nor a slot its connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tidegate.channel.failures import HandshakeError, PeerLostError
from tidegate.channel.tcp import acceptor as acceptor_module
from tidegate.channel.tcp.acceptor import MAX_PENDING_HANDSHAKES, MAX_SILENT_PER_PEER, Acceptor
from tidegate.channel.tcp.handshake import Credentials, DiallerHandshake, ListenerHandshake, Role
from tidegate.channel.tcp.socket_thread import SocketThread
from tidegate.channel.tcp.sockets import FIRST_REDIAL_S, HANDSHAKE_TIMEOUT_S, LONGEST_REDIAL_S, dial, listen_on

CREDENTIALS = Credentials(Role.CONTROL, 3, "run-7", b"s" * 32)
WAIT_S = 60.0
"""For what another thread does at once; only a defect makes a test wait so long."""
STRANGERS = 1_400
"""The number of connections with which an adversary blocked every restart of an earlier version."""
TOO_MANY = "too many connections were silent at the same time"
LATE = "the other process did not answer in time"


class Untimed(SocketThread):
    """Notes what is to be done later; the test does it."""

    def __init__(self) -> None:
        super().__init__("test", on_error=self._note)
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.errors: list[BaseException] = []

    def _note(self, error: BaseException) -> None:
        self.errors.append(error)

    def call_later(self, delay_s: float, todo: Callable[[], None]) -> None:
        self.later.append((delay_s, todo))


class Driver:
    """An acceptor on all loopback addresses, whose clock and timers the test moves."""

    def __init__(self, resources: ExitStack) -> None:
        self.resources = resources
        self.now_s = 0.0
        self.thread = Untimed()
        self.slots: list[int] = []
        self.changed = threading.Condition()
        listener = listen_on("0.0.0.0")
        self.port: int = listener.getsockname()[1]
        self.acceptor = Acceptor(
            self.thread, listener, self.new_handshake, self.on_authenticated, clock=lambda: self.now_s
        )
        resources.callback(self.thread.stop)
        resources.callback(lambda: self.thread.call(self.acceptor.close))
        self.thread.start()
        self.thread.call(self.acceptor.open)

    def new_handshake(self) -> ListenerHandshake:
        return ListenerHandshake(CREDENTIALS, 1)

    def on_authenticated(self, connection: socket.socket, slot: int) -> None:
        self.resources.callback(connection.close)
        with self.changed:
            self.slots.append(slot)
            self.changed.notify_all()

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S, source_address=(source, 0))
        self.resources.callback(connection.close)
        return connection

    def hello(self, slot: int, source: str = "127.0.0.1") -> socket.socket:
        """A connection that knows the run, and sends no proof."""
        connection = self.connect(source)
        connection.sendall(DiallerHandshake(CREDENTIALS, slot, 1).hello)
        assert len(connection.recv(100)) > 0
        return connection

    def dial(self, slot: int) -> None:
        new_handshake = partial(DiallerHandshake, CREDENTIALS, slot, 1)
        self.resources.callback(dial("127.0.0.1", self.port, new_handshake, WAIT_S, "the driver").close)
        with self.changed:
            assert self.changed.wait_for(lambda: slot in self.slots, WAIT_S)

    def settle(self) -> None:
        """Returns when the thread has handled what was there before."""
        done = threading.Event()
        self.thread.call(done.set)
        assert done.wait(WAIT_S)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with ExitStack() as resources:
        made = Driver(resources)
        yield made
        assert made.thread.errors == []


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


@pytest.mark.parametrize("addresses", [1, 5, 50], ids=lambda n: f"{n} addresses")
def test_silent_strangers_keep_no_slot_out(driver: Driver, addresses: int) -> None:
    """No time passes for the driver, so nothing expires: only the limits make room."""
    for number in range(STRANGERS):
        driver.connect(f"127.0.0.{number % addresses + 1}")
        if number % 100 == 0:
            driver.dial(number // 100)
    driver.dial(99)
    assert set(driver.slots) == {*range(STRANGERS // 100), 99}
    limit = min(MAX_PENDING_HANDSHAKES, addresses * MAX_SILENT_PER_PEER)
    assert driver.acceptor.refused[TOO_MANY] >= STRANGERS - limit


def test_the_oldest_silent_connection_of_the_busiest_address_is_dropped(driver: Driver) -> None:
    one = [driver.connect("127.0.0.2")]
    driver.settle()
    many = [driver.connect("127.0.0.3") for _ in range(MAX_SILENT_PER_PEER + 3)]
    with pytest.raises(ConnectionResetError):
        many[2].recv(1)
    assert [is_open(connection) for connection in one + many] == [True, False, False, False] + [True] * 64


def test_connections_that_know_the_run_are_not_dropped_for_silent_ones(driver: Driver) -> None:
    known = [driver.hello(slot) for slot in range(MAX_SILENT_PER_PEER + 1)]
    for _ in range(STRANGERS):
        driver.connect()
    driver.dial(99)
    assert all(is_open(connection) for connection in known)


def test_accepting_pauses_while_all_connections_know_the_run(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_PENDING_HANDSHAKES", 2)
    known = [driver.hello(slot) for slot in range(2)]
    waits = driver.connect()
    waits.sendall(DiallerHandshake(CREDENTIALS, 7, 1).hello)
    driver.settle()
    driver.settle()
    assert is_open(waits)
    known[0].close()
    assert len(waits.recv(100)) > 0
    assert is_open(known[1])


def test_a_silent_connection_expires_and_one_timer_serves_all(driver: Driver) -> None:
    silent = driver.connect()
    driver.dial(0)
    driver.now_s = 2.0
    younger = driver.connect()
    driver.dial(1)
    ((delay_s, sweep),) = driver.thread.later
    assert delay_s == HANDSHAKE_TIMEOUT_S
    driver.now_s = HANDSHAKE_TIMEOUT_S
    driver.thread.call(sweep)
    with pytest.raises(ConnectionResetError):
        silent.recv(1)
    driver.settle()
    assert is_open(younger)
    assert driver.acceptor.refused == {LATE: 1}
    assert [delay_s for delay_s, _ in driver.thread.later] == [HANDSHAKE_TIMEOUT_S, 2.0]


# ------------------------------------------------------------ the side that dials


class Listener:
    """Ends the first connections as the test says, and authenticates the next."""

    def __init__(self, resources: ExitStack, ends: list[Callable[[socket.socket], None]]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends = ends
        self._resources = resources
        self.attempts = 0
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        resources.callback(thread.join, WAIT_S)
        resources.callback(self._listener.close)
        resources.callback(self._listener.shutdown, socket.SHUT_RDWR)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.attempts += 1
            if self._ends:
                self._ends.pop(0)(connection)
                continue
            self._resources.callback(connection.close)
            handshake = ListenerHandshake(CREDENTIALS, 1)
            while handshake.needed:
                connection.sendall(handshake.receive(connection.recv(handshake.needed, socket.MSG_WAITALL)))


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, acceptor_module._RESET_ON_CLOSE)
    connection.close()


def refuse(connection: socket.socket) -> None:
    connection.recv(88, socket.MSG_WAITALL)
    connection.close()


def other_program(connection: socket.socket) -> None:
    connection.sendall(b"x" * 40)
    refuse(connection)


NEW_HANDSHAKE = partial(DiallerHandshake, CREDENTIALS, 0, 1)


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_slot_dials_again_after_a_reset_with_growing_random_pauses(resources: ExitStack) -> None:
    pauses: list[float] = []
    listener = Listener(resources, [reset] * 8)
    dial("127.0.0.1", listener.port, NEW_HANDSHAKE, WAIT_S, "the driver", pauses.append).close()
    assert listener.attempts == 9
    bounds = [min(FIRST_REDIAL_S * 2**n, LONGEST_REDIAL_S) for n in range(8)]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))


def test_a_slot_gives_up_in_time_and_names_the_last_reason(resources: ExitStack) -> None:
    listener = Listener(resources, [reset] * 1000)
    # On a busy machine the reset may arrive before `connect` returns.
    with pytest.raises((HandshakeError, PeerLostError), match="refused the connection|cannot be reached"):
        dial("127.0.0.1", listener.port, NEW_HANDSHAKE, 0.2, "the driver")
    assert listener.attempts > 1


@pytest.mark.parametrize("end", [refuse, other_program])
def test_a_refusal_is_final(resources: ExitStack, end: Callable[[socket.socket], None]) -> None:
    """S9.2: a slot of another run ends at once."""
    listener = Listener(resources, [end])
    with pytest.raises(HandshakeError):
        dial("127.0.0.1", listener.port, NEW_HANDSHAKE, WAIT_S, "the driver")
    assert listener.attempts == 1


def test_an_address_where_nobody_listens_is_final() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    pauses: list[float] = []
    with pytest.raises(PeerLostError, match="the driver cannot be reached"):
        dial("127.0.0.1", port, NEW_HANDSHAKE, WAIT_S, "the driver", pauses.append)
    assert pauses == []
