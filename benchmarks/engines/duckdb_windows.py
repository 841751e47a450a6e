"""Windows of one second per key in DuckDB. Arguments: input folder, output folder, runs."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
from repeated import run_repeated

source, target, times = sys.argv[1:]
Path(target).mkdir(parents=True)
duckdb.execute("SET threads=2")


def query() -> None:
    """Replace the output."""
    duckdb.execute(
        f"COPY (SELECT k, date_trunc('second', ts) AS window_start, count(*) n, sum(v)::BIGINT total "
        f"FROM '{source}/*.parquet' GROUP BY ALL) TO '{target}/out.parquet' (FORMAT parquet)"
    )


run_repeated(query, int(times))
