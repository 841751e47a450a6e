"""Wall-clock times in the job directory's format, and the clock that timeouts use.

The format is ISO 8601 in UTC with milliseconds. These times are for readers: no decision depends on them. Decisions use
`steady_clock`, which does not jump when somebody sets the system time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the current time, with zone UTC."""
    return datetime.now(UTC)


def steady_clock(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> Callable[[], int]:
    """Return a clock for this process: it returns milliseconds since the epoch.

    It reads the wall clock once, now, and adds the time that the monotonic clock has measured since. If somebody sets
    the system time, timeouts and pauses keep their length.
    """
    began_ns = wall_ns() - monotonic_ns()
    return lambda: (began_ns + monotonic_ns()) // 1_000_000


def iso(moment: datetime) -> str:
    """Format a time as `2026-11-21T09:25:00.000Z`. `moment` must have a time zone."""
    assert moment.tzinfo is not None, "a time without zone"
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now_iso() -> str:
    """Return the current time in the format of `iso`."""
    return iso(utc_now())


def parse_iso(text: str) -> datetime:
    """Parse the format of `iso`. A text without a zone is read as UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def elapsed_ms(start: str, end: str) -> int | None:
    """Return the milliseconds from `start` to `end`; None when one of them is not a time."""
    try:
        return round((parse_iso(end) - parse_iso(start)).total_seconds() * 1000)
    except ValueError:
        return None
