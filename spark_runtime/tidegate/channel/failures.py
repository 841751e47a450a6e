"""Errors of the connections between two processes of one run."""

from __future__ import annotations

from tidegate.errors import TidegateError

SAME_VERSION = "Check that the driver and all executors have the same version of tidegate. If so, report this error"


class ChannelError(TidegateError):
    """A connection of this run cannot be used as requested."""

    code = "channel"


class ProtocolError(ChannelError):
    """The other side is authenticated, but violated the wire format. The run must fail."""

    code = "protocol"

    def __init__(self, what: str, *, where: str = "", cause: str = "", remedy: str = SAME_VERSION) -> None:
        super().__init__(what, where=where, cause=cause, remedy=remedy)


class PeerLostError(ChannelError, ConnectionError):
    """The other side is lost. Usually a consequence: the root cause is the other side's own failure (S9.1)."""

    code = "peer_lost"


class HandshakeError(ChannelError, ConnectionError):
    """A connection was refused before it was authenticated.

    `reason`: one of a fixed set of texts, which are counted.
    """

    code = "handshake"

    def __init__(self, reason: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(
            "the connection between two processes of the job was refused", where=where, cause=reason, remedy=remedy
        )
        self.reason = reason
