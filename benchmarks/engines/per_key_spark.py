"""A running count and sum per key by PySpark's `transformWithState`, with the trigger availableNow and RocksDB.

Arguments: input folder, output folder, runs, `rows` or `pandas`. It runs the processors of `pipelines/per_key.py`.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from repeated import run_repeated

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipelines"))

import per_key

source, target, times, variant = sys.argv[1:]
work = tempfile.mkdtemp(prefix="transform-with-state-")
numbers = itertools.count()
cloudpickle.register_pickle_by_value(per_key)  # the Python workers cannot import it
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
spark.sparkContext.setLogLevel("ERROR")  # it logs a warning for each read of an empty state


def query() -> None:
    """Replace the output."""
    shutil.rmtree(target, ignore_errors=True)
    grouped = spark.readStream.schema("k bigint, v bigint, ts timestamp").parquet(source).groupBy("k")
    if variant == "pandas":
        totals = grouped.transformWithStateInPandas(per_key.FrameTotals(), per_key.RESULT, "Update", "None")
    else:
        totals = grouped.transformWithState(per_key.RowTotals(), per_key.RESULT, "Update", "None")
    # Only the sink `foreachBatch` writes files in update mode.
    writer = totals.writeStream.outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{work}/{next(numbers)}")
    writer.foreachBatch(lambda batch, number: batch.write.mode("append").parquet(target)).start().awaitTermination()


try:
    run_repeated(query, int(times))
finally:
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)
