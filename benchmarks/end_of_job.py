"""From the last record to "all committed", for chains of two-phase sinks. See README.md.

    python benchmarks/end_of_job.py [--write]

Prints a table and, last, `end 1=<ms> 3=<ms> 6=<ms> ratio=<6 stages in 1>`. Takes some six minutes.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
sys.path[:0] = [str(HERE), str(REPOSITORY / "spark_runtime")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(REPOSITORY / "spark_runtime"), os.environ.get("PYTHONPATH")])
)

from pipelines import end_of_job as pipeline  # noqa: E402
from results import RESULTS, machine, write_section  # noqa: E402

from tidegate.contract.client import JobClient  # noqa: E402
from tidegate.contract.clock import parse_iso  # noqa: E402
from tidegate.contract.errors import JobFailedError  # noqa: E402
from tidegate.contract.launching import find_local, launch_local  # noqa: E402

PIPELINE = str(HERE / "pipelines" / "end_of_job.py") + ":build"
STAGES = (1, 3, 6)
ROUNDS = 7
ROWS = 20_000
HEADING = "## End of a job"
RUN_TIMEOUT = timedelta(minutes=5)
POLL_S = 0.2
EXIT_TIMEOUT_S = 40.0
"""How long a driver may take to leave after its job has ended, seconds."""


def run(root: str, stages: int, rows: int = ROWS) -> float:
    """Milliseconds from the last record made to the log's entry that everything is committed, in one job of its own.

    Raises:
        JobFailedError: the job did not finish, took another number of snapshots than one, or committed other rows.
    """
    with tempfile.TemporaryDirectory(prefix="end-", dir=root) as folder:
        report, out = Path(folder) / "report", Path(folder) / "out"
        report.mkdir()
        client = JobClient(root, f"end-{secrets.token_hex(4)}")
        spec = client.submit(
            pipeline=PIPELINE,
            arguments={"stages": stages, "rows": rows, "report": str(report), "out": str(out)},
            options={"parallelism": pipeline.SOURCES, "restart_attempts": 0},
            master=f"local[{pipeline.SOURCES}]",
            submitted_by="benchmark",
        )
        launch = launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable})
        try:
            client.wait_status({"FINISHED"}, RUN_TIMEOUT, POLL_S)
        finally:
            left = find_local(client, spec)
            if left is not None and not client.view().is_terminal:
                left.kill()
            by_s = time.monotonic() + EXIT_TIMEOUT_S
            while left is not None and left.is_running() and time.monotonic() < by_s:
                time.sleep(0.1)
        assert launch.pid is not None
        log = client.decisions()
        kinds = [d.kind for d in log if d.kind in ("complete", "abort", "committed")]
        if kinds != ["complete", "committed"]:
            raise JobFailedError(f"one snapshot and its commit were expected, the log has {kinds}", where=client.job_id)
        check(out, stages, rows)
        last_ns = max(int(path.read_text()) for path in report.iterdir())
        committed_at = next(d.at for d in log if d.kind == "committed")
        return parse_iso(committed_at).timestamp() * 1000 - last_ns / 1e6


def check(out: Path, stages: int, rows: int) -> None:
    """Every stage holds every row. Raises JobFailedError."""
    import pyarrow.parquet as pq

    for n in range(stages):
        found = sum(pq.read_metadata(file).num_rows for file in (out / f"stage-{n}").glob("*.parquet"))
        if found != rows:
            raise JobFailedError(f"stage {n} of {stages} has committed {found} rows of {rows}")


def table(measured: dict[int, list[float]]) -> list[str]:
    """The result as Markdown."""
    base = statistics.median(next(iter(measured.values())))
    lines = [
        "| stages | ms, median | in that of one | fastest | slowest | final snapshots |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for stages, times in measured.items():
        median = statistics.median(times)
        lines.append(f"| {stages} | {median:.0f} | {median / base:.2f} | {min(times):.0f} | {max(times):.0f} | 1 |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="time from the last record to 'all committed' by number of stages")
    parser.add_argument("--stages", type=int, nargs="*", default=list(STAGES))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"jobs of each kind (default: {ROUNDS})")
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    args = parser.parse_args(argv)
    measured: dict[int, list[float]] = {stages: [] for stages in args.stages}
    root = tempfile.mkdtemp(prefix="tidegate-end-of-job-")
    try:
        for number in range(args.rounds):
            # Alternating, and every other round backwards: what else the machine does meets all kinds alike.
            for stages in args.stages if number % 2 == 0 else args.stages[::-1]:
                measured[stages].append(run(root, stages))
                print(f"round {number + 1}, {stages} stages: {measured[stages][-1]:.0f} ms", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    lines = table(measured)
    print("\n".join(["", *lines, "", machine()]))
    if args.write:
        about = (
            f"Milliseconds from the last of {ROWS:,} records to the log's entry that all is committed: Spark local"
            f"[{pipeline.SOURCES}], {pipeline.SOURCES} slots, each stage a two-phase Parquet sink, medians of "
            f"{args.rounds} jobs of each kind, alternating."
        )
        write_section(HEADING, [*lines, "", about, "", f"{machine()}. `make bench-end`."])
    medians = {stages: statistics.median(times) for stages, times in measured.items()}
    ratio = medians[args.stages[-1]] / medians[args.stages[0]]
    print("end " + " ".join(f"{stages}={ms:.0f}" for stages, ms in medians.items()) + f" ratio={ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
