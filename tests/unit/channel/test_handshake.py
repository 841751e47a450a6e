"""Who may connect (S9.2): the two state machines of the handshake, without sockets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tidegate.channel.failures import HandshakeError
from tidegate.channel.tcp.handshake import DRIVER, WIRE_VERSION, Credentials, DiallerHandshake, ListenerHandshake, Role

OURS = Credentials(Role.DATA, generation=3, run_id="run-7", secret=b"s" * 32)


def shake(dialler: DiallerHandshake, listener: ListenerHandshake, tamper: Callable[[bytes], bytes] = bytes) -> None:
    """Carry every message across; `tamper` sees those of the dialler."""
    message = dialler.hello
    while dialler.needed:
        message = dialler.receive(listener.receive(tamper(message)))


def test_two_sides_of_one_run_accept_each_other() -> None:
    dialler, listener = DiallerHandshake(OURS, 1, 2), ListenerHandshake(OURS, 2)
    shake(dialler, listener)
    assert (dialler.needed, listener.needed, listener.slot) == (0, 0, 1)


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (replace(OURS, secret=b"t" * 32), "does not know the secret"),
        (replace(OURS, generation=2), "older generation"),
        (replace(OURS, generation=4), "newer generation"),
        (replace(OURS, run_id="run-6"), "another run"),
        (replace(OURS, role=Role.CONTROL), "another kind of connection"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_listener_refuses_a_dialler_that_differs(theirs: Credentials, reason: str) -> None:
    listener = ListenerHandshake(OURS, 2)
    with pytest.raises(HandshakeError, match=reason):
        shake(DiallerHandshake(theirs, 1, 2), listener)
    assert listener.slot == -1


def test_a_listener_refuses_a_dialler_that_looks_for_somebody_else() -> None:
    with pytest.raises(HandshakeError, match="meant for another slot"):
        shake(DiallerHandshake(OURS, 1, DRIVER), ListenerHandshake(OURS, 2))


def test_a_listener_refuses_a_stranger_and_another_version() -> None:
    hello = DiallerHandshake(OURS, 1, 2).hello
    with pytest.raises(HandshakeError, match="not tidegate"):
        ListenerHandshake(OURS, 2).receive(b"GET " + hello[4:])
    with pytest.raises(HandshakeError, match="another version"):
        ListenerHandshake(OURS, 2).receive(hello[:4] + struct.pack("<H", WIRE_VERSION + 1) + hello[6:])


@pytest.mark.parametrize("position", [16, 87], ids=["slot", "nonce"])
def test_a_hello_changed_on_its_way_breaks_the_proof(position: int) -> None:
    def tamper(message: bytes) -> bytes:
        if len(message) != 88:
            return message
        return message[:position] + bytes([message[position] ^ 1]) + message[position + 1 :]

    with pytest.raises(HandshakeError, match="does not know the secret"):
        shake(DiallerHandshake(OURS, 1, 2), ListenerHandshake(OURS, 2), tamper)


def test_a_dialler_refuses_a_listener_without_the_secret() -> None:
    dialler = DiallerHandshake(OURS, 1, 2)
    impostor = ListenerHandshake(replace(OURS, secret=b"t" * 32), 2)
    proof = dialler.receive(impostor.receive(dialler.hello))
    with pytest.raises(HandshakeError, match="does not know the secret"):
        dialler.receive(proof)  # the best a listener without the secret has: our own proof, sent back
    with pytest.raises(HandshakeError, match="no tidegate"):
        DiallerHandshake(OURS, 1, 2).receive(b"HTTP" + bytes(36))


def test_a_proof_overheard_earlier_is_worth_nothing() -> None:
    dialler = DiallerHandshake(OURS, 1, 2)
    proof = dialler.receive(ListenerHandshake(OURS, 2).receive(dialler.hello))
    again = ListenerHandshake(OURS, 2)
    again.receive(dialler.hello)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        again.receive(proof)


def test_a_listener_asks_admit_only_when_the_proof_is_right() -> None:
    asked: list[int] = []

    def admit(slot: int) -> str | None:
        asked.append(slot)
        return "no place"

    with pytest.raises(HandshakeError, match="does not know the secret"):
        shake(DiallerHandshake(replace(OURS, secret=b"t" * 32), 1, 2), ListenerHandshake(OURS, 2, admit))
    assert asked == []
    with pytest.raises(HandshakeError, match="no place"):
        shake(DiallerHandshake(OURS, 1, 2), ListenerHandshake(OURS, 2, admit))
    assert asked == [1]


def test_the_secret_shows_in_no_repr() -> None:
    assert "ssss" not in repr(OURS)
