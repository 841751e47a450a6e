"""Runs one engine over a Parquet input, and measures wall and CPU time of its process tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import duckdb
from cpu_timeline import CpuTimeline
from parquet_input import Input
from tidegate_w1 import driver

from tidegate.jobs.client.job_client import JobClient

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".work" / "engines"
"""Environments of peers that are no dependencies of the project."""
BUILT_IN = ("streaming", "batch")
"""tidegate's modes."""
PEERS = {
    "spark": "spark_windows.py",
    "structured_streaming": "structured_streaming_windows.py",
    "duckdb": "duckdb_windows.py",
    "polars": "polars_windows.py",
}
OWN_PACKAGES = {"polars": ["polars==1.35.2"]}
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class EngineRun:
    """One run.

    Attributes:
        wall_s, cpu_s: of the whole process tree, start included.
        warm_wall_s, warm_cpu_s: without start. tidegate: from RUNNING to FINISHED. Others: of a second query.
        digest: hash of the results without the newest window, which Structured Streaming does not emit.
    """

    engine: str
    wall_s: float
    cpu_s: float
    warm_wall_s: float
    warm_cpu_s: float
    digest: str


def run_engine(engine: str, source: Path, work: Path, given: Input) -> EngineRun:
    """Run once. `engine`: a mode of tidegate, with "-declared" for a job that reads only three columns; or a peer."""
    target = work / f"{engine}-{time.time_ns()}"
    if engine in PEERS:
        found = _run_peer(engine, source, target, work)
    else:
        mode, _, declared = engine.partition("-")
        found = _run_tidegate(mode, source, target, work / "jobs", given, bool(declared))
    run = EngineRun(engine, *found, _digest(target, given))
    shutil.rmtree(target, ignore_errors=True)
    return run


def _run_tidegate(
    mode: str, source: Path, target: Path, root: Path, given: Input, declared: bool
) -> tuple[float, float, float, float]:
    client = JobClient(str(root), target.name)
    begin = time.time()
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / 'batch.py'}:build",
        arguments={"input": str(source), "output": str(target), "declared": declared},
        options={"execution_mode": mode, "parallelism": 2, "restart_attempts": 0},
        master="local[2]",
        submitted_by="benchmark",
    )
    with driver(client, spec) as pid, CpuTimeline(pid) as timeline:
        client.wait_status({"RUNNING", "FINISHED"}, TIMEOUT, 0.05)
        running = time.time()
        client.wait_status({"FINISHED"}, TIMEOUT, 0.05)
        finished = time.time()
        while os.path.exists(f"/proc/{pid}") and time.time() < finished + 20:
            time.sleep(0.05)
        return time.time() - begin, timeline.used_s, finished - running, timeline.between(running, finished)


def _run_peer(engine: str, source: Path, target: Path, work: Path) -> tuple[float, float, float, float]:
    """Run the query once in a new process; then twice in another, of which the second run counts as warm."""
    command = [_python(engine), str(HERE / "engines" / PEERS[engine]), str(source), str(target)]
    cold = _measured([*command, "1"], work)
    shutil.rmtree(target, ignore_errors=True)
    done = subprocess.run(
        [*command, "2"], check=True, capture_output=True, text=True, env=_environment(), timeout=TIMEOUT.total_seconds()
    )
    warm_wall, warm_cpu = json.loads(done.stdout.strip().splitlines()[-1])[-1]
    return *cold, warm_wall, warm_cpu


def _measured(command: list[str], work: Path) -> tuple[float, float]:
    begin = time.time()
    with open(work / "engine.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())
        with CpuTimeline(process.pid) as timeline:
            code = process.wait()
            wall = time.time() - begin
    if code:
        raise SystemExit(f"{command[1]} failed with exit code {code}: {(work / 'engine.log').read_text()[-3000:]}")
    return wall, timeline.used_s


def _environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable}


def _python(engine: str) -> str:
    """Return the interpreter for an engine, in an environment of its own if it is no dependency of the project."""
    if engine not in OWN_PACKAGES:
        return sys.executable
    folder = ENVIRONMENTS / engine
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *OWN_PACKAGES[engine]], check=True)
    return str(python)


def _digest(target: Path, given: Input) -> str:
    """Return number and hash of the result rows, in any order, without the newest window."""
    with duckdb.connect() as connection:
        found = connection.execute(
            f"WITH r AS (SELECT k, epoch_us(window_start) AS w, n, total FROM '{target}/*.parquet') "
            "SELECT count(*), sum(n), sum(total), bit_xor(hash(k, w, n, total)) "
            f"FROM r WHERE w < {given.newest_window_us}"
        ).fetchall()
    return str(found)
