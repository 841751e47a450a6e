"""The work of row `kafka` in Structured Streaming, with the trigger availableNow.

Arguments: servers, source topic, prefix of the target topics (one for each run), runs, jars, work (see
`pipelines/kafka.py`).
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from repeated import run_repeated

servers, source, target, times, jars, work = sys.argv[1:]
folder = tempfile.mkdtemp(prefix="structured-streaming-")
numbers = itertools.count()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "4g")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)


def query() -> None:
    """Write to the next target. Append mode writes a window once the watermark has passed it; the topic ends with rows
    of a later time."""
    number = next(numbers)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    rows = reader.option("startingOffsets", "earliest").load().select("value")
    if work == "windows":
        parsed = F.from_json(F.col("value").cast("string"), "k bigint, v bigint, ts timestamp")
        parts = rows.select(parsed.alias("row")).select("row.*").withWatermark("ts", "0 seconds")
        totals = parts.groupBy("k", F.window("ts", "1 second")).agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        columns = F.struct("k", F.col("window.start").alias("window_start"), "n", "total")
        rows = totals.select(F.to_json(columns).alias("value"))
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", f"{target}-{number}").option("checkpointLocation", f"{folder}/{number}")
    writer.trigger(availableNow=True).start().awaitTermination()


try:
    run_repeated(query, int(times))
finally:
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
