"""Runs one engine over a Parquet input, and measures wall and CPU time of its process tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import duckdb
from cpu_timeline import CpuTimeline
from engines.repeated import SETTLE_S
from parquet_input import Input
from tidegate_w1 import driver

from tidegate.jobs.client.job_client import JobClient

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".work" / "engines"
"""Environments of peers that are no dependencies of the project."""
BUILT_IN = ("streaming", "batch")
"""tidegate's modes."""


@dataclass(frozen=True)
class Query:
    """Work that several engines do on the same input.

    Attributes:
        pipeline: file in `pipelines/`: tidegate's job. Its arguments are `input`, `output` and `variant`.
        peers: engine -> its script in `engines/`, and further arguments.
        results: SQL for the result rows k, w, n, total; with {files}, and {newest_us}: see `Input.newest_window_us`.
    """

    pipeline: str
    peers: Mapping[str, tuple[str, ...]]
    results: str


WINDOWS = Query(
    "batch.py",
    {
        "spark": ("spark_windows.py",),
        "structured_streaming": ("structured_streaming_windows.py",),
        "duckdb": ("duckdb_windows.py",),
        "polars": ("polars_windows.py",),
    },
    # Structured Streaming does not emit the newest window.
    "SELECT k, epoch_us(window_start) AS w, n, total FROM {files} WHERE w < {newest_us}",
)
PER_KEY = Query(
    "per_key.py",
    {f"spark-{variant}": ("per_key_spark.py", variant) for variant in ("rows", "pandas")},
    # Each call emits a result, and the number of calls differs. The values are not negative: the last is the greatest.
    "SELECT k, 0 AS w, max(n) AS n, max(total) AS total FROM {files} GROUP BY k",
)
OWN_PACKAGES = {"polars": ["polars==1.35.2"]}
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class EngineRun:
    """One run.

    Attributes:
        wall_s, cpu_s: of the whole process tree, start included.
        warm_wall_s, warm_cpu_s: without start. tidegate: from RUNNING to FINISHED. Others: of a second query.
        digest: number and hash of the results.
    """

    engine: str
    wall_s: float
    cpu_s: float
    warm_wall_s: float
    warm_cpu_s: float
    digest: str


def run_engine(query: Query, engine: str, source: Path, work: Path, given: Input) -> EngineRun:
    """Run once. `engine`: a mode of tidegate, possibly with "-" and the variant of the pipeline; or a peer."""
    target = work / f"{engine}-{time.time_ns()}"
    if engine in query.peers:
        found = _run_peer(engine, query.peers[engine], source, target, work)
    else:
        mode, _, variant = engine.partition("-")
        arguments = {"input": str(source), "output": str(target), "variant": variant}
        found = _run_tidegate(mode, query.pipeline, arguments, work / "jobs", target.name)
    run = EngineRun(engine, *found, _digest(query, target, given))
    shutil.rmtree(target, ignore_errors=True)
    return run


def _run_tidegate(
    mode: str, pipeline: str, arguments: Mapping[str, str], root: Path, job: str
) -> tuple[float, float, float, float]:
    client = JobClient(str(root), job)
    begin = time.time()
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / pipeline}:build",
        arguments=arguments,
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


def _run_peer(
    engine: str, script: tuple[str, ...], source: Path, target: Path, work: Path
) -> tuple[float, float, float, float]:
    """Run the query twice in a new process. The second run counts as warm, all else as the first run with start."""
    module, *more = script
    command = [_python(engine), str(HERE / "engines" / module), str(source), str(target), "2", *more]
    begin = time.time()
    log = work / "engine.log"
    with open(log, "wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment())
        try:
            with CpuTimeline(process.pid) as timeline:
                printed, _ = process.communicate(timeout=TIMEOUT.total_seconds())
                wall = time.time() - begin
        finally:
            process.kill()
    if process.returncode:
        raise SystemExit(f"{module} failed with exit code {process.returncode}: {log.read_text()[-3000:]}")
    warm_wall, warm_cpu = json.loads(printed.strip().splitlines()[-1])[-1]
    # The second run also has its pauses for the meter.
    return wall - warm_wall - 2 * SETTLE_S, timeline.used_s - warm_cpu, warm_wall, warm_cpu


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


def _digest(query: Query, target: Path, given: Input) -> str:
    """Return number and hash of the result rows, in any order."""
    rows = query.results.format(files=f"'{target}/*.parquet'", newest_us=given.newest_window_us)
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT count(*), sum(n), sum(total), bit_xor(hash(k, w, n, total)) FROM ({rows})"
        ).fetchall()
    return str(found)
