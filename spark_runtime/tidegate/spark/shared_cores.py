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


class CpuWait:
    """The time that a thread has waited for a core. Its file stays open, because a source asks at every emission."""

    def __init__(self) -> None:
        """Call it on the thread in question."""
        try:
            self._descriptor = os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not Linux, or a kernel without these statistics
            self._descriptor = -1

    def ms(self) -> int:
        """Return the time since the start of the thread, milliseconds; 0 if unknown."""
        if self._descriptor < 0:
            return 0
        times = os.pread(self._descriptor, 128, 0).split()
        return int(times[1]) // 1_000_000 if len(times) > 1 else 0  # some containers have the file, but empty

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
