"""Runs one engine over a Parquet input, and measures wall and CPU time of its process tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
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
ROCKSDB = {"state_backend": "rocksdb", "checkpoint_interval": "1 s"}
OWN_PACKAGES = {"polars": ["polars==1.35.2"]}
TIMEOUT = timedelta(minutes=10)
MOST_S = TIMEOUT.total_seconds()


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
    """Run once.

    Args:
        engine: a mode of tidegate, with "-declared" for a job that reads only three columns, or "-rocksdb" for that
            back end and a checkpoint every second; or a peer. "structured_streaming-rocksdb": a micro-batch for each
            file.
        source: folder of the input.
        work: folder for everything else.
        given: description of the input.
    """
    target = work / f"{engine}-{time.time_ns()}"
    kind, _, variant = engine.partition("-")
    if kind in PEERS:
        script = str(HERE / "engines" / PEERS[kind])
        streams = ["1" if variant else "0", str(given.window_s)] if kind == "structured_streaming" else []
        command = [peer_python(kind), script, *streams, str(source), str(target)]
        found = run_peer(command, target, work)
    else:
        arguments = {
            "input": str(source),
            "output": str(target),
            "declared": variant == "declared",
            "window_s": given.window_s,
        }
        options = {"execution_mode": kind, **(ROCKSDB if variant == "rocksdb" else {})}
        found = run_tidegate("batch.py", arguments, options, work / "jobs")
    run = EngineRun(engine, *found, digest_of(target, given.newest_window_us))
    shutil.rmtree(target, ignore_errors=True)
    return run


def run_tidegate(
    pipeline: str, arguments: Mapping[str, object], options: Mapping[str, object], root: Path, slots: int = 2
) -> tuple[float, float, float, float]:
    """Run a job; return wall and CPU seconds with start, then without."""
    client = JobClient(str(root), f"job-{time.time_ns()}")
    begin = time.time()
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / pipeline}:build",
        arguments=dict(arguments),
        options={"parallelism": slots, "restart_attempts": 0, **options},
        master=f"local[{slots}]",
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


def run_peer(command: Sequence[str], target: Path, work: Path) -> tuple[float, float, float, float]:
    """Run a query once in a new process; then twice in another, of which the second run counts as warm."""
    cold = _measured([*command, "1"], work)
    shutil.rmtree(target, ignore_errors=True)
    return *cold, *run_warm(command)


def run_warm(command: Sequence[str]) -> tuple[float, float]:
    """Run a query twice in one process; return wall and CPU seconds of the second run."""
    done = subprocess.run([*command, "2"], capture_output=True, text=True, env=_environment(), timeout=MOST_S)
    if done.returncode:
        raise SystemExit(f"{command[1]} failed with exit code {done.returncode}: {done.stderr[-3000:]}")
    wall_s, cpu_s = json.loads(done.stdout.strip().splitlines()[-1])[-1]
    return wall_s, cpu_s


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


def peer_python(engine: str) -> str:
    """Return the interpreter for an engine."""
    packages = OWN_PACKAGES.get(engine)
    return own_environment(engine, packages, sys.executable) if packages else sys.executable


def own_environment(engine: str, packages: Sequence[str], base: str) -> str:
    """Return the interpreter of an environment with packages that are no dependencies of the project.

    Args:
        engine: name of the environment, which is made if it does not exist.
        packages: requirements.
        base: interpreter from which it is made.
    """
    folder = ENVIRONMENTS / engine
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def digest_of(target: Path, newest_window_us: int) -> str:
    """Return number and hash of the result rows of older windows, in any order."""
    with duckdb.connect() as connection:
        found = connection.execute(
            f"WITH r AS (SELECT k, epoch_us(window_start) AS w, n, total FROM '{target}/*.parquet') "
            "SELECT count(*), sum(n), sum(total), bit_xor(hash(k, w, n, total)) "
            f"FROM r WHERE w < {newest_window_us}"
        ).fetchall()
    return str(found)
