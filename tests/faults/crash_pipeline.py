"""The crash matrix's job on real Spark. Driver and slots load this file; it puts the points into their processes, and
one of them kills, once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crash_points import INSTALLED, Points
from crash_scenarios import into, sink_of

from tidegate import Pipeline


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: target (see `sink_of`), rows, rate, fault: {point, victim, after, folder}."""
    if not INSTALLED:  # a worker that is used again has loaded this file before
        fault = Fault(**args["fault"])
        points = Points(fault.at)
        points.everywhere()
        if fault.is_driver:
            points.on_spark()
        INSTALLED.append(points)
    return into(lambda name: sink_of(args["target"], name), int(args["rows"]), float(args["rate"]))


class Fault:
    """Kills the victim at the first point of this name that a process meets after another; once in the job's life."""

    def __init__(self, point: str, victim: str, after: str, folder: str) -> None:
        """Args: victim: "driver" or "subtask"; this process, if it is one. after: empty: from the start.
        folder: shared by the job's processes: who they are, and whether it has struck."""
        self.is_driver = getattr(sys.modules["__main__"].__spec__, "name", "") == "tidegate.spark.driver"
        self._point, self._victim, self._after, self._folder = point, victim, after, Path(folder)
        self._is_armed = not after
        self._lock = threading.Lock()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / ("driver" if self.is_driver else "slot")).write_text(str(os.getpid()))

    def at(self, name: str) -> None:
        """See crash_points."""
        with self._lock:
            if not self._is_armed or name != self._point:
                self._is_armed = self._is_armed or name == self._after
                return
            try:
                os.close(os.open(self._folder / "struck", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            of_this_kind = self.is_driver == (self._victim == "driver")
            other = "driver" if self._victim == "driver" else "slot"
            pid = os.getpid() if of_this_kind else int((self._folder / other).read_text())
            os.kill(pid, signal.SIGKILL)
