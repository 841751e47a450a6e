"""W1 on tidegate, through its public API: the pipeline in `pipelines/w1.py`, submitted by a JobClient and launched as a
detached driver with master local[2] and two slots, as `tidegate start` does."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cpu_timeline import CpuTimeline
from pipelines import w1 as pipeline
from w1_workload import MOST_ROWS, expected

from tidegate.errors import JobFailedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.records import Spec

PIPELINE = str(Path(__file__).parent / "pipelines" / "w1.py") + ":build"
FIRST_ROWS = 100_000_000
RUN_TIMEOUT = timedelta(minutes=15)
POLL_S = 0.5
EXIT_TIMEOUT_S = 40.0
"""How long a driver may take to end after its job has ended or it was stopped, seconds."""
MOST_RUNS = 5
"""How often the measured part is repeated with more rows if it was shorter than requested."""


@dataclass(frozen=True)
class Measured:
    """One run of N rows. `checkpoints`: completed periodic ones, `checkpoint_ms` their median duration."""

    rows: int
    wall_s: float
    cpu_s: float
    checkpoints: int
    checkpoint_ms: float
    result_rows: int


def run(root: str, rows: int, keys: int, checkpoint_interval: str | None) -> Measured:
    """Run W1 once and check every result row. Wall and CPU time are from the first record to the last written result.

    Raises:
        JobFailedError: the job did not finish, restarted, or its results are wrong.
    """
    with tempfile.TemporaryDirectory(prefix="w1-report-", dir=root) as report:
        client = JobClient(root, f"w1-{secrets.token_hex(4)}")
        spec = client.submit(
            pipeline=PIPELINE,
            arguments={"rows": rows, "keys": keys, "report": report},
            options={"parallelism": 2, "checkpoint_interval": checkpoint_interval, "restart_attempts": 0},
            master="local[2]",
            submitted_by="benchmark",
        )
        with driver(client, spec) as pid, CpuTimeline(pid) as timeline:
            view = client.wait_status({"FINISHED"}, RUN_TIMEOUT, POLL_S)
        start_s, end_s, totals = _reports(Path(report))
        if view.restarts:
            raise JobFailedError(f"the job restarted {view.restarts} times", where=client.job_id)
        check(rows, keys, totals)
        periodic = [c for c in view.completed if c.kind == "checkpoint"]
        return Measured(
            rows=rows,
            wall_s=end_s - start_s,
            cpu_s=timeline.between(start_s, end_s),
            checkpoints=len(periodic),
            checkpoint_ms=float(np.median([c.duration_ms or 0 for c in periodic])) if periodic else 0.0,
            result_rows=totals["result_rows"],
        )


@contextmanager
def driver(client: JobClient, spec: Spec) -> Iterator[int]:
    """Run a driver and yield its pid; end it afterwards, also if the benchmark is interrupted."""
    launch = launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable})
    assert launch.pid is not None
    try:
        yield launch.pid
    finally:
        left = find_local_driver(client.store, client.layout, spec.number)
        if left is not None and not client.view().is_terminal:
            left.kill()
        by_s = time.monotonic() + EXIT_TIMEOUT_S
        while left is not None and left.is_running() and time.monotonic() < by_s:
            time.sleep(0.1)  # a driver writes its last hint after the job has ended


def _reports(folder: Path) -> tuple[float, float, dict[str, int]]:
    """Return (first record, last record, sums over the sinks' subtasks); times in Unix seconds."""
    reports: Mapping[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(folder.iterdir())}
    sources = [facts for name, facts in reports.items() if name.startswith("source-")]
    sinks = [facts for name, facts in reports.items() if name.startswith("sink-")]
    if len(sources) != 2 or len(sinks) != 2:
        raise JobFailedError(f"{len(sources)} sources and {len(sinks)} sinks reported instead of 2 and 2")
    totals = {name: sum(facts[name] for facts in sinks) for name in ("result_rows", "counted", "total", "fingerprint")}
    totals["fingerprint"] %= 2**64
    return min(facts["first_s"] for facts in sources), max(facts["last_s"] for facts in sinks), totals


def check(rows: int, keys: int, totals: Mapping[str, int]) -> None:
    """Compare the fingerprint of all result rows, and their sums, with the closed form. Raises JobFailedError."""
    want = {"result_rows": 0, "counted": 0, "total": 0, "fingerprint": 0}
    for window in expected(rows, keys):
        start_us = np.full(len(window.keys), window.start_ms * 1000, dtype=np.int64)
        columns = [np.array(column) for column in (window.keys, start_us, window.counts, window.sums)]
        for column in columns:
            column.flags.writeable = False
        want["result_rows"] += len(window.keys)
        want["counted"] += int(window.counts.sum())
        want["total"] += int(window.sums.sum())
        want["fingerprint"] = (want["fingerprint"] + int(pipeline.fingerprint(*columns))) % 2**64
    if want != dict(totals):
        raise JobFailedError("the results are wrong", cause=f"expected {want}, got {dict(totals)}")


def measure(root: str, keys: int, seconds: float, checkpoint_interval: str | None = "1 s") -> Measured:
    """Find the speed, then measure for at least `seconds`."""
    os.makedirs(root, exist_ok=True)
    rows, last = FIRST_ROWS, 0.0
    for _ in range(MOST_RUNS):
        measured = run(root, rows, keys, checkpoint_interval)
        last = measured.wall_s
        if last >= seconds or rows == MOST_ROWS // 2 * 2:
            return measured
        # A short run is mostly start-up, so the number of rows grows at most tenfold at once.
        rows = min(int(rows * min(10.0, 1.25 * seconds / last)) // 2 * 2, MOST_ROWS // 2 * 2)
    raise JobFailedError(f"no run lasted {seconds} s; the last one {last:.1f} s")
