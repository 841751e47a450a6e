"""Measures what jobs cost that run and get no rows: memory, CPU and threads of each, by part.

    python benchmarks/idle.py [--jobs 50] [--seconds 60]

Each job is its own Spark application with one slot on `local[1]` and a checkpoint every 10 s. Memory is the
proportional set size (PSS): a page that n processes share counts 1/n in each of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

from cpu_timeline import Process, processes
from start import PARTS, TICKS_PER_S
from tidegate_w1 import EXIT_TIMEOUT_S

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.records import Spec

HERE = Path(__file__).resolve().parent
AT_ONCE = 2
"""Jobs that start at the same time: more would only wait for the cores."""
START_TIMEOUT = timedelta(minutes=5)
SETTLE_S = 30.0
"""Seconds between the last start and the measurement, in which Java's compiler comes to rest."""
POLL_S = 0.5


@dataclass(frozen=True)
class Use:
    """What one part of a job uses: resident memory, CPU ticks so far, and threads."""

    pss_bytes: int = 0
    ticks: int = 0
    threads: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(self.pss_bytes + other.pss_bytes, self.ticks + other.ticks, self.threads + other.threads)


@dataclass(frozen=True)
class IdleJob:
    """What one job uses while it is idle, by part: MiB, CPU seconds per minute, threads."""

    pss_mib: dict[str, float]
    cpu_s_per_min: dict[str, float]
    threads: dict[str, int]


@dataclass
class IdleJobs:
    """All jobs of one run, and the memory of the machine that they take."""

    jobs: list[IdleJob] = field(default_factory=list)
    available_mib: float = 0.0


def used_by_part(roots: Sequence[int]) -> dict[int, dict[str, Use]]:
    """Return what the process trees of these drivers use now: pid of the driver -> part -> use."""
    table = {process.pid: process for process in processes()}
    found = {root: dict.fromkeys(PARTS, Use()) for root in roots}
    for process in table.values():
        steps, at = 0, process
        while at.pid not in found and at.parent in table:
            at, steps = table[at.parent], steps + 1
        if at.pid in found:
            part = PARTS[min(steps, len(PARTS) - 1)]
            found[at.pid][part] += _use(process)
    return found


def _use(process: Process) -> Use:
    folder = Path("/proc") / str(process.pid)
    try:
        rows = dict(line.split(":", 1) for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    except OSError:  # it has ended
        return Use()
    return Use(int(rows["Pss"].split()[0]) * 1024, process.own + process.reaped, int(status["Threads"]))


def available_bytes() -> int:
    """Return the memory that the machine can still give to processes."""
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024


@contextmanager
def running(root: Path, jobs: int, environment: dict[str, str] | None = None) -> Iterator[list[int]]:
    """Start jobs, some at a time, and yield their drivers' pids when all run. Ends them afterwards."""
    started: list[tuple[JobClient, Spec]] = []
    try:
        while len(started) < jobs:
            batch = [_start(root, len(started) + i, environment) for i in range(min(AT_ONCE, jobs - len(started)))]
            started += batch
            for client, _ in batch:
                client.wait_status({"RUNNING"}, START_TIMEOUT, POLL_S)
        drivers = [find_local_driver(client.store, client.layout, spec.number) for client, spec in started]
        yield [driver.pid for driver in drivers if driver is not None]
    finally:
        left = []
        for client, spec in started:
            found = find_local_driver(client.store, client.layout, spec.number)
            if found is not None:
                client.send("cancel", issued_by="benchmark")
                left.append(found)
        by_s = time.monotonic() + EXIT_TIMEOUT_S + jobs
        for driver in left:
            while driver.is_running() and time.monotonic() < by_s:
                time.sleep(POLL_S)
            if driver.is_running():
                driver.kill()


def _start(root: Path, number: int, environment: dict[str, str] | None) -> tuple[JobClient, Spec]:
    client = JobClient(str(root), f"idle-{number}")
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / 'idle.py'}:build",
        arguments={},
        options={"parallelism": 1, "checkpoint_interval": "10 s", "restart_attempts": 0},
        master="local[1]",
        submitted_by="benchmark",
    )
    launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable, **(environment or {})})
    return client, spec


def measure(folder: Path, jobs: int, seconds: float) -> IdleJobs:
    """Run jobs, and measure them while all are idle."""
    before = available_bytes()
    with running(folder / f"jobs-{time.time_ns()}", jobs) as drivers:
        time.sleep(SETTLE_S)
        if len(drivers) != jobs:
            raise SystemExit(f"only {len(drivers)} of {jobs} drivers are running")
        first, first_s = used_by_part(drivers), time.monotonic()
        time.sleep(seconds)
        last, minutes = used_by_part(drivers), (time.monotonic() - first_s) / 60
        found = IdleJobs(available_mib=(before - available_bytes()) / 2**20)
    for driver in drivers:
        uses = last[driver]
        found.jobs.append(
            IdleJob(
                {part: uses[part].pss_bytes / 2**20 for part in PARTS},
                {part: (uses[part].ticks - first[driver][part].ticks) / TICKS_PER_S / minutes for part in PARTS},
                {part: uses[part].threads for part in PARTS},
            )
        )
    return found


def table(found: IdleJobs) -> list[str]:
    """Return the result as Markdown: medians over the jobs."""
    jobs = found.jobs
    memory = {part: median(job.pss_mib[part] for job in jobs) for part in PARTS}
    cpu = {part: median(job.cpu_s_per_min[part] for job in jobs) for part in PARTS}
    threads = {part: median(job.threads[part] for job in jobs) for part in PARTS}
    lines = ["| per job | all | " + " | ".join(PARTS) + " |", "| --- | ---: |" + " ---: |" * len(PARTS)]
    for label, values, places in (
        ("memory, MiB", memory, 0),
        ("CPU seconds per minute", cpu, 2),
        ("threads", threads, 0),
    ):
        parts = " | ".join(f"{values[part]:.{places}f}" for part in PARTS)
        lines.append(f"| {label} | {sum(values.values()):.{places}f} | {parts} |")
    return [
        *lines,
        "",
        f"{len(jobs)} jobs. They took {found.available_mib / len(jobs):.0f} MiB each of the machine's available memory.",
    ]


def main() -> int:
    """Run jobs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        print("\n".join(table(measure(Path(folder), options.jobs, options.seconds))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
