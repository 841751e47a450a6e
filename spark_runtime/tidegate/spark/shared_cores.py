"""Effects on a slot that shares its cores with other slots of its host."""

from __future__ import annotations

import os

SWITCH_INTERVAL_S = 0.0005
"""Seconds between switches of Python threads. A busy loop must not starve the socket thread.

At Python's default of 5 ms, throughput falls by orders of magnitude.
"""
MOST_SWITCH_INTERVAL_S = 0.01
"""The same with many slots for each core."""
_SCHEDULED = "/proc/thread-self/schedstat"


def switch_interval_s(slots: int, cores: int) -> float:
    """Return the time between switches of Python threads, seconds.

    A thread that waits for the interpreter wakes up after each interval. If the thread that holds it waits for a core,
    because other slots have them all, nothing has changed, and the wake-up takes a core from a slot that could use it.
    So the interval grows with the time that a thread waits for a core. With 32 slots on two cores, this saves three
    quarters of the switches between processes.

    Args:
        slots: slots on this host.
        cores: cores that they share.
    """
    return min(MOST_SWITCH_INTERVAL_S, SWITCH_INTERVAL_S * max(1.0, slots / cores))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_wait_ms() -> int:
    """Return how long the calling thread has waited for a core since its start, milliseconds; 0 if unknown."""
    try:
        with open(_SCHEDULED, encoding="ascii") as file:
            return int(file.read().split()[1]) // 1_000_000
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel without these statistics
        return 0
