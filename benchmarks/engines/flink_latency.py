"""The work of `latency.py` in Flink SQL, in a cluster within one JVM. Prints one JSON document.

Arguments: rows, rows per second, keys, slots, work ("total" or "window"), seconds of warm-up, milliseconds between
flushes of network buffers and between watermarks (0: Flink's defaults), jars (separated by ":").
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from flink_settings import configuration
from paced_lines import PacedLines, are_right
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.table import Schema, StreamTableEnvironment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpu_timeline import CpuTimeline

TARGET = """
CREATE TABLE target (k BIGINT, total BIGINT, due_us BIGINT, arrived TIMESTAMP(3))
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true')
"""
ARRIVED = "CAST(CURRENT_ROW_TIMESTAMP() AS TIMESTAMP(3))"
"""The clock, read for each row."""
END_US = (
    "1000000 * CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_end) AS BIGINT) "
    "+ 1000 * EXTRACT(MILLISECOND FROM window_end)"
)
TIME_US = "CAST(SPLIT_INDEX(f0, ' ', 1) AS BIGINT)"
SCHEMA = (
    Schema.new_builder()
    .column("f0", "STRING")
    .column_by_expression("k", "CAST(SPLIT_INDEX(f0, ' ', 0) AS BIGINT)")
    .column_by_expression("v", "CAST(1 AS BIGINT)")
    .column_by_expression("due_us", TIME_US)
    .column_by_expression("ts", f"TO_TIMESTAMP_LTZ({TIME_US} / 1000, 3)")
    .column_by_expression("passed", "PROCTIME()")
    .watermark("ts", "ts - INTERVAL '0.001' SECOND")  # rows of one millisecond have the same time
    .build()
)
RESULTS = {
    # Without the filter on the total, the planner reads the clock before the exchange.
    "total": f"SELECT k, total, due_us, {ARRIVED} FROM (SELECT k, due_us, SUM(v) OVER (PARTITION BY k "
    "ORDER BY passed ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS total FROM source) WHERE total > 0",
    "window": f"SELECT k, n, {END_US}, {ARRIVED} FROM (SELECT k, COUNT(*) AS n, window_end "
    "FROM TABLE(TUMBLE(TABLE source, DESCRIPTOR(ts), INTERVAL '0.1' SECOND)) GROUP BY k, window_start, window_end)",
}
"""Work -> query: the running total of each row, or windows of 0.1 s, which are due when they end."""


def run(
    rows: int, rate: int, keys: int, slots: int, work: str, flush_ms: int, jars: str
) -> tuple[pa.Table, Any, float]:
    """Run the job. Returns its results, the CPU meter, and the time of the first row."""
    folder = tempfile.mkdtemp(prefix="flink-latency-")
    settings = {"parallelism.default": str(slots), "taskmanager.numberOfTaskSlots": str(slots)}
    if flush_ms:
        settings["execution.buffer-timeout.interval"] = f"{flush_ms} ms"
        settings["pipeline.auto-watermark-interval"] = f"{flush_ms} ms"
    try:
        environment = StreamExecutionEnvironment.get_execution_environment(configuration(jars, folder, settings))
        tables = StreamTableEnvironment.create(environment)
        sender = PacedLines(rows, rate, keys, slots)
        java = environment._j_stream_execution_environment
        for number, port in enumerate(sender.ports):
            lines = DataStream(java.socketTextStream("127.0.0.1", port, "\n", 0))
            tables.create_temporary_view(f"source_{number}", lines, SCHEMA)
        # Each source has its own watermarks. Its expressions run with it, before the only exchange.
        every = " UNION ALL ".join(f"SELECT * FROM source_{number}" for number in range(slots))
        tables.execute_sql(f"CREATE TEMPORARY VIEW source AS {every}")
        path = Path(folder, "results")
        tables.execute_sql(TARGET.format(path=path))
        with CpuTimeline(os.getpid()) as timeline:
            sender.start()
            tables.execute_sql(f"INSERT INTO target {RESULTS[work]}").wait()
        return ds.dataset(path, format="parquet").to_table(), timeline, sender.start_s
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the job, and print the latencies of results after the warm-up."""
    rows, rate, keys, slots = (int(text) for text in sys.argv[1:5])
    work, warm_up_s, flush_ms, jars = sys.argv[5:]
    results, timeline, start_s = run(rows, rate, keys, slots, work, int(flush_ms), jars)
    if not are_right(results["k"].to_numpy(), results["total"].to_numpy(), work, rows, keys):
        raise SystemExit(f"the results of {work!r} are wrong: {results.num_rows} results of {rows} rows")
    due_ms = results["due_us"].to_numpy() / 1000
    arrived_ms = results["arrived"].cast(pa.timestamp("ms")).cast(pa.int64()).to_numpy()
    begin_s, end_s = start_s + float(warm_up_s), float(arrived_ms.max()) / 1000
    latencies_ms = (arrived_ms - due_ms)[due_ms >= begin_s * 1000]
    facts = {
        "p50_ms": float(np.percentile(latencies_ms, 50)),
        "p99_ms": float(np.percentile(latencies_ms, 99)),
        "cores": timeline.between(begin_s, end_s) / (end_s - begin_s),
        "note": f"{len(latencies_ms):,} results",
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
