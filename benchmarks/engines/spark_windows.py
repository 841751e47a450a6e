"""Windows of one second per key in Spark, as a batch query. Arguments: input folder, output folder, runs."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from repeated import run_repeated

source, target, times = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "4g")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)


def query() -> None:
    """Replace the output."""
    rows = spark.read.parquet(source)
    windows = rows.groupBy("k", F.date_trunc("second", F.col("ts")).alias("window_start"))
    windows.agg(F.count("*").alias("n"), F.sum("v").alias("total")).write.mode("overwrite").parquet(target)


run_repeated(query, int(times))
spark.stop()
