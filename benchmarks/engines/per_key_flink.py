"""A running count and sum per key by PyFlink: a `KeyedProcessFunction` with a `ValueState` on the heap.

Arguments: input folder, output folder, runs, `thread` or `process` (where Python runs: in the JVM, or beside it), jars
(separated by ":"). Flink reads and writes the Parquet files in Java.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flink_settings import configuration
from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment
from repeated import run_repeated

source, target, times, mode, jars = sys.argv[1:]
# The interpreter within the JVM does not know that this one is of a virtual environment.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sysconfig.get_path("platlib"), os.environ.get("PYTHONPATH")]))
work = tempfile.mkdtemp(prefix="flink-")
settings = configuration(
    jars,
    work,
    {
        "python.execution-mode": mode,
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        # Only in mode `process`, for all keys instead of 1,000: it saves a call of the JVM for each row.
        "python.state.cache-size": "100000",
    },
)
PARQUET = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
RESULT = Types.ROW_NAMED(["k", "n", "total"], [Types.LONG(), Types.LONG(), Types.LONG()])


class Totals(KeyedProcessFunction):
    """A running count and sum of each key. Emits one result for each row."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the state."""
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.totals = runtime_context.get_state(ValueStateDescriptor("totals", kind))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        """Add the row, and emit the totals."""
        n, total = self.totals.value() or (0, 0)
        n, total = n + 1, total + value[1]
        self.totals.update((n, total))
        yield Row(value[0], n, total)


def query() -> None:
    """Replace the output."""
    shutil.rmtree(target, ignore_errors=True)
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    tables = StreamTableEnvironment.create(environment)
    tables.execute_sql(f"CREATE TABLE source (k BIGINT, v BIGINT) WITH ('path' = '{source}', {PARQUET})")
    tables.execute_sql(f"CREATE TABLE target (k BIGINT, n BIGINT, total BIGINT) WITH ('path' = '{target}', {PARQUET})")
    rows = tables.to_data_stream(tables.from_path("source"))
    totals = rows.key_by(lambda row: row[0], Types.LONG()).process(Totals(), RESULT)
    tables.from_data_stream(totals).execute_insert("target").wait()
    for path in Path(target).glob("part-*"):
        path.rename(path.with_suffix(".parquet"))


try:
    run_repeated(query, int(times))
finally:
    shutil.rmtree(work, ignore_errors=True)
