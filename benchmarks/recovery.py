"""Measures the time from the death of a worker or of the driver until rows reach all sinks again.

A job with two slots, 20,000 rows per second and a checkpoint every second runs on `local[2]` with the default options;
`tidegate agent` supervises it. Each measurement kills a process with SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine_runs import HERE

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.desired_state import request_running
from tidegate.jobs.launches import find_local_driver

SLOTS = 2
MOST_S = 180.0
SETTLE_S = 5.0
"""Seconds from the first rows to the next death, in which checkpoints complete."""
POLL_S = 0.02


def measure(folder: Path, repeat: int) -> dict[str, list[float]]:
    """Return the seconds from each death until the sinks of all subtasks have rows again, by who died."""
    report = folder / "report"
    report.mkdir()
    client = JobClient(str(folder / "jobs"), "recovery")
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / 'recovery.py'}:build",
        arguments={"report": str(report)},
        options={"parallelism": SLOTS, "checkpoint_interval": "1 s"},
        master=f"local[{SLOTS}]",
        submitted_by="benchmark",
    )
    request_running(client, spec, by="benchmark")
    command = [sys.executable, "-m", "tidegate.cli.main", "agent", "--root", str(folder / "jobs")]
    log = open(folder / "agent.log", "ab")  # noqa: SIM115
    agent = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYSPARK_PYTHON": sys.executable})
    found: dict[str, list[float]] = {"worker": [], "driver": []}
    try:
        writers = _writers_since(report, 0.0)
        for _ in range(repeat):
            for victim in found:
                time.sleep(SETTLE_S)
                if victim == "worker":
                    pid = writers[0]
                else:
                    driver = find_local_driver(client.store, client.layout, spec.number)
                    assert driver is not None
                    pid = driver.pid
                killed_s = time.time()
                os.kill(pid, signal.SIGKILL)
                writers = _writers_since(report, killed_s)
                seconds = max(_first_s(report, killed_s).values()) - killed_s
                found[victim].append(seconds)
                print(f"{victim}: {seconds:.1f} s", file=sys.stderr, flush=True)
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        log.close()
        left = find_local_driver(client.store, client.layout, spec.number)
        if left is not None:
            left.kill(signal.SIGKILL)
    return found


def _facts(report: Path, since_s: float) -> dict[int, dict[str, float]]:
    facts = [json.loads(path.read_text()) for path in report.glob("*.json")]
    return {int(f["subtask"]): f for f in sorted(facts, key=lambda f: f["first_s"]) if f["first_s"] > since_s}


def _first_s(report: Path, since_s: float) -> dict[int, float]:
    return {subtask: facts["first_s"] for subtask, facts in _facts(report, since_s).items()}


def _writers_since(report: Path, since_s: float) -> list[int]:
    """Wait for rows in every subtask after a time; return their processes."""
    by_s = time.monotonic() + MOST_S
    while len(found := _facts(report, since_s)) < SLOTS:
        if time.monotonic() > by_s:
            raise SystemExit(f"no rows in all {SLOTS} subtasks within {MOST_S:.0f} s")
        time.sleep(POLL_S)
    return [int(found[subtask]["pid"]) for subtask in range(SLOTS)]
