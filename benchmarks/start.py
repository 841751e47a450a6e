"""CPU seconds from `start` to a job's first result, by part, beside a plain PySpark session.

Run it as `python benchmarks/start.py`. The runs alternate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median

from cpu_timeline import Process, processes
from tidegate_w1 import driver

from tidegate.jobs.client.job_client import JobClient

HERE = Path(__file__).parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PARTS = ("driver", "JVM", "daemon", "workers")
TIMEOUT_S = 120.0
ARCHIVE_S = 20.0
"""Time in which an ended JVM writes its archive, and after which it is used, seconds."""
PYSPARK = """
import sys, time

from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()
Path(sys.argv[1]).touch()
time.sleep(1000)
"""


def used_by_part(root: int) -> dict[str, float]:
    """Return the CPU seconds of a driver, its JVM, the daemon of Python workers and the workers, until now.

    A process includes its ended children that it waited for, such as the JVM that prints Spark's command line.
    """
    table = {process.pid: process for process in processes()}

    def depth(process: Process) -> int | None:
        steps = 0
        while process.pid != root:
            parent = table.get(process.parent)
            if parent is None:
                return None
            process, steps = parent, steps + 1
        return steps

    used = dict.fromkeys(PARTS, 0.0)
    for process in table.values():
        steps = depth(process)
        if steps is not None:
            used[PARTS[min(steps, len(PARTS) - 1)]] += (process.own + process.reaped) / TICKS_PER_S
    return used


def wait_for(first: Path) -> None:
    """Wait for the first result."""
    by_s = time.monotonic() + TIMEOUT_S
    while not first.exists():
        if time.monotonic() > by_s:
            raise SystemExit(f"no result after {TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def run_tidegate(work: Path) -> tuple[float, dict[str, float]]:
    """Start a job, and end it after its first result. Returns wall seconds and CPU seconds."""
    first = work / f"first-{time.time_ns()}"
    client = JobClient(str(work / "jobs"), first.name)
    begin = time.monotonic()
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / 'start.py'}:build",
        arguments={"first": str(first)},
        options={"parallelism": 2, "checkpoint_interval": "1 s", "restart_attempts": 0},
        master="local[2]",
        submitted_by="benchmark",
    )
    with driver(client, spec) as pid:
        wait_for(first)
        found = time.monotonic() - begin, used_by_part(pid)
        client.send("cancel", issued_by="benchmark")
        client.wait_status({"CANCELED"}, timedelta(minutes=1), 0.1)
    return found


def run_pyspark(work: Path) -> tuple[float, dict[str, float]]:
    """Start a session, and run one task with Python workers. Returns wall seconds and CPU seconds."""
    first = work / f"first-{time.time_ns()}"
    begin = time.monotonic()
    with (
        open(work / "log", "ab") as log,
        subprocess.Popen(
            [sys.executable, "-c", PYSPARK, str(first)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        ) as process,
    ):
        try:
            wait_for(first)
            return time.monotonic() - begin, used_by_part(process.pid)
        finally:
            process.terminate()


Found = dict[str, list[tuple[float, dict[str, float]]]]
"""Name -> (wall seconds, CPU seconds of each part) of each run."""


def measure(folder: Path, repeat: int, warm_up: int) -> Found:
    """Start both in turn. The first runs, `warm_up` in number, do not count: they compile kernels and create the
    archive of classes."""
    engines = {"tidegate": run_tidegate, "PySpark": run_pyspark}
    found: Found = {name: [] for name in engines}
    for number in range(warm_up):
        run_tidegate(folder)
        time.sleep(ARCHIVE_S if number else 0)
    for _ in range(repeat):
        for name, run in engines.items():
            found[name].append(run(folder))
    return found


def median_cpu_s(runs: Sequence[tuple[float, dict[str, float]]]) -> float:
    """Return the median of the CPU seconds of all parts."""
    return median(sum(used.values()) for _, used in runs)


def table(found: Found) -> list[str]:
    """Return the result as Markdown."""
    lines = ["| | seconds | CPU seconds | " + " | ".join(PARTS) + " | each run |"]
    lines.append("| --- | ---: | ---: |" + " ---: |" * len(PARTS) + " --- |")
    for name, runs in found.items():
        parts = " | ".join(f"{median(used[part] for _, used in runs):.1f}" for part in PARTS)
        each = ", ".join(f"{sum(used.values()):.1f}" for _, used in runs)
        wall = median(wall for wall, _ in runs)
        lines.append(f"| {name} | {wall:.1f} | {median_cpu_s(runs):.1f} | {parts} | {each} |")
    return lines


def main() -> int:
    """Run both several times, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        print("\n".join(table(measure(Path(folder), options.repeat, warm_up=2))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
