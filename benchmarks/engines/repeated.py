"""Runs a query several times in one process, and prints the wall and CPU seconds of each run as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpu_timeline import CpuTimeline

SETTLE_S = 0.25
"""Seconds after a run in which the meter takes its last samples."""


def run_repeated(query: Callable[[], None], times: int) -> None:
    """Run the query, and print a list of [wall seconds, CPU seconds of this process and its children]."""
    found = []
    with CpuTimeline(os.getpid()) as timeline:
        for _ in range(times):
            time.sleep(SETTLE_S)
            begin = time.time()
            query()
            end = time.time()
            time.sleep(SETTLE_S)
            found.append((end - begin, timeline.between(begin, end)))
    print(json.dumps(found), flush=True)
