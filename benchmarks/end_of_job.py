"""Measures the time from the last record to "all committed", for chains of two-phase-commit sinks. See README.md.

    python benchmarks/end_of_job.py [--write]

Prints a table and, last, for each kind of sink `end <sink> 1=<ms> 3=<ms> 6=<ms> ratio=<6 stages in 1>`. Takes some ten
minutes on an idle machine, with --in-process one.
"""

from __future__ import annotations

import argparse
import itertools
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from checkout import HERE
from pipelines import end_of_job as pipeline
from results import RESULTS, machine, write_section

from tidegate.clock import parse_iso
from tidegate.errors import JobFailedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.records import Decision
from tidegate.spark.slot_entry import SNAPSHOT_WRITERS
from tidegate.testing.in_process_job import InProcessJob

PIPELINE = str(HERE / "pipelines" / "end_of_job.py") + ":build"
STAGES = (1, 3, 6)
ROUNDS = 7
ROWS = 20_000
HEADING = "## End of a job"
RUN_TIMEOUT = timedelta(minutes=5)
POLL_S = 0.2
EXIT_TIMEOUT_S = 40.0
"""How long a driver may take to end after its job, seconds."""


@dataclass(frozen=True)
class Case:
    """One job to run. `folder`: for its output."""

    sink: str
    stages: int
    folder: Path

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the pipeline."""
        report, out = self.folder / "report", self.folder / "out"
        report.mkdir(exist_ok=True)
        return {"stages": self.stages, "rows": ROWS, "sink": self.sink, "report": str(report), "out": str(out)}


def on_spark(case: Case) -> Sequence[Decision]:
    """Run the case as a Spark job, as `tidegate start` does; return its decision log."""
    root = str(case.folder / "root")
    client = JobClient(root, f"end-{secrets.token_hex(4)}")
    spec = client.submit(
        pipeline=PIPELINE,
        arguments=case.arguments,
        options={"parallelism": pipeline.SOURCES, "restart_attempts": 0},
        master=f"local[{pipeline.SOURCES}]",
        submitted_by="benchmark",
    )
    launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable})
    try:
        client.wait_status({"FINISHED"}, RUN_TIMEOUT, POLL_S)
    finally:
        left = find_local_driver(client.store, client.layout, spec.number)
        if left is not None and not client.view().is_terminal:
            left.kill()
        by_s = time.monotonic() + EXIT_TIMEOUT_S
        while left is not None and left.is_running() and time.monotonic() < by_s:
            time.sleep(0.1)
    return client.decisions()


def in_process(case: Case) -> Sequence[Decision]:
    """Run the case in this process: real coordinator, slot, writer threads and a job directory on disk, without Spark
    and sockets. Return its decision log."""
    job = InProcessJob(
        lambda: pipeline.build(case.arguments), {"parallelism": pipeline.SOURCES}, root=str(case.folder / "root")
    )
    job.now_ms = time.time_ns() // 1_000_000
    run = job.submit()
    with ThreadPoolExecutor(SNAPSHOT_WRITERS * pipeline.SOURCES) as writers:  # as many as the slots have
        run.slot._writers = writers
        while run.outcome is None:
            if not run.pump():
                run.slot._wake.wait(run.slot._sleep_s())
            job.now_ms = time.time_ns() // 1_000_000
    return job.log.read()


def measure(case: Case, runner: Callable[[Case], Sequence[Decision]]) -> float:
    """Return the milliseconds from the last record to the log entry that says that everything is committed.

    Raises:
        JobFailedError: the job did not finish, took more or fewer than one snapshot, or committed other rows.
    """
    log = runner(case)
    kinds = [d.kind for d in log if d.kind in ("complete", "abort", "committed")]
    if kinds != ["complete", "committed"]:
        raise JobFailedError(f"one snapshot and its commit were expected, the log has {kinds}")
    for n in range(case.stages):
        found = committed_rows(case.sink, case.folder / "out" / f"stage-{n}")
        if found != ROWS:
            raise JobFailedError(f"stage {n} of {case.stages} has committed {found} rows of {ROWS}")
    last_ns = max(int(path.read_text()) for path in (case.folder / "report").iterdir())
    committed_at = next(d.at for d in log if d.kind == "committed")
    return parse_iso(committed_at).timestamp() * 1000 - last_ns / 1e6


def committed_rows(sink: str, folder: Path) -> int:
    """Return how many rows a stage has committed."""
    if sink == "waiting":
        return sum(int(path.read_text()) for path in folder.iterdir())
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


Measured = Mapping[tuple[str, int], Sequence[float]]
"""(sink, stages) -> milliseconds of every round."""


def table(measured: Measured) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| sinks | stages | ms, median | in that of one stage | fastest | slowest |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (sink, stages), times in measured.items():
        median, one = statistics.median(times), statistics.median(measured[sink, min(n for _, n in measured)])
        lines.append(f"| {sink} | {stages} | {median:.0f} | {median / one:.2f} | {min(times):.0f} | {max(times):.0f} |")
    return lines


def last_line(sink: str, measured: Measured) -> str:
    """Return `end <sink> <stages>=<median ms> ... ratio=<most stages in fewest>`."""
    medians = {stages: statistics.median(times) for (of, stages), times in measured.items() if of == sink}
    figures = " ".join(f"{stages}={ms:.0f}" for stages, ms in medians.items())
    return f"end {sink} {figures} ratio={medians[max(medians)] / medians[min(medians)]:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="time from the last record to 'all committed' by number of stages")
    parser.add_argument("--stages", type=int, nargs="*", default=list(STAGES))
    parser.add_argument("--sinks", nargs="*", choices=sorted(pipeline.SINKS), default=sorted(pipeline.SINKS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"jobs of each kind (default: {ROUNDS})")
    parser.add_argument("--in-process", action="store_true", help="without Spark")
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    args = parser.parse_args(argv)
    cases = list(itertools.product(args.sinks, args.stages))
    measured: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(args.rounds):
        # Alternate the kinds, and reverse every other round, so that other load of the machine affects all kinds alike.
        for sink, stages in cases if number % 2 == 0 else cases[::-1]:
            with tempfile.TemporaryDirectory(prefix="tidegate-end-of-job-") as folder:
                ms = measure(Case(sink, stages, Path(folder)), in_process if args.in_process else on_spark)
            measured[sink, stages].append(ms)
            print(f"round {number + 1}, {stages} {sink}: {ms:.0f} ms", flush=True)
    lines = table(measured)
    where = "in one process, without Spark" if args.in_process else f"Spark local[{pipeline.SOURCES}]"
    about = (
        f"Milliseconds from the last of {ROWS:,} records to the log's entry that all is committed: {where}, "
        f"{pipeline.SOURCES} source subtasks, medians of {args.rounds} jobs of each kind, alternating. "
        f"parquet: on the local disk. distant: the same sink on a store whose requests take "
        f"{pipeline.REQUEST_S * 1000:.0f} ms each. waiting: a sink that computes nothing, whose store takes "
        f"{pipeline.WAIT_S * 1000:.0f} ms to stage and as much to commit."
    )
    print("\n".join(["", *lines, "", about, machine()]))
    if args.write:
        heading = f"{HEADING}, in one process" if args.in_process else HEADING
        command = "python benchmarks/end_of_job.py --in-process" if args.in_process else "make bench-end"
        write_section(heading, [*lines, "", about, "", f"{machine()}. `{command}`."])
    for sink in args.sinks:
        print(last_line(sink, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
