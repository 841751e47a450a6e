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
from engines.repeated import SETTLE_S
from environments import flink_jars, flink_python, own_environment
from parquet_input import Input
from tidegate_w1 import driver

from tidegate.jobs.client.job_client import JobClient

HERE = Path(__file__).resolve().parent
BUILT_IN = ("streaming", "batch")
"""tidegate's modes."""
ROCKSDB = {"state_backend": "rocksdb", "checkpoint_interval": "1 s"}
"""Options of the variant "rocksdb" of a pipeline."""
ROCKSDB_WINDOW_S = 5


@dataclass(frozen=True)
class Query:
    """Work that several engines do on the same input.

    Attributes:
        pipeline: file in `pipelines/`: tidegate's job. Its arguments are `input`, `output`, `variant` and `window_s`.
        peers: engine -> its script in `engines/`, and further arguments. The script of a peer "flink-..." runs in
            Flink's environment, and its last argument is the jars.
        results: SQL for the result rows k, w, n, total; with {files}, and {newest_us}: see `Input.newest_window_us`.
    """

    pipeline: str
    peers: Mapping[str, tuple[str, ...]]
    results: str


WINDOWS = Query(
    "batch.py",
    {
        "spark": ("spark_windows.py",),
        "structured_streaming": ("structured_streaming_windows.py", "0", "1"),
        "structured_streaming-rocksdb": ("structured_streaming_windows.py", "1", str(ROCKSDB_WINDOW_S)),
        "duckdb": ("duckdb_windows.py",),
        "polars": ("polars_windows.py",),
    },
    # Structured Streaming does not emit the newest window.
    "SELECT k, epoch_us(window_start) AS w, n, total FROM {files} WHERE w < {newest_us}",
)
PER_KEY = Query(
    "per_key.py",
    {
        **{f"spark-{variant}": ("per_key_spark.py", variant) for variant in ("rows", "pandas")},
        **{f"flink-{mode}": ("per_key_flink.py", mode) for mode in ("thread", "process")},
    },
    # Each call emits a result, and the number of calls differs. The values are not negative: the last is the greatest.
    "SELECT k, 0 AS w, max(n) AS n, max(total) AS total FROM {files} GROUP BY k",
)
OWN_PACKAGES = {"polars": ["polars==1.35.2"]}
TIMEOUT = timedelta(minutes=10)
MOST_S = TIMEOUT.total_seconds()


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
        module, *more = query.peers[engine]
        more += [flink_jars()] if is_flink(engine) else []
        found = run_peer(
            [peer_python(engine), str(HERE / "engines" / module), str(source), str(target), "2", *more], work
        )
    else:
        mode, _, variant = engine.partition("-")
        arguments = {"input": str(source), "output": str(target), "variant": variant, "window_s": given.window_s}
        options = {"execution_mode": mode, **(ROCKSDB if variant == "rocksdb" else {})}
        found = run_tidegate(query.pipeline, arguments, options, work / "jobs")
    run = EngineRun(engine, *found, digest_of(query.results, target, given.newest_window_us))
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


def run_peer(command: Sequence[str], work: Path) -> tuple[float, float, float, float]:
    """Run a program that runs a query twice. The second run counts as warm, all else as the first run with start."""
    begin = time.time()
    log = work / "engine.log"
    with open(log, "wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment())
        try:
            with CpuTimeline(process.pid) as timeline:
                printed, _ = process.communicate(timeout=MOST_S)
                wall = time.time() - begin
        finally:
            process.kill()
    if process.returncode:
        raise SystemExit(f"{command[1]} failed with exit code {process.returncode}: {log.read_text()[-3000:]}")
    warm_wall, warm_cpu = json.loads(printed.strip().splitlines()[-1])[-1]
    # The second run also has its pauses for the meter.
    return wall - warm_wall - 2 * SETTLE_S, timeline.used_s - warm_cpu, warm_wall, warm_cpu


def _environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable}


def is_flink(engine: str) -> bool:
    """Return whether an engine runs in Flink's environment."""
    return engine.partition("-")[0] == "flink"


def peer_python(engine: str) -> str:
    """Return the interpreter for an engine."""
    if is_flink(engine):
        return flink_python()
    packages = OWN_PACKAGES.get(engine)
    return own_environment(engine, packages, sys.executable) if packages else sys.executable


def digest_of(results: str, target: Path, newest_us: int) -> str:
    """Return number and hash of the result rows, in any order. `results`: see `Query`."""
    rows = results.format(files=f"'{target}/*.parquet'", newest_us=newest_us)
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT count(*), sum(n), sum(total), bit_xor(hash(k, w, n, total)) FROM ({rows})"
        ).fetchall()
    return str(found)
