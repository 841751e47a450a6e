"""Measures what jobs cost that run and get no rows: memory, CPU and threads of each, by part.

    python benchmarks/idle.py [--jobs 50] [--seconds 60]

Each job is its own Spark application with one slot on `local[1]` and a checkpoint every 10 s. Memory is the
proportional set size (PSS): a page that n processes share counts 1/n in each of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

from cpu_timeline import Process, processes
from start import ARCHIVE_S, PARTS, TICKS_PER_S
from tidegate_w1 import EXIT_TIMEOUT_S

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import LocalDriver, find_local_driver
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
    """Use of one part of a job: resident memory, CPU ticks so far, and threads."""

    pss_bytes: int = 0
    ticks: int = 0
    threads: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(self.pss_bytes + other.pss_bytes, self.ticks + other.ticks, self.threads + other.threads)


@dataclass(frozen=True)
class IdleJob:
    """Use of one idle job, by part: MiB, CPU seconds per minute, threads."""

    pss_mib: dict[str, float]
    cpu_s_per_min: dict[str, float]
    threads: dict[str, int]


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


@contextmanager
def running(root: Path, jobs: int) -> Iterator[list[int]]:
    """Start jobs, some at a time, and yield their drivers' pids when all run. Ends them afterwards."""
    started: list[tuple[JobClient, Spec]] = []
    try:
        while len(started) < jobs:
            begun = len(started)
            for number in range(begun, min(begun + AT_ONCE, jobs)):
                started.append(_start(root, number))
            for client, _ in started[begun:]:
                client.wait_status({"RUNNING"}, START_TIMEOUT, POLL_S)
        yield [_driver(client, spec).pid for client, spec in started]
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


def _driver(client: JobClient, spec: Spec) -> LocalDriver:
    found = find_local_driver(client.store, client.layout, spec.number)
    if found is None:
        raise SystemExit(f"the driver of {client.job_id} does not run")
    return found


def _start(root: Path, number: int) -> tuple[JobClient, Spec]:
    client = JobClient(str(root), f"idle-{number}")
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / 'idle.py'}:build",
        arguments={},
        options={"parallelism": 1, "checkpoint_interval": "10 s", "restart_attempts": 0},
        master="local[1]",
        submitted_by="benchmark",
    )
    launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable})
    return client, spec


def warm_up(folder: Path) -> None:
    """Run two jobs, one after the other: the first compiles kernels, the second creates the archive of classes when it
    ends. Neither is measured."""
    for number in range(2):
        with running(folder / f"warm-up-{number}", 1):
            pass
    time.sleep(ARCHIVE_S)


def measure(folder: Path, jobs: int, seconds: float, settle_s: float = SETTLE_S) -> list[IdleJob]:
    """Run jobs, and measure them while all are idle."""
    with running(folder / "jobs", jobs) as drivers:
        time.sleep(settle_s)
        first, first_s = used_by_part(drivers), time.monotonic()
        time.sleep(seconds)
        last, minutes = used_by_part(drivers), (time.monotonic() - first_s) / 60
    return [idle_job(first[driver], last[driver], minutes) for driver in drivers]


def idle_job(first: Mapping[str, Use], last: Mapping[str, Use], minutes: float) -> IdleJob:
    """Return what a job used between two samples. Raises SystemExit if one of its parts has ended, or began later."""
    missing = [part for part in PARTS if not (first[part].threads and last[part].threads)]
    if missing:
        raise SystemExit(f"a job has no {', '.join(missing)}: it does not run")
    return IdleJob(
        {part: last[part].pss_bytes / 2**20 for part in PARTS},
        {part: (last[part].ticks - first[part].ticks) / TICKS_PER_S / minutes for part in PARTS},
        {part: last[part].threads for part in PARTS},
    )


def medians(jobs: Sequence[IdleJob]) -> dict[str, dict[str, float]]:
    """Return what -> part -> median over the jobs."""
    return {
        what: {part: median(getattr(job, what)[part] for job in jobs) for part in PARTS}
        for what in ("pss_mib", "cpu_s_per_min", "threads")
    }


def table(jobs: Sequence[IdleJob]) -> list[str]:
    """Return the result as Markdown: medians over the jobs. "All" is the sum of the parts."""
    lines = [
        f"{len(jobs)} jobs without rows, one slot each, a checkpoint every 10 s. Median of a job:",
        "",
        "| | all | " + " | ".join(PARTS) + " |",
        "| --- | ---: |" + " ---: |" * len(PARTS),
    ]
    labels = {"pss_mib": "memory, MiB", "cpu_s_per_min": "CPU seconds per minute", "threads": "threads"}
    for what, values in medians(jobs).items():
        places = 2 if what == "cpu_s_per_min" else 0
        parts = " | ".join(f"{values[part]:.{places}f}" for part in PARTS)
        lines.append(f"| {labels[what]} | {sum(values.values()):.{places}f} | {parts} |")
    return lines


def main() -> int:
    """Run jobs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        warm_up(Path(folder))
        print("\n".join(table(measure(Path(folder), options.jobs, options.seconds))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
