"""Credit of one channel, in payload bytes of record batches: the sender's account and the receiver's. Pure.

Both accounts use the same capacity and overdraft. The overdraft is 0 except with unaligned checkpoints (S3.7). The
sender has at most the capacity plus one batch outstanding, and the overdraft in addition while it may overdraw. The
receiver reports consumed bytes as soon as they reach a quarter of the capacity.

This cannot block permanently: if a sender may not send, the full capacity is outstanding. Less than a quarter of it is
consumed and not reported. The rest is still to be consumed, and is then reported.

Each counter has one writing thread and only grows, so that no lock is needed.
"""

from __future__ import annotations

from tidegate.channel.failures import ProtocolError

GRANT_FRACTION = 4
"""A grant is sent for each 1/4 of the capacity consumed: few frames, and the sender never runs out of credit."""


class SenderCredit:
    """The sender's account. The slot's loop calls `sent` and `overdraw`, the I/O thread `granted`."""

    def __init__(self, capacity_bytes: int, overdraft_bytes: int = 0) -> None:
        self._capacity_bytes = capacity_bytes
        self._overdraft_bytes = overdraft_bytes
        self._limit_bytes = capacity_bytes
        self._sent_bytes = 0
        self._granted_bytes = 0

    @property
    def outstanding_bytes(self) -> int:
        """Bytes that are sent and not known to be consumed."""
        return self._sent_bytes - self._granted_bytes

    def has_capacity(self) -> bool:
        """Return whether another batch may be sent."""
        return self._sent_bytes - self._granted_bytes < self._limit_bytes

    def overdraw(self, allowed: bool) -> None:
        """Add the overdraft to the capacity, or remove it."""
        self._limit_bytes = self._capacity_bytes + (self._overdraft_bytes if allowed else 0)

    def sent(self, size_bytes: int) -> None:
        """Record a sent batch."""
        assert self.has_capacity(), "a record batch was sent on a channel without credit"
        self._sent_bytes += size_bytes

    def granted(self, size_bytes: int) -> None:
        """Record that the receiver has consumed this many more bytes."""
        if size_bytes > self.outstanding_bytes:
            raise ProtocolError(
                f"internal error: a slot reports {size_bytes:,} consumed bytes, but only {self.outstanding_bytes:,} "
                "bytes were sent and not consumed"
            )
        self._granted_bytes += size_bytes


class ReceiverCredit:
    """The receiver's account. The I/O thread calls `arrived`, the slot's loop `consumed`."""

    def __init__(self, capacity_bytes: int, overdraft_bytes: int = 0) -> None:
        self._limit_bytes = capacity_bytes + overdraft_bytes
        self._grant_at_bytes = max(1, capacity_bytes // GRANT_FRACTION)
        self._arrived_bytes = 0
        self._consumed_bytes = 0
        self._granted_bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes that have arrived and are not consumed."""
        return self._arrived_bytes - self._consumed_bytes

    def arrived(self, size_bytes: int) -> None:
        """Record an arrived batch. Checks the sender's credit again, as if the sender always overdrew."""
        # Checked before the batch is added, as in `has_capacity`, because one batch may exceed the limit.
        if self._arrived_bytes - self._granted_bytes >= self._limit_bytes:
            raise ProtocolError(
                "internal error: a slot sent more bytes than the receiver has allowed",
                where=f"at most {self._limit_bytes:,} bytes",
            )
        self._arrived_bytes += size_bytes

    def consumed(self, size_bytes: int) -> int:
        """Record a consumed batch. Return the bytes to grant now, or 0 to wait."""
        self._consumed_bytes += size_bytes
        untold = self._consumed_bytes - self._granted_bytes
        if untold < self._grant_at_bytes:
            return 0
        self._granted_bytes += untold
        return untold
