"""The bounded queue of snapshot requests and their order (S1.2)."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from typing import NamedTuple

from tidegate.coordinator.events import SnapshotRequest


def _rank(request: SnapshotRequest) -> tuple[int, int]:
    """Return the rank of a request: final before user before periodic, then savepoint before checkpoint.

    A stop that has ended the data is as urgent as a final snapshot. It must not fall out of a full queue, because the
    job would end without its savepoint (S7.7).
    """
    who = 0 if request.kind == "final" or request.data_ended else 2 if request.periodic else 1
    what = 0 if request.kind in ("savepoint", "stop-savepoint") else 1
    return (who, what)


class _Place(NamedTuple):
    """A request with its sort key: rank, then order of arrival."""

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
        """Return whether a periodic request is waiting."""
        return bool(self._count["periodic"])

    def add(self, request: SnapshotRequest) -> SnapshotRequest | None:
        """Queue `request`. Return the request that falls out of a full queue (possibly `request` itself), or None."""
        self._sequence += 1
        # Requests themselves cannot be compared. The sequence keeps the order of arrival within a rank.
        insort(self._waiting, _Place(_rank(request), self._sequence, request), key=lambda place: place[:2])
        self._note(request, 1)
        if len(self._waiting) <= self._limit:
            return None
        last = self._waiting.pop().request
        self._note(last, -1)
        return last

    def peek(self) -> SnapshotRequest | None:
        """Return the next request without removing it."""
        return self._waiting[0].request if self._waiting else None

    def next(self, *, full: bool) -> SnapshotRequest | None:
        """Return the first request, without removing it.

        `full`: the maximum number of snapshots is pending. Then the first savepoint precedes, because the limit does
        not apply to savepoints (S1.2).
        """
        first = self.peek()
        if first is None or not full or first.kind in ("savepoint", "stop-savepoint"):
            return first
        return next(iter(self.savepoints()), first)

    def take(self, request: SnapshotRequest) -> None:
        """Remove this request object, compared by identity."""
        for k, place in enumerate(self._waiting):
            if place.request is request:
                del self._waiting[k]
                self._note(request, -1)
                return

    def savepoints(self) -> list[SnapshotRequest]:
        """Return waiting savepoints and stop-savepoints, in order."""
        if not self._count["savepoint"]:
            return []
        return [p.request for p in self._waiting if p.request.kind in ("savepoint", "stop-savepoint")]

    def drain(self) -> list[SnapshotRequest]:
        """Remove and return all requests, in order."""
        out = [place.request for place in self._waiting]
        self._waiting.clear()
        self._count.clear()
        return out

    def _note(self, request: SnapshotRequest, change: int) -> None:
        self._count["periodic"] += change * request.periodic
        self._count["savepoint"] += change * (request.kind in ("savepoint", "stop-savepoint"))
