"""Windows per key in Structured Streaming, with the trigger availableNow and RocksDB.

Arguments: input folder, output folder, runs, files of a micro-batch (0: all files in one), seconds of a window.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from repeated import run_repeated

source, target, times, files, seconds = sys.argv[1:]
work = tempfile.mkdtemp(prefix="structured-streaming-")
numbers = itertools.count()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "4g")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    .config("spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows", "false")
    .getOrCreate()
)


def query() -> None:
    """Replace the output. Append mode writes a window once the watermark has passed it; the input ends with rows of a
    later time."""
    shutil.rmtree(target, ignore_errors=True)
    reader = spark.readStream.schema("k " + KEY + ", v bigint, ts timestamp")
    rows = (reader.option("maxFilesPerTrigger", files) if int(files) else reader).parquet(source)
    rows = rows.withWatermark("ts", "0 seconds")
    windows = rows.groupBy("k", F.window("ts", f"{seconds} seconds"))
    totals = windows.agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    found = totals.select("k", F.col("window.start").alias("window_start"), "n", "total")
    writer = found.writeStream.outputMode("append").format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{work}/{next(numbers)}").option("path", target)
    writer.start().awaitTermination()


KEY = dict(spark.read.parquet(source).dtypes)["k"]
try:
    run_repeated(query, int(times))
finally:
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)
