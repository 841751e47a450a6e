"""The work of `latency.py` on Spark Structured Streaming, micro-batches as fast as they come, RocksDB state store.

`latency.py` runs it as a process of its own, so that the CPU of its process tree belongs to Structured Streaming only:

    python benchmarks/structured_streaming_latency.py --rate 20000 --slots 2 --seconds 15 --warm-up 10 --keys 1000 \
        --work DIR

Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from cpu_timeline import CpuTimeline
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from structured_streaming import SETTINGS


class Rows(InputPartition):
    """Row numbers [start, stop), every `step`-th of them."""

    def __init__(self, start: int, stop: int, step: int) -> None:
        self.start, self.stop, self.step = start, stop, step


class PacedReader(DataSourceStreamReader):
    """Reads all rows that are due when a micro-batch is planned, one partition for each slot, as Arrow batches."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rate, self._keys = float(options["rate"]), int(options["keys"])
        self._slots, self._start_us = int(options["slots"]), float(options["start_us"])

    def initialOffset(self) -> dict[str, int]:
        """Return row 0."""
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:
        """Return the offset of the rows that are due."""
        return {"row": max(0, int((time.time_ns() / 1000 - self._start_us) * self._rate / 1e6))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Distribute the rows over the slots."""
        return [Rows(start["row"] + slot, end["row"], self._slots) for slot in range(self._slots)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        assert isinstance(partition, Rows)
        numbers = np.arange(partition.start, partition.stop, partition.step, dtype=np.int64)
        due_us = (self._start_us + numbers * (1e6 / self._rate)).astype(np.int64)
        columns = [pa.array(numbers % self._keys), pa.array(np.ones(len(numbers), np.int64)), pa.array(due_us)]
        yield pa.RecordBatch.from_arrays(columns, ["k", "v", "due_us"])


class Paced(DataSource):
    """A source of rows at a steady rate, each with the time at which it was due."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "paced"

    def schema(self) -> str:
        """Return the schema of the rows."""
        return "k bigint, v bigint, due_us bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return a reader; see PacedReader."""
        return PacedReader(self.options)


def measure(spark: SparkSession, args: argparse.Namespace) -> dict[str, Any]:
    """Run the query for `warm_up` and `seconds`; return the latencies of results after the warm-up."""
    spark.dataSource.register(Paced)
    start_s = time.time()
    measured: list[Any] = []
    batches = 0

    def results(frame: DataFrame, _: int) -> None:
        nonlocal batches
        table = frame.toArrow()
        now_s = time.time()
        if now_s >= start_s + args.warm_up:
            batches += 1
            measured.append(now_s * 1e3 - table.column("due_us").to_numpy() / 1e3)

    query = (
        spark.readStream.format("paced")
        .options(rate=args.rate, keys=args.keys, slots=args.slots, start_us=start_s * 1e6)
        .load()
        .groupBy("k")
        .agg(F.sum("v").alias("total"), F.max("due_us").alias("due_us"))
        .writeStream.foreachBatch(results)
        .outputMode("update")
        .option("checkpointLocation", os.path.join(args.work, "checkpoint"))
    )
    with CpuTimeline(os.getpid()) as timeline:
        running = query.start()
        begin_s, end_s = start_s + args.warm_up, start_s + args.warm_up + args.seconds
        while time.time() < end_s + 0.3:
            if running.exception():
                raise RuntimeError(str(running.exception()))
            time.sleep(0.1)
    running.stop()
    latencies_ms = np.concatenate([np.zeros(0), *measured])
    if not len(latencies_ms):
        raise RuntimeError(f"no micro-batch ended within {args.seconds:.0f} s")
    return {
        "p50_ms": float(np.percentile(latencies_ms, 50)),
        "p99_ms": float(np.percentile(latencies_ms, 99)),
        "cores": timeline.between(begin_s, end_s) / args.seconds,
        "note": f"{batches} micro-batches",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure once and print JSON."""
    parser = argparse.ArgumentParser(description="latency on Structured Streaming")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up", type=float, required=True)
    parser.add_argument("--work", required=True, help="a folder on local disk for checkpoints; emptied afterwards")
    args = parser.parse_args(argv)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.master(f"local[{args.slots}]").appName("latency")
    for key, value in {**SETTINGS, "spark.sql.shuffle.partitions": str(args.slots)}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        facts = measure(spark, args)
    finally:
        spark.stop()
        shutil.rmtree(args.work, ignore_errors=True)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
