"""What can go wrong between two processes of one run."""

from __future__ import annotations

from tidegate.errors import TidegateError


class ChannelError(TidegateError):
    """A connection of this run cannot be used as asked."""

    code = "channel"


class ProtocolError(ChannelError):
    """The other side, though authenticated, sent what the wire format does not allow; the run must fail."""

    code = "protocol"


class PeerLostError(ChannelError, ConnectionError):
    """The other side is gone. Mostly a consequence: its own failure is the root cause (S9.1)."""

    code = "peer_lost"


class HandshakeError(ChannelError, ConnectionError):
    """A connection was refused before it was authenticated. `reason`: one of the fixed words that are counted."""

    code = "handshake"

    def __init__(self, reason: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__("the handshake failed", where=where, cause=reason, remedy=remedy)
        self.reason = reason
