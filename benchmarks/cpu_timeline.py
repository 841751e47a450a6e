"""CPU seconds used by a whole process tree over time, from /proc (Linux)."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from types import TracebackType

SAMPLE_PERIOD_S = 0.1
"""How often the tree is sampled, seconds. CPU at an instant between two samples is interpolated, so an instant is known
to this grain: under 1 % of a measured part of 30 s."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> tuple[int, int] | None:
    """(parent pid, utime + stime + cutime + cstime in ticks) of one process; None when it has gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            text = stat.read()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command's name may hold blanks and brackets
    return int(fields[1]), sum(int(ticks) for ticks in fields[11:15])


def processes() -> dict[int, tuple[int, int]]:
    """pid -> (parent pid, ticks with those of its reaped children) of every process on this machine."""
    found = {int(name): _stat_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: fields for pid, fields in found.items() if fields is not None}


def tree_ticks(root: int, table: Mapping[int, tuple[int, int]]) -> int:
    """Ticks of `root` and all its living descendants, each with its reaped children: nobody is counted twice, because a
    living child is in no `cutime` yet, and nobody who was waited for is forgotten."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    total, left = 0, [root] if root in table else []
    while left:
        pid = left.pop()
        total += table[pid][1]
        left.extend(children.get(pid, ()))
    return total


class CpuTimeline:
    """Samples one process tree in a background thread while the `with` block runs.

    Args:
        root: pid of the tree's root.
    """

    def __init__(self, root: int) -> None:
        self._root = root
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
            ticks = tree_ticks(self._root, processes())
            if ticks:
                self._at_s.append(time.time())
                self._cpu_s.append(ticks / _TICKS_PER_S)

    def add(self, at_s: float, cpu_s: float) -> None:
        """Add one sample by hand, in ascending order of time."""
        self._at_s.append(at_s)
        self._cpu_s.append(cpu_s)

    def cpu_at(self, at_s: float) -> float:
        """CPU seconds used up to a wall-clock instant (Unix seconds), interpolated. ValueError outside the samples."""
        right = bisect_left(self._at_s, at_s)
        if right == len(self._at_s) or (right == 0 and self._at_s[0] != at_s):
            raise ValueError(f"no CPU sample on both sides of {at_s:.3f}; there are {len(self._at_s)} samples")
        if right == 0:
            return self._cpu_s[0]
        left = right - 1
        share = (at_s - self._at_s[left]) / (self._at_s[right] - self._at_s[left])
        return self._cpu_s[left] + share * (self._cpu_s[right] - self._cpu_s[left])

    def between(self, start_s: float, end_s: float) -> float:
        """CPU seconds used from one instant to another."""
        return self.cpu_at(end_s) - self.cpu_at(start_s)
