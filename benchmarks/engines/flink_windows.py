"""Windows of 10 s per key over generated rows (W1) in Flink SQL, in a cluster within one JVM.

Arguments: rows, keys, state back end, "windows" or "source" (only the source), jars (separated by ":"), output folder,
runs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from flink_settings import configuration
from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.table import Schema, StreamTableEnvironment
from repeated import run_repeated

rows, keys, backend, part, jars, target, times = sys.argv[1:]
work = tempfile.mkdtemp(prefix="flink-")
settings = configuration(jars, work, {"state.backend.type": backend})
WINDOWS = (
    "INSERT INTO target SELECT k, window_start, count(*), sum(v) "
    "FROM TABLE(TUMBLE(TABLE source, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end"
)
SOURCE_ONLY = "INSERT INTO nothing SELECT k, v, ts FROM source WHERE v < 0"


def query() -> None:
    """Replace the output."""
    shutil.rmtree(target, ignore_errors=True)
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    tables = StreamTableEnvironment.create(environment)
    numbers = environment.from_source(
        NumberSequenceSource(0, int(rows) - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    schema = Schema.new_builder().column("f0", "BIGINT")
    schema = schema.column_by_expression("k", f"MOD(f0 * 2654435761, {keys})").column_by_expression(
        "v", "MOD(f0, 1000)"
    )
    schema = schema.column_by_expression("ts", f"TO_TIMESTAMP_LTZ(MOD(f0, {int(rows) // 2}) / 250, 3)")
    tables.create_temporary_view("source", numbers, schema.watermark("ts", "ts").build())
    tables.execute_sql("CREATE TABLE nothing (k BIGINT, v BIGINT, ts TIMESTAMP(3)) WITH ('connector' = 'blackhole')")
    tables.execute_sql(
        "CREATE TABLE target (k BIGINT, window_start TIMESTAMP(3), n BIGINT, total BIGINT) "
        f"WITH ('connector' = 'filesystem', 'path' = '{target}', 'format' = 'parquet', "
        "'parquet.utc-timezone' = 'true')"
    )
    tables.execute_sql(WINDOWS if part == "windows" else SOURCE_ONLY).wait()
    for path in Path(target).glob("part-*"):
        path.rename(path.with_suffix(".parquet"))


try:
    run_repeated(query, int(times))
finally:
    shutil.rmtree(work, ignore_errors=True)
