"""The bounded queue of snapshot requests and their order (S1.2)."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import NamedTuple

from tidegate.coordinator.events import SnapshotRequest


def _rank(request: SnapshotRequest) -> tuple[int, int]:
    """Final before user before periodic; savepoint before checkpoint. A stop that has ended the data is as urgent as a
    final one, and must not fall out of a full queue: the job would end without it (S7.7)."""
    who = 0 if request.kind == "final" or request.data_ended else 2 if request.periodic else 1
    what = 0 if request.kind in ("savepoint", "stop-savepoint") else 1
    return (who, what)


class _Place(NamedTuple):
    """A request's place: by rank, then in order of arrival."""

    rank: tuple[int, int]
    sequence: int
    request: SnapshotRequest


class RequestQueue:
    """At most `limit` requests; first in first out within one rank."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sequence = 0
        self._waiting: list[_Place] = []
        self._count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def has_periodic(self) -> bool:
        """A periodic request waits already."""
        return bool(self._count["periodic"])

    def add(self, request: SnapshotRequest) -> SnapshotRequest | None:
        """Queue `request`; the request that falls out when the queue is full, the new one included, or None."""
        self._sequence += 1
        insort(self._waiting, _Place(_rank(request), self._sequence, request), key=lambda place: place[:2])
        self._note(request, 1)
        if len(self._waiting) <= self._limit:
            return None
        last = self._waiting.pop().request
        self._note(last, -1)
        return last

    def peek(self) -> SnapshotRequest | None:
        """The next request, left in place."""
        return self._waiting[0].request if self._waiting else None

    def next(self, *, full: bool) -> SnapshotRequest | None:
        """The first in order; with `full`, as many pending as may be, the first that is forced past that (S1.2)."""
        first = self.peek()
        if first is None or not full or first.kind in ("savepoint", "stop-savepoint"):
            return first
        return next(iter(self.savepoints()), first)

    def take(self, request: SnapshotRequest) -> None:
        """Remove exactly this request object."""
        for k, place in enumerate(self._waiting):
            if place.request is request:
                del self._waiting[k]
                self._note(request, -1)
                return

    def savepoints(self) -> list[SnapshotRequest]:
        """Waiting savepoints of all kinds, in order."""
        if not self._count["savepoint"]:
            return []
        return [p.request for p in self._waiting if p.request.kind in ("savepoint", "stop-savepoint")]

    def drain(self) -> list[SnapshotRequest]:
        """Take everything out, in order."""
        out = [place.request for place in self._waiting]
        self._waiting.clear()
        self._count.clear()
        return out

    def _note(self, request: SnapshotRequest, change: int) -> None:
        self._count["periodic"] += change * request.periodic
        self._count["savepoint"] += change * (request.kind in ("savepoint", "stop-savepoint"))
