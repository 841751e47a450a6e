"""Measures what hundreds of deferred Airflow tasks cost a triggerer. See README.md.

    python benchmarks/airflow_waiters.py [--write] [--seconds 180]

Prints a table and, last, `waiters <waiters> jobs <jobs> cpu <percent of a core> requests <per minute>`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
SOURCES = [str(HERE), *(str(REPOSITORY / name) for name in ("spark_runtime", "provider"))]
sys.path[:0] = SOURCES

from results import RESULTS, machine, write_section  # noqa: E402

from tidegate.clock import now_iso, parse_iso, utc_now  # noqa: E402
from tidegate.jobs.client.job_client import JobClient  # noqa: E402
from tidegate.jobs.decision_log import DecisionLog, GenerationLog  # noqa: E402
from tidegate.jobs.records import StatusHint, encode  # noqa: E402
from tidegate.jobs.stores.local_disk import LocalStore  # noqa: E402

HEADING = "## Waiting in the triggerer"
JOBS = 50
HISTORY = 100
"""Checkpoints in every log before the measured part starts."""
HEARTBEAT_S = 1.0
CHECKPOINT_INTERVAL_S = 30.0
WARM_UP_S = 20.0
"""Time before the measured part: logs are read for the first time, and the pauses grow."""
POLL_OPERATOR_S = 1.0
POLL_SENSOR_S = 5.0
"""Default poll intervals of operators and sensors."""
REQUESTS = ("read", "list", "exists", "walk", "create", "replace", "delete")


# ------------------------------------------------------------ living jobs, in a process of their own


@dataclass
class FakeDriver:
    """Writes the records of a driver: a hint each second, and sometimes a checkpoint."""

    client: JobClient
    generation_log: GenerationLog
    beats: int = 0
    checkpoints: int = 0

    @classmethod
    def begin(cls, client: JobClient) -> FakeDriver:
        """Start a new generation of the job's submission."""
        log = DecisionLog(client.store, client.layout, now_iso, lambda: secrets.token_hex(16))
        made = cls(client, log.begin_generation(spec=1, launch=1))
        made.generation_log.append("status", {"status": "RUNNING"})
        return made

    def beat(self) -> None:
        """Replace the hint."""
        self.beats += 1
        source = {"boundedness": "unbounded", "records": self.beats * 1000}
        data = {"sources": {"flights": source}, "watermark_us": self.beats * 1_000_000}
        hint = StatusHint(self.generation_log.generation, self.beats, "r", now_iso(), data)
        self.client.store.replace(self.client.layout.status(self.generation_log.generation), encode(hint))

    def checkpoint(self) -> None:
        """Write a checkpoint: claimed, completed, committed."""
        self.checkpoints += 1
        path = self.client.layout.checkpoint(self.checkpoints, self.generation_log.generation)
        facts = {"checkpoint_id": self.checkpoints, "kind": "checkpoint", "path": path}
        self.generation_log.append("claim", {**facts, "triggered_at": now_iso()})
        self.generation_log.append("complete", {**facts, "metrics": {"duration_ms": 7}, "parent": None})
        self.generation_log.append("committed", {"checkpoint_id": self.checkpoints})


def drive(root: str) -> None:
    """Run forever. Prints a line when every job has its history."""
    drivers = [FakeDriver.begin(JobClient(root, job_id)) for job_id in job_ids()]
    for driver in drivers:
        driver.beat()
        for _ in range(HISTORY):
            driver.checkpoint()
    print("ready", flush=True)
    turn_s = HEARTBEAT_S / len(drivers)
    each = round(CHECKPOINT_INTERVAL_S / HEARTBEAT_S)
    due = time.monotonic()
    for turn in itertools.count():
        number = turn % len(drivers)
        drivers[number].beat()
        if (turn // len(drivers) + number) % each == 0:
            drivers[number].checkpoint()
        due += turn_s
        time.sleep(max(0.0, due - time.monotonic()))


def job_ids() -> list[str]:
    """Return the ids of all jobs."""
    return [f"job-{number:02}" for number in range(JOBS)]


# ------------------------------------------------------------ waiting


@dataclass
class Measured:
    """Results of the measured part."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    delays_s: list[float] = field(default_factory=list)
    """Time from a checkpoint's completion to the event of the trigger that waited for it."""
    waiters: int = 0
    blocked_s: float = 0.0
    """Longest time for which the event loop was blocked."""

    @property
    def cpu_percent(self) -> float:
        """Return the CPU use in percent of one core."""
        return 100 * self.cpu_s / self.seconds


@contextmanager
def counted(requests: Counter[str]) -> Iterator[None]:
    """Count the requests of this process to the store."""

    def counting(name: str, real: Any) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            requests[name] += 1
            return real(self, *arguments)

        return call

    originals = {name: getattr(LocalStore, name) for name in REQUESTS}
    for name, real in originals.items():
        setattr(LocalStore, name, counting(name, real))
    try:
        yield
    finally:
        for name, real in originals.items():
            setattr(LocalStore, name, real)


async def wait_on(root: str, seconds: float) -> Measured:
    """Run four triggers on each job, as a triggerer does."""
    from airflow_tidegate.triggers.job_triggers import TRIGGERS
    from airflow_tidegate.waits.job_waits import CheckpointWait, CommandWait, EndOfDataWait, StatusWait, Wait

    measured = Measured()

    def trigger(job_id: str, wait: Wait, poll_s: float) -> Any:
        return TRIGGERS[wait.kind](root=root, job_id=job_id, wait=wait.fields(), poll_s=poll_s)

    async def hold(job_id: str, wait: Wait, poll_s: float) -> None:
        async for event in trigger(job_id, wait, poll_s).run():
            raise AssertionError(f"{job_id}: {event.payload}")

    async def checkpoints(job_id: str) -> None:
        """Wait for one checkpoint after another, with a sensor for each."""
        newest = HISTORY
        while True:
            event = await anext(trigger(job_id, CheckpointWait(newer_than=newest), POLL_SENSOR_S).run())
            found = event.payload["found"]
            newest = found["checkpoint_id"]
            measured.delays_s.append((utc_now() - parse_iso(found["completed_at"])).total_seconds())

    async def watchdog() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            measured.blocked_s = max(measured.blocked_s, time.monotonic() - before - 0.1)

    tasks = [asyncio.create_task(watchdog())]
    for job_id in job_ids():
        tasks += [
            asyncio.create_task(hold(job_id, StatusWait(spec=1, statuses=("FINISHED",)), POLL_OPERATOR_S)),
            asyncio.create_task(hold(job_id, CommandWait(command_id="never"), POLL_OPERATOR_S)),
            asyncio.create_task(hold(job_id, EndOfDataWait(), POLL_SENSOR_S)),
            asyncio.create_task(checkpoints(job_id)),
        ]
    measured.waiters = len(tasks) - 1
    with counted(measured.requests):
        await asyncio.sleep(WARM_UP_S)
        measured.requests.clear()
        measured.delays_s.clear()
        measured.blocked_s = 0.0
        began, cpu = time.monotonic(), cpu_s()
        await asyncio.sleep(seconds)
        measured.seconds, measured.cpu_s = time.monotonic() - began, cpu_s() - cpu
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return measured


def cpu_s() -> float:
    """Return user and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(folder: Path, seconds: float) -> Measured:
    """Run jobs, their drivers, and their waiters."""
    root = folder / "root"
    pipeline = folder / "pipe.py"
    pipeline.write_text("def build(args):\n    raise AssertionError('never run')\n", encoding="utf-8")
    for job_id in job_ids():
        JobClient(str(root), job_id).submit(pipeline=f"{pipeline}:build", submission_id="s")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    driving = subprocess.Popen(
        [sys.executable, __file__, "--drive", str(root)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert driving.stdout is not None
        if driving.stdout.readline().strip() != "ready":
            raise SystemExit("the process with the fake drivers ended")
        return asyncio.run(wait_on(str(root), seconds))
    finally:
        driving.kill()
        driving.wait()


def report(measured: Measured) -> list[str]:
    """Return the lines of the section."""
    from airflow_tidegate.waits.job_reader import LIVENESS_REQUESTS, REQUESTS_PER_READ
    from airflow_tidegate.waits.shared_reader import MAX_PAUSE_S, MIN_PAUSE_S

    minutes = measured.seconds / 60
    total = sum(measured.requests.values())
    delays = sorted(measured.delays_s)
    cells = [
        f"{measured.waiters} | {JOBS} | {measured.cpu_percent:.1f}",
        f"{total / minutes:,.0f} | {total / minutes / JOBS:.0f}",
        f"{statistics.median(delays):.1f} s | {delays[int(len(delays) * 0.95)]:.1f} s | {delays[-1]:.1f} s",
    ]
    bound = round(60 / MIN_PAUSE_S * JOBS * (REQUESTS_PER_READ + 1))
    return [
        "| waiters | jobs | CPU, % of one core | requests a minute | a job and minute | noticed after, median | 95 % "
        "| longest |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {' | '.join(cells)} |",
        "",
        f"Four triggers a job - status, command, end of data, next checkpoint - for {measured.seconds:.0f} s in one "
        "event loop;",
        f"a heartbeat each {HEARTBEAT_S:g} s, a checkpoint each {CHECKPOINT_INTERVAL_S:g} s, {HISTORY * 3:,} entries "
        "in each log to begin with, the root on a local disk.",
        f"Pauses between looks are {MIN_PAUSE_S:g} s after a change and up to {MAX_PAUSE_S:g} s while nothing "
        "changes. However much changes, looks cost no more",
        f"than {bound:,} requests a minute here: one look a second and job, {REQUESTS_PER_READ} requests each, and one "
        "for the command waited for. Besides, each entry of a",
        "log is read once, a wait that begins looks at once, and a driver without a sign of life costs "
        f"{LIVENESS_REQUESTS} more a look.",
        f"The event loop was late by {1000 * measured.blocked_s:.0f} ms at most.",
        "",
        f"{machine()}. `python benchmarks/airflow_waiters.py`.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--seconds", type=float, default=180.0, help="measured part")
    parser.add_argument("--drive", metavar="ROOT", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.drive:
        drive(given.drive)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="tidegate-waiters-") as folder:
        os.environ.setdefault("AIRFLOW_HOME", folder)
        measured = run(Path(folder), given.seconds)
    lines = report(measured)
    print("\n".join(lines))
    if given.write:
        write_section(HEADING, lines)
    total = sum(measured.requests.values())
    print(
        f"waiters {measured.waiters} jobs {JOBS} cpu {measured.cpu_percent:.1f} "
        f"requests {60 * total / measured.seconds:.0f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
