"""Bounded windows from Parquet to Parquet: tidegate in batch and streaming mode, Spark batch and DuckDB.

Run it as `python benchmarks/batch.py`. Each engine runs alone, in its own process, several times in turn. Wall
time and CPU seconds are of the whole process tree, start included. The outputs of all engines are compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cpu_timeline import CpuTimeline
from tidegate_w1 import driver

from tidegate.jobs.client.job_client import JobClient

HERE = Path(__file__).parent
FILES = 8
ROWS_PER_WINDOW = 1_000_000
MULTIPLIER = 2654435761

SPARK = """
import sys
from pyspark.sql import SparkSession, functions as F
source, target = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.memory", "4g").config("spark.sql.shuffle.partitions", "2")
         .config("spark.sql.session.timeZone", "UTC").getOrCreate())
rows = spark.read.parquet(source)
start = F.date_trunc("second", F.col("ts"))
rows.groupBy("k", start.alias("window_start")).agg(F.count("*").alias("n"), F.sum("v").alias("total")) \\
    .write.mode("overwrite").parquet(target)
spark.stop()
"""
DUCKDB = """
import sys, duckdb
source, target = sys.argv[1:]
duckdb.execute("SET threads=2")
duckdb.execute(f"COPY (SELECT k, date_trunc('second', ts) AS window_start, count(*) n, sum(v)::BIGINT total "
               f"FROM '{source}/*.parquet' GROUP BY ALL) TO '{target}.parquet' (FORMAT parquet)")
"""


def make_input(folder: Path, rows: int, keys: int, text: bool) -> None:
    """Write rows in order of time: a million rows a second."""
    folder.mkdir(parents=True)
    per_file = rows // FILES
    for number in range(FILES):
        i = np.arange(number * per_file, (number + 1) * per_file)
        k = i * MULTIPLIER % keys
        column = (
            pa.array([f"key-of-a-user-{key:06d}" for key in range(keys)]).take(pa.array(k)) if text else pa.array(k)
        )
        times = pa.array(i * 1_000_000 // ROWS_PER_WINDOW).view(pa.timestamp("us"))
        pq.write_table(pa.table({"k": column, "v": i % 1000, "ts": times}), folder / f"{number:02d}.parquet")


def run_tidegate(mode: str, source: Path, target: Path, root: Path, text: bool) -> tuple[float, float]:
    """Run the job to its end. Returns wall and CPU seconds of its driver and slots."""
    client = JobClient(str(root), target.name)
    spec = client.submit(
        pipeline=f"{HERE / 'pipelines' / 'batch.py'}:build",
        arguments={"input": str(source), "output": str(target), "text": text},
        options={"execution_mode": mode, "parallelism": 2, "restart_attempts": 0},
        master="local[2]",
        submitted_by="benchmark",
    )
    begin = time.time()
    with driver(client, spec) as pid, CpuTimeline(pid) as timeline:
        client.wait_status({"FINISHED"}, timedelta(minutes=10), 0.1)
        end = time.time()
        while os.path.exists(f"/proc/{pid}") and time.time() < end + 20:
            time.sleep(0.05)
        return time.time() - begin, timeline.used_s


def run(engine: str, source: Path, work: Path, text: bool) -> tuple[float, float, int]:
    """Run once. Returns wall seconds, CPU seconds and a hash of the output."""
    target = work / f"{engine}-{time.time_ns()}"
    if engine.startswith("tidegate"):
        wall, cpu = run_tidegate(engine.split("-")[1], source, target, work / "jobs", text)
    else:
        command = [sys.executable, "-c", SPARK if engine == "spark" else DUCKDB, str(source), str(target)]
        begin = time.time()
        with open(work / "log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            with CpuTimeline(process.pid) as timeline:
                code = process.wait()
                wall, cpu = time.time() - begin, timeline.used_s
        if code:
            raise SystemExit(f"{engine} failed with exit code {code}: {(work / 'log').read_text()[-2000:]}")
    files = f"{target}.parquet" if engine == "duckdb" else f"{target}/*.parquet"
    digest = duckdb.execute(
        f"SELECT count(*), sum(n), sum(total), bit_xor(hash(k, epoch_us(window_start), n, total)) FROM '{files}'"
    ).fetchone()
    shutil.rmtree(target, ignore_errors=True)
    return wall, cpu, hash(digest)


def main() -> int:
    """Run every engine, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engines", default="tidegate-batch,tidegate-streaming,spark,duckdb")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="batch-") as folder:
        work = Path(folder)
        make_input(work / "input", options.rows, options.keys, options.text)
        found: dict[str, list[tuple[float, float]]] = {}
        digests = set()
        for _ in range(options.repeat):
            for engine in options.engines.split(","):
                wall, cpu, digest = run(engine, work / "input", work, options.text)
                found.setdefault(engine, []).append((wall, cpu))
                digests.add(digest)
                print(f"{engine:20} {wall:6.1f} s {cpu:6.1f} CPU s", flush=True)
        print(f"results: {'equal' if len(digests) == 1 else 'DIFFERENT'}")
        for engine, runs in found.items():
            wall, cpu = (median(run[i] for run in runs) for i in (0, 1))
            print(f"{engine:20} {wall:6.1f} s {cpu:6.1f} CPU s {options.rows / cpu / 1e6:6.2f} M rows per CPU second")
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    raise SystemExit(main())
