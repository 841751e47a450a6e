"""Windows of one second per key in Polars. Arguments: input folder, output folder, runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "2"

import polars as pl
from repeated import run_repeated

source, target, times = sys.argv[1:]
Path(target).mkdir(parents=True)


def query() -> None:
    """Replace the output."""
    rows = pl.scan_parquet(f"{source}/*.parquet").with_columns(window_start=pl.col("ts").dt.truncate("1s"))
    totals = rows.group_by("k", "window_start").agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
    totals.select("k", "window_start", "n", "total").sink_parquet(f"{target}/out.parquet")


run_repeated(query, int(times))
