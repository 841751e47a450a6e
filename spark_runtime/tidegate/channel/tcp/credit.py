"""Credit of one channel, in payload bytes of record batches: the sender's account and the receiver's. Pure.

Both accounts use one capacity and one overdraft, which is 0 but with unaligned checkpoints (S3.7). The sender has at
most capacity plus one batch outstanding, and the overdraft more while it may overdraw. The receiver tells what it
consumed as soon as that is a quarter of the capacity. That cannot block for ever: a sender that may not send has the
capacity outstanding, of which less than a quarter is consumed and untold, so that the rest is on its way to be
consumed, and told.

Each counter has one writing thread and only grows, so that no lock is needed.
"""

from __future__ import annotations

from tidegate.channel.failures import ProtocolError

GRANT_FRACTION = 4
"""A grant is sent for each 1/4 of the capacity consumed: few frames, and the sender never runs dry."""


class SenderCredit:
    """`sent` and `overdraw` are called by the slot's loop, `granted` by the I/O thread."""

    def __init__(self, capacity_bytes: int, overdraft_bytes: int = 0) -> None:
        self._capacity_bytes = capacity_bytes
        self._overdraft_bytes = overdraft_bytes
        self._limit_bytes = capacity_bytes
        self._sent_bytes = 0
        self._granted_bytes = 0

    @property
    def outstanding_bytes(self) -> int:
        """Sent and, as far as is known here, not consumed."""
        return self._sent_bytes - self._granted_bytes

    def has_capacity(self) -> bool:
        """Another batch may be sent."""
        return self._sent_bytes - self._granted_bytes < self._limit_bytes

    def overdraw(self, allowed: bool) -> None:
        """Count the overdraft to the capacity, or no longer."""
        self._limit_bytes = self._capacity_bytes + (self._overdraft_bytes if allowed else 0)

    def sent(self, size_bytes: int) -> None:
        """A batch goes out."""
        assert self.has_capacity(), "a record batch was sent on a channel without credit"
        self._sent_bytes += size_bytes

    def granted(self, size_bytes: int) -> None:
        """The receiver consumed that much more."""
        if size_bytes > self.outstanding_bytes:
            raise ProtocolError(f"credit for {size_bytes:,} bytes, {self.outstanding_bytes:,} outstanding")
        self._granted_bytes += size_bytes


class ReceiverCredit:
    """`arrived` is called by the I/O thread, `consumed` by the slot's loop."""

    def __init__(self, capacity_bytes: int, overdraft_bytes: int = 0) -> None:
        self._limit_bytes = capacity_bytes + overdraft_bytes
        self._grant_at_bytes = max(1, capacity_bytes // GRANT_FRACTION)
        self._arrived_bytes = 0
        self._consumed_bytes = 0
        self._granted_bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Arrived and not consumed."""
        return self._arrived_bytes - self._consumed_bytes

    def arrived(self, size_bytes: int) -> None:
        """A batch came in; what the sender asserted is checked again here, as if it always overdrew."""
        if self._arrived_bytes - self._granted_bytes >= self._limit_bytes:
            raise ProtocolError("the sender exceeds its credit", where=f"at most {self._limit_bytes:,} bytes")
        self._arrived_bytes += size_bytes

    def consumed(self, size_bytes: int) -> int:
        """A batch was taken. Returns what to grant now, 0 for not yet."""
        self._consumed_bytes += size_bytes
        untold = self._consumed_bytes - self._granted_bytes
        if untold < self._grant_at_bytes:
            return 0
        self._granted_bytes += untold
        return untold
