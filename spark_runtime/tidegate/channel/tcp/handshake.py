"""Authenticate connections: a mutual HMAC-SHA256 challenge on the secret of the run, as two pure state machines.

    dialler                                   listener
    hello: its identity, nonce       ->       refuses another version, role, generation, run or target
                                    <-        challenge: nonce
    proof over hello and challenge   ->       refuses a wrong proof, then calls `admit`
                                    <-        proof over the same, with another label

Every message has a fixed size, so that a stranger can make the listener store at most 88 bytes. Both proofs cover role,
generation, run id, both slots and both nonces. Their labels differ, so that neither proof can be used as the other.
After the handshake the connection is neither encrypted nor signed. The secret keeps strangers and zombies (S9.2) out,
but does not protect against an attacker who can modify packets in transit.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from tidegate.channel.failures import HandshakeError

MAGIC = b"TDGT"
WIRE_VERSION = 3
"""Version of handshake, frames and control messages together. Both sides must have the same version."""
NONCE_BYTES = 32
PROOF_BYTES = 32
DRIVER = 2**32 - 1
"""The driver's number, in the place of a slot number."""

_HELLO = struct.Struct("<4sHBBQII32s32s")
_CHALLENGE = struct.Struct("<4sHH32s")
_DIALLER_LABEL = b"tidegate dialler v1"
_LISTENER_LABEL = b"tidegate listener v1"


class Role(IntEnum):
    """The purpose of a connection."""

    DATA = 1
    CONTROL = 2


@dataclass(frozen=True)
class Credentials:
    """Properties that both sides of a connection must agree on.

    Attributes:
        role: data or control.
        generation: generation of the driver.
        run_id: run within the generation.
        secret: secret of this run, at least 16 bytes; not in the repr.
    """

    role: Role
    generation: int
    run_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.secret) >= 16, "a run's secret has at least 16 bytes"

    def run_digest(self) -> bytes:
        """Return the SHA-256 of the run id: 32 bytes for any length of the id."""
        return hashlib.sha256(self.run_id.encode()).digest()

    def proof(self, label: bytes, hello: bytes, challenge: bytes) -> bytes:
        """Return the HMAC-SHA256 over label, hello and challenge, all of known length."""
        return hmac.digest(self.secret, label + hello + challenge, "sha256")


class DiallerHandshake:
    """The side that connects. Send `hello`, then pass exactly `needed` bytes to `receive` until `needed` is 0."""

    def __init__(
        self, credentials: Credentials, slot: int, target: int, nonce: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        """Args: slot: the dialler's own number. target: the listener's number, or `DRIVER`."""
        self._credentials = credentials
        self.hello = _HELLO.pack(
            MAGIC,
            WIRE_VERSION,
            credentials.role,
            0,
            credentials.generation,
            slot,
            target,
            credentials.run_digest(),
            nonce(NONCE_BYTES),
        )
        self._challenge = b""
        self.needed = _CHALLENGE.size

    def receive(self, data: bytes) -> bytes:
        """Process `needed` bytes and return the bytes to send.

        Raises:
            HandshakeError: the listener does not belong to this run.
        """
        assert len(data) == self.needed, f"{len(data)} bytes received, {self.needed} needed"
        if not self._challenge:
            magic, version, _, _ = _CHALLENGE.unpack(data)
            if magic != MAGIC:
                raise HandshakeError("no tidegate process listens at this address")
            if version != WIRE_VERSION:
                raise HandshakeError("the other process has another version of tidegate")
            self._challenge = data
            self.needed = PROOF_BYTES
            return self._credentials.proof(_DIALLER_LABEL, self.hello, data)
        expected = self._credentials.proof(_LISTENER_LABEL, self.hello, self._challenge)
        # Compared in constant time, so that the duration does not reveal how many bytes of a guess are right.
        if not hmac.compare_digest(expected, data):
            raise HandshakeError("the other process does not know the secret of this run")
        self.needed = 0
        return b""


class ListenerHandshake:
    """The listening side. Pass exactly `needed` bytes to `receive` until `needed` is 0; then `slot` is set."""

    def __init__(
        self,
        credentials: Credentials,
        own: int,
        admit: Callable[[int], str | None] = lambda slot: None,
        nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Args: own: this side's slot number, or `DRIVER`. admit: called with the proven number; a returned text
        refuses it.
        """
        self._credentials = credentials
        self._own = own
        self._admit = admit
        self._nonce = nonce
        self._hello = b""
        self._challenge = b""
        self.slot = -1
        self.needed = _HELLO.size

    @property
    def knows_run(self) -> bool:
        """True when the dialler has sent a valid hello, which names the run. It need not know the secret."""
        return bool(self._hello)

    def receive(self, data: bytes) -> bytes:
        """Process `needed` bytes and return the bytes to send.

        Raises:
            HandshakeError: the dialler does not belong to this run, or is not admitted. Send no answer; close.
        """
        assert len(data) == self.needed, f"{len(data)} bytes received, {self.needed} needed"
        if not self._hello:
            self._check(data)
            self._hello = data
            self._challenge = _CHALLENGE.pack(MAGIC, WIRE_VERSION, 0, self._nonce(NONCE_BYTES))
            self.needed = PROOF_BYTES
            return self._challenge
        expected = self._credentials.proof(_DIALLER_LABEL, self._hello, self._challenge)
        if not hmac.compare_digest(expected, data):
            raise HandshakeError("the other process does not know the secret of this run")
        slot = _HELLO.unpack(self._hello)[5]
        # Called after the proof, so that a stranger can neither take a slot's place nor learn which slots are
        # connected.
        refusal = self._admit(slot)
        if refusal is not None:
            raise HandshakeError(refusal)
        self.slot = slot
        self.needed = 0
        return self._credentials.proof(_LISTENER_LABEL, self._hello, self._challenge)

    def _check(self, hello: bytes) -> None:
        magic, version, role, _, generation, _, target, run_digest, _ = _HELLO.unpack(hello)
        own = self._credentials
        if magic != MAGIC:
            raise HandshakeError("the other process is not tidegate")
        if version != WIRE_VERSION:
            raise HandshakeError("the other process has another version of tidegate")
        if role != own.role:
            raise HandshakeError("the other process requests another kind of connection")
        if generation != own.generation:
            raise HandshakeError(
                "the other process belongs to an older generation"
                if generation < own.generation
                else "the other process belongs to a newer generation"
            )
        if run_digest != own.run_digest():
            raise HandshakeError("the other process belongs to another run")
        if target != self._own:
            raise HandshakeError("the connection is meant for another slot")
