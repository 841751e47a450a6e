"""The running total of `latency.py` in Structured Streaming's Real-Time Mode, with state in RocksDB.

`latency.py` runs it as a process of its own. Prints one JSON document.

In Spark 4.3 the mode accepts no source of PySpark except Kafka: rate, socket and Python data sources fail with
`STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED`. So rows come from `LowLatencyMemoryStream`, the source of Spark's
own tests, which PySpark reaches through the JVM gateway. It accepts the sinks Kafka, console and `foreach`, a
Python function for each row. `foreach` buffers rows on their way to Python, so the clock is read before it, in the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cpu_timeline import CpuTimeline
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from structured_streaming import SETTINGS

TICK_S = 0.005
"""Seconds between additions to the source, as in tidegate's source with a rate."""
NOW_MS = "CAST(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)"
"""The clock, read for each row."""
BATCH = "5 seconds"
"""Time between two durable points: the shortest that Spark accepts without changing `minBatchDuration`."""
SETTLE_S = 8.0
"""Seconds after the last row in which its batch ends: `foreach` has no results of a batch that is stopped."""


class Arrivals:
    """Collects the results, in a file for each batch and partition."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, partition: int, batch: int) -> bool:
        """Begin a file."""
        self._found: list[tuple[int, int, int, int]] = []
        return True

    def process(self, row: Row) -> None:
        """Note one result."""
        self._found.append((row.k, row.total, row.due_us, row.now_ms))

    def close(self, error: BaseException | None) -> None:
        """Write the file."""
        np.save(os.path.join(self._folder, secrets.token_hex(8)), np.array(self._found, np.int64).reshape(-1, 4))


def summary(
    arrivals: npt.NDArray[np.int64], keys: int, measured_ms: npt.NDArray[np.float64], stopped_ms: float
) -> dict[str, Any]:
    """Return the latencies of the rows that are measured. Raises ValueError if totals are wrong.

    Args:
        arrivals: key, total, due time in microseconds, and time of arrival in milliseconds of each result.
        keys: their number.
        measured_ms: due times of the rows after the warm-up, ascending. If there are fewer results, the newest rows
            have none, and count as if they arrived when the query is stopped: this is the least that they need.
        stopped_ms: when the query is stopped.
    """
    seen, totals = arrivals[:, 0], np.zeros(keys, np.int64)
    np.maximum.at(totals, seen, arrivals[:, 1])
    if not np.array_equal(totals, np.bincount(seen, minlength=keys)):
        raise ValueError(f"the greatest totals of keys are not the numbers of their {len(arrivals)} results")
    due_ms = arrivals[:, 2] / 1e3
    found_ms = (arrivals[:, 3] - due_ms)[due_ms >= measured_ms[0]]
    latencies_ms = np.concatenate([found_ms, stopped_ms - measured_ms[len(found_ms) :]])
    return {
        "p50_ms": float(np.percentile(latencies_ms, 50)),
        "p99_ms": float(np.percentile(latencies_ms, 99)),
        "note": f"{len(found_ms):,} of {len(measured_ms):,} rows have results",
    }


def measure(spark: SparkSession, args: argparse.Namespace) -> dict[str, Any]:
    """Run the query for `warm_up` and `seconds`."""
    jvm: Any = spark._jvm
    source = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream.apply(
        spark._jsparkSession, args.slots, jvm.org.apache.spark.sql.Encoders.LONG()
    )
    arrivals = Path(args.work, "arrivals")
    arrivals.mkdir(parents=True)
    start_s = time.time()
    due_us = F.lit(start_s * 1e6) + F.col("value") * F.lit(1e6 / args.rate)
    rows = DataFrame(source.toDF(), spark).select(
        (F.col("value") % args.keys).alias("k"), due_us.cast("bigint").alias("due_us")
    )
    results = rows.groupBy("k").agg(F.count("*").alias("total"), F.max("due_us").alias("due_us"))
    results = results.selectExpr("k", "total", "due_us", f"{NOW_MS} AS now_ms")
    writer = results.writeStream.foreach(Arrivals(str(arrivals))).outputMode("update").trigger(realTime=BATCH)
    begin_s = start_s + args.warm_up
    end_s = begin_s + args.seconds
    sent = 0
    with CpuTimeline(os.getpid()) as timeline:
        query = writer.option("checkpointLocation", os.path.join(args.work, "checkpoint")).start()
        while (now_s := time.time()) < end_s:
            if query.exception():
                raise RuntimeError(str(query.exception()))
            due = int((now_s - start_s) * args.rate)
            if due > sent:
                numbers = jvm.java.util.stream.LongStream.range(sent, due).boxed().toList()
                source.addData(jvm.scala.jdk.javaapi.CollectionConverters.asScala(numbers))
                sent = due
            time.sleep(TICK_S)
        time.sleep(SETTLE_S)
    query.stop()
    stopped_ms = time.time() * 1e3
    found = np.concatenate([np.zeros((0, 4), np.int64), *(np.load(path) for path in arrivals.glob("*.npy"))])
    due_ms = np.trunc(start_s * 1e6 + np.arange(sent) * (1e6 / args.rate)) / 1e3
    facts = summary(found, args.keys, due_ms[due_ms >= begin_s * 1e3], stopped_ms)
    return {**facts, "cores": timeline.between(begin_s, end_s) / args.seconds}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure once and print JSON."""
    parser = argparse.ArgumentParser(description="latency in Real-Time Mode")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up", type=float, required=True)
    parser.add_argument("--work", required=True, help="a folder on local disk for checkpoints; emptied afterwards")
    args = parser.parse_args(argv)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    # The tasks of both stages run at the same time.
    builder = builder.master(f"local[{2 * args.slots}]").appName("latency")
    own = {"spark.sql.shuffle.partitions": str(args.slots), "spark.sql.streaming.stateStore.checkpointFormatVersion": 2}
    for key, value in {**SETTINGS, **own}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    try:
        facts = measure(spark, args)
    finally:
        spark.stop()
        shutil.rmtree(args.work, ignore_errors=True)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
