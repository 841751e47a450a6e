"""CPU seconds used by a whole process tree over time, from /proc (Linux)."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

SAMPLE_PERIOD_S = 0.1
"""Interval of the samples, seconds. CPU between two samples is interpolated, so a time is accurate to this interval:
under 1 % of a measured part of 30 s. If no process waits for a process, its use after its last sample is lost, at most
this much of one core.
"""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One row of the process table.

    Attributes:
        pid: reused by the system, so a process is identified by `pid` and `started` together.
        started: start time, ticks since boot.
        own: ticks of user and system time that it used itself.
        reaped: ticks of its ended children that it waited for, including the ticks of their own children.
    """

    pid: int
    started: int
    parent: int
    own: int
    reaped: int


def _process(pid: int) -> Process | None:
    """Read one process from /proc; None if it no longer exists."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            text = stat.read()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command's name may contain spaces and parentheses
    user, system, children_user, children_system = (int(ticks) for ticks in fields[11:15])
    return Process(pid, int(fields[19]), int(fields[1]), user + system, children_user + children_system)


def processes() -> list[Process]:
    """Return every process on this machine."""
    found = (_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


class _Known:
    """A process of the tree, alive or ended, as of the last sample."""

    __slots__ = ("alive", "children", "seen")

    def __init__(self, seen: Process) -> None:
        self.seen = seen
        self.alive = True
        self.children: list[_Known] = []

    def total(self) -> int:
        """Return the ticks of this process and all its descendants.

        Ended children count with their last sample, or with the ticks credited to their parent, whichever is more. A
        parent that ignores SIGCHLD, as PySpark's daemon does, is credited nothing; a child that lived between two
        samples was not sampled.
        """
        alive = sum(child.total() for child in self.children if child.alive)
        ended = sum(child.total() for child in self.children if not child.alive)
        return self.seen.own + alive + max(self.seen.reaped, ended)


class ProcessTree:
    """CPU use of one process tree, from samples of the process table; it never decreases, whichever process ends.

    Args:
        root: pid of the tree's root. The tree is empty until a sample shows it.
    """

    def __init__(self, root: int) -> None:
        self._root_pid = root
        self._root: _Known | None = None
        self._known: dict[tuple[int, int], _Known] = {}

    def sample(self, table: Iterable[Process]) -> int:
        """Add a sample of the process table, and return the ticks of the whole tree so far.

        A process that lost its parent stays at its first position in the tree.
        """
        now = {(process.pid, process.started): process for process in table}
        for key, known in self._known.items():
            known.alive = key in now
            known.seen = now.get(key, known.seen)
        new = {process.pid: process for key, process in now.items() if key not in self._known}
        if self._root is None and self._root_pid in new:
            self._root = self._add(new.pop(self._root_pid))
        alive = {known.seen.pid: known for known in self._known.values() if known.alive}
        added = True
        while added:  # parents before their children, whatever the order of the table
            added = False
            for pid in [pid for pid, process in new.items() if process.parent in alive]:
                known = self._add(new.pop(pid))
                alive[known.seen.parent].children.append(known)
                alive[pid] = known
                added = True
        return 0 if self._root is None else self._root.total()

    def _add(self, process: Process) -> _Known:
        known = self._known[(process.pid, process.started)] = _Known(process)
        return known


class CpuTimeline:
    """Samples one process tree in a background thread while the `with` block runs.

    Args:
        root: pid of the tree's root.
    """

    def __init__(self, root: int) -> None:
        self._tree = ProcessTree(root)
        self._at_s: list[float] = []
        self._cpu_s: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="cpu-timeline", daemon=True)

    def __enter__(self) -> CpuTimeline:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_PERIOD_S):
            ticks = self._tree.sample(processes())
            if ticks:
                self._at_s.append(time.time())
                self._cpu_s.append(ticks / _TICKS_PER_S)

    def add(self, at_s: float, cpu_s: float) -> None:
        """Add one sample manually, in ascending order of time."""
        self._at_s.append(at_s)
        self._cpu_s.append(cpu_s)

    def cpu_at(self, at_s: float) -> float:
        """Return CPU seconds used up to a wall-clock time (Unix seconds), interpolated. Raises ValueError outside the
        samples."""
        right = bisect_left(self._at_s, at_s)
        if right == len(self._at_s) or (right == 0 and self._at_s[0] != at_s):
            raise ValueError(f"no CPU sample on both sides of {at_s:.3f}; there are {len(self._at_s)} samples")
        if right == 0:
            return self._cpu_s[0]
        left = right - 1
        share = (at_s - self._at_s[left]) / (self._at_s[right] - self._at_s[left])
        return self._cpu_s[left] + share * (self._cpu_s[right] - self._cpu_s[left])

    @property
    def used_s(self) -> float:
        """Return the CPU seconds of the tree from the start of the process to the last sample."""
        return self._cpu_s[-1] if self._cpu_s else 0.0

    def between(self, start_s: float, end_s: float) -> float:
        """Return CPU seconds used between two times."""
        return self.cpu_at(end_s) - self.cpu_at(start_s)
