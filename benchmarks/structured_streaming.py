"""W1 on Spark Structured Streaming: RocksDB state store, update mode, discarding (`noop`) sink, master local[2].

`w1.py` runs it as a process of its own, so that the CPU of its process tree belongs to Structured Streaming only:

    python benchmarks/structured_streaming.py --keys 100000 --seconds 30 --work DIR

It warms up (class loading, JIT) and finds the speed with a shorter query of the same shape. Then it runs the measured
query, reads every window's result from the state store, and compares it with the closed form. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from cpu_timeline import CpuTimeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from w1_workload import MOST_ROWS, MULTIPLIER, ROWS_PER_MS, ROWS_PER_WINDOW, VALUES, WINDOW_MS, expected

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Both options follow Spark's advice for speed: changelog checkpoints, no row counting in the store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # Keep every version of the state, to read the results afterwards, and the progress of every micro-batch.
    "spark.sql.streaming.minBatchesToRetain": "100000",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
PROGRESS_POLL_S = 0.1
WARM_UP_BATCHES = 2
WARM_UP_S = 15.0
"""Least duration of all warm-up queries together; they also determine the number of rows of a micro-batch."""
MOST_WARM_UPS = 6
MOST_RUNS = 4
"""How often the measured part is repeated with more rows if it was shorter than requested."""


@dataclass(frozen=True)
class Measured:
    """One run of N rows."""

    rows: int
    wall_s: float
    cpu_s: float
    micro_batches: int
    last_batch_s: float
    checked_windows: int = 0
    checked_results: int = 0


def result_stream(spark: SparkSession, rows: int, keys: int, rows_per_batch: int) -> DataFrame:
    """Build W1 from native expressions.

    The source's number n goes to source partition n mod 2, which reads half n mod 2 in order, as our two source
    subtasks do. Numbers from `rows` on are ignored.
    """
    n, half = F.col("value"), rows // 2
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("numPartitions", 2)
        .load()
        .where(n < rows)
        .select(((n % 2) * half + F.shiftright(n, 1)).alias("i"))
    )
    i = F.col("i")
    records = numbers.select(
        ((i * F.lit(MULTIPLIER)) % keys).alias("k"),
        (i % VALUES).alias("v"),
        F.timestamp_millis(((i % half) / ROWS_PER_MS).cast("bigint")).alias("ts"),
    )
    return (
        records.withWatermark("ts", "0 seconds")
        .groupBy("k", F.window("ts", f"{WINDOW_MS // 1000} seconds"))
        .agg(F.count(F.lit(1)).alias("rows"), F.sum("v").alias("total"))
    )


def run(spark: SparkSession, keys: int, rows_per_batch: int, batches: int, checkpoint: str) -> Measured:
    """Run `batches` full micro-batches; wall and CPU from the first one's trigger to the last one's commit."""
    rows = rows_per_batch * batches
    with CpuTimeline(os.getpid()) as timeline:
        time.sleep(0.3)
        query = (
            result_stream(spark, rows, keys, rows_per_batch)
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        while not any(p["batchId"] >= batches - 1 for p in [query.lastProgress] if p):
            if query.exception():
                raise RuntimeError(str(query.exception()))
            time.sleep(PROGRESS_POLL_S)
        time.sleep(0.3)
    progress = {p["batchId"]: p for p in query.recentProgress}
    query.stop()
    done = [progress[b] for b in range(batches)]
    if sum(p["numInputRows"] for p in done) != rows:
        raise RuntimeError(f"{sum(p['numInputRows'] for p in done)} rows came instead of {rows}")
    start_s = _unix_s(done[0]["timestamp"])
    end_s = _unix_s(done[-1]["timestamp"]) + done[-1]["durationMs"]["triggerExecution"] / 1000
    last_batch_s = done[-1]["durationMs"]["triggerExecution"] / 1000
    return Measured(rows, end_s - start_s, timeline.between(start_s, end_s), batches, last_batch_s)


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def check(spark: SparkSession, measured: Measured, keys: int, checkpoint: str) -> tuple[int, int]:
    """Compare every (k, window) with the closed form. Returns the number of compared (windows, result rows).

    A window's final result is in the state after the micro-batch with its last row. The watermark of that micro-batch
    comes from the previous one, so the window still exists.

    Raises:
        RuntimeError: a result differs.
    """
    rows_per_batch = measured.rows // measured.micro_batches
    windows = results = 0
    for number, window in enumerate(expected(measured.rows, keys)):
        last_row = min((number + 1) * ROWS_PER_WINDOW, measured.rows)
        batch = -(-last_row // rows_per_batch) - 1
        state = spark.read.format("statestore").option("batchId", batch).load(checkpoint)
        start = F.unix_millis(F.col("key.window.start"))
        table = (
            state.where(start == window.start_ms)
            .select(F.col("key.k").alias("k"), F.col("value.*"))
            .toArrow()
            .sort_by("k")
        )
        got = [table.column(c).to_numpy() for c in range(3)]
        for name, want, have in zip(("k", "count", "sum"), (window.keys, window.counts, window.sums), got, strict=True):
            if not np.array_equal(want, have):
                raise RuntimeError(
                    f"wrong {name} in the window that starts at {window.start_ms} ms, micro-batch {batch}"
                )
        windows += 1
        results += len(window.keys)
    return windows, results


def measure(spark: SparkSession, keys: int, seconds: float, batch_s: float, work: str) -> Measured:
    """Warm up, determine the size of a micro-batch, then measure for at least `seconds`.

    A micro-batch lasts `batch_s`, but has at least one window, and only whole windows. So each result is written to the
    state once, by the micro-batch with its window, which is the least work for Structured Streaming.
    """
    rows_per_batch, warm_s = ROWS_PER_WINDOW, 0.0
    for attempt in range(MOST_WARM_UPS):
        warm = run(spark, keys, rows_per_batch, WARM_UP_BATCHES, os.path.join(work, f"warm-up-{attempt}"))
        warm_s += warm.wall_s
        wanted = _whole_windows(rows_per_batch * batch_s / warm.last_batch_s)
        if 0.8 * wanted <= rows_per_batch <= 1.25 * wanted and warm_s >= WARM_UP_S:
            break
        rows_per_batch = wanted
    batches = math.ceil(1.25 * seconds / warm.last_batch_s)
    for attempt in range(MOST_RUNS):
        batches = min(max(batches, 2), MOST_ROWS // rows_per_batch)
        checkpoint = os.path.join(work, f"measured-{attempt}")
        measured = run(spark, keys, rows_per_batch, batches, checkpoint)
        if measured.wall_s >= seconds:
            break
        batches = math.ceil(batches * 1.25 * seconds / measured.wall_s)
    else:
        raise RuntimeError(f"no run lasted {seconds} s; the last one {measured.wall_s:.1f} s")
    windows, results = check(spark, measured, keys, checkpoint)
    return replace(measured, checked_windows=windows, checked_results=results)


def _whole_windows(rows: float) -> int:
    return max(1, round(rows / ROWS_PER_WINDOW)) * ROWS_PER_WINDOW


def main(argv: list[str] | None = None) -> int:
    """Measure once and print JSON."""
    parser = argparse.ArgumentParser(description="W1 on Structured Streaming")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="least length of the measured part")
    parser.add_argument("--batch-seconds", type=float, default=5.0, help="wanted length of a micro-batch")
    parser.add_argument("--work", required=True, help="a folder on local disk for checkpoints; emptied afterwards")
    parser.add_argument("--conf", action="append", default=[], metavar="K=V")
    args = parser.parse_args(argv)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").appName("w1")
    for key, value in {**SETTINGS, **dict(pair.split("=", 1) for pair in args.conf)}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    folder = os.path.join(args.work, f"structured-streaming-{os.getpid()}")
    try:
        measured = measure(spark, args.keys, args.seconds, args.batch_seconds, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
