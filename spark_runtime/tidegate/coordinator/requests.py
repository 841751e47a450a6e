"""The bounded queue of snapshot requests and their order (S1.2)."""

from __future__ import annotations

from tidegate.coordinator.events import Request


def _rank(request: Request) -> tuple[int, int]:
    """Final before user before periodic; savepoint before checkpoint."""
    who = 0 if request.kind == "final" else 2 if request.periodic else 1
    what = 0 if request.kind in ("savepoint", "stop-savepoint") else 1
    return (who, what)


class RequestQueue:
    """At most `limit` requests; first in first out within one rank."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sequence = 0
        self._waiting: list[tuple[tuple[int, int], int, Request]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def has_periodic(self) -> bool:
        """A periodic request waits already."""
        return any(r.periodic for _, _, r in self._waiting)

    def add(self, request: Request) -> Request | None:
        """Queue `request`; the request that falls out when the queue is full, the new one included, or None."""
        self._sequence += 1
        self._waiting.append((_rank(request), self._sequence, request))
        self._waiting.sort(key=lambda entry: entry[:2])
        if len(self._waiting) > self._limit:
            return self._waiting.pop()[2]
        return None

    def peek(self) -> Request | None:
        """The next request, left in place."""
        return self._waiting[0][2] if self._waiting else None

    def take(self, request: Request) -> None:
        """Remove exactly this request object."""
        for k, (_, _, waiting) in enumerate(self._waiting):
            if waiting is request:
                del self._waiting[k]
                return

    def savepoints(self) -> list[Request]:
        """Waiting savepoints of all kinds, in order."""
        return [r for _, _, r in self._waiting if r.kind in ("savepoint", "stop-savepoint")]

    def drain(self) -> list[Request]:
        """Take everything out, in order."""
        out = [r for _, _, r in self._waiting]
        self._waiting.clear()
        return out
