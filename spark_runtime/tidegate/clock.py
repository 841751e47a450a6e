"""Wall-clock times as the job directory writes them: ISO 8601, UTC, milliseconds. For people; nothing is decided by
them. And the clock by which something is decided: one that nobody can set."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime


def utc_now() -> datetime:
    """The current time, with zone UTC."""
    return datetime.now(UTC)


def steady_clock(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> Callable[[], int]:
    """A clock of this process: milliseconds since the epoch, as the wall clock had them now, plus what the monotonic
    clock has run since. Setting the wall clock moves no timeout and no pause."""
    began_ns = wall_ns() - monotonic_ns()
    return lambda: (began_ns + monotonic_ns()) // 1_000_000


def iso(moment: datetime) -> str:
    """`2026-11-21T09:25:00.000Z`. `moment` must carry a zone."""
    assert moment.tzinfo is not None, "a time without zone"
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_iso() -> str:
    """The current time as text."""
    return iso(utc_now())


def parse_iso(text: str) -> datetime:
    """Inverse of `iso`; a text without zone counts as UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def elapsed_ms(start: str, end: str) -> int | None:
    """Milliseconds from `start` to `end`, None when either is not a time."""
    try:
        return round((parse_iso(end) - parse_iso(start)).total_seconds() * 1000)
    except ValueError:
        return None
