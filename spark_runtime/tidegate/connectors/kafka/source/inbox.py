"""Messages on their way from the thread of a consumer to the reader, by split."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 16 * 2**20
"""Bytes of values from which on the consumer waits for the reader: some batches, so that neither starves."""
MOST_MESSAGES = 65_536
"""The same for small messages, each of which costs some 300 bytes in Python."""


@dataclass(frozen=True)
class Received:
    """Messages of one split, in the order of their offsets.

    Attributes:
        reached: offset before which no other record exists that the reader has not received; None: unknown.
    """

    split_id: str
    messages: Sequence[Any]
    reached: int | None = None


class Inbox:
    """Holds messages for each split until the reader takes them. Thread-safe."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Args: wake: called when messages arrive after `take` has found none."""
        self._wake = wake
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Sequence[Any]]] = {}
        self._reached: dict[str, int] = {}
        self._messages = self._bytes = 0
        self._error: BaseException | None = None
        self._is_missed = False

    def put(self, split_id: str, messages: Sequence[Any], size_bytes: int) -> None:
        """Add messages of a split, with higher offsets than before."""
        with self._changed:
            self._waiting.setdefault(split_id, deque()).append(messages)
            self._messages += len(messages)
            self._bytes += size_bytes
            self._tell()

    def reached(self, split_id: str, offset: int) -> None:
        """Record that the partition has no further record before `offset`."""
        with self._changed:
            self._waiting.setdefault(split_id, deque())
            self._reached[split_id] = offset
            self._tell()

    def fail(self, error: BaseException) -> None:
        """Have the next `take` raise an error."""
        with self._changed:
            self._error = error
            self._tell()

    def _tell(self) -> None:
        if self._is_missed:
            self._is_missed = False
            self._wake()

    def take(self, most: int) -> Received | None:
        """Return at most so many messages of the split that has waited longest; None: there are none.

        Raises:
            Exception: what `fail` was called with.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            if not self._waiting:
                self._is_missed = True
                return None
            split_id = next(iter(self._waiting))
            chunks = self._waiting.pop(split_id)
            taken: list[Any] = []
            while chunks and len(taken) < most:
                chunk = chunks.popleft()
                room = most - len(taken)
                taken += chunk[:room]
                if len(chunk) > room:
                    chunks.appendleft(chunk[room:])
            if chunks:
                self._waiting[split_id] = chunks  # after the others, so that all splits advance
            # What is taken counts with the average size: its own is not worth the time.
            share = len(taken) / self._messages if self._messages else 1
            self._bytes -= int(self._bytes * share)
            self._messages -= len(taken)
            self._changed.notify_all()
            return Received(split_id, taken, None if chunks else self._reached.pop(split_id, None))

    def wait_for_room(self, limit_s: float) -> bool:
        """Wait until the reader has taken enough, and return whether it has."""
        with self._changed:
            return self._changed.wait_for(self._has_room, limit_s)

    def _has_room(self) -> bool:
        return self._messages < MOST_MESSAGES and self._bytes < MOST_BYTES
