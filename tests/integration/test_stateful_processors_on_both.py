"""The same StatefulProcessor with the same input, batch by batch, gives the same rows here as on Spark's own
`transformWithState`."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import PATIENCE_S, RealJob
from pipelines.stateful import CASES, INITIAL, INPUT, Case, pipeline
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidegate.coordinator.job_run import RunEnded
from tidegate.testing.collect import CollectSink, collected, forget_collected
from tidegate.testing.in_process import InProcessJob

STATE_STORE = "spark.sql.streaming.stateStore"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # The rest is for speed: a few rows are not worth compiling for, nor is their state worth an upload each batch.
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    f"{STATE_STORE}.maintenanceInterval": "1h",
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
PIPELINE = Path(__file__).parent / "pipelines" / "stateful.py"
SAMPLE = ("sessions", "list and map", "initial state")
"""Of the cases, for `make test`."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One for this file, in a JVM of its own: another test of this process may have one whose workers do not find the
    processors."""
    changed = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    context: Any = SparkContext
    others = context._gateway, context._jvm
    context._gateway = context._jvm = None
    session = SparkSession.builder.master("local[1]").config(map=SETTINGS).getOrCreate()
    yield session
    session.stop()
    context._gateway.shutdown()
    context._gateway.proc.stdin.close()
    context._gateway, context._jvm = others
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def on_spark(spark: SparkSession, case: Case, folder: Path, name: str) -> Counter[tuple[Any, ...]]:
    """What Spark's own operator gives, a file for each batch."""
    folder.mkdir()
    for number, rows in enumerate(case.batches):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), schema=INPUT), path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    schema = spark.read.parquet(str(folder)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    if case.mode == "EventTime":
        rows = rows.withWatermark("t", "0 seconds")
    initial = None
    if case.initial is not None:
        table = pa.Table.from_pylist(list(case.initial), schema=INITIAL)
        initial = spark.createDataFrame(table).groupBy("owner")
    grouped = rows.groupBy("k")
    call = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
    result = call(case.processor, case.output, case.output_mode, case.mode, initial)
    query = (
        result.writeStream.format("memory")
        .queryName(name)
        .outputMode(case.output_mode)
        .trigger(availableNow=True)
        .start()
    )
    if case.mode == "ProcessingTime":  # such a query never ends: a timer might still come
        deadline = time.monotonic() + PATIENCE_S
        while query.isActive and len(query.recentProgress) <= len(case.batches):
            assert time.monotonic() < deadline, query.lastProgress
            time.sleep(0.1)
        query.stop()
    assert query.awaitTermination(PATIENCE_S)
    return Counter(as_tuple(row.asDict(True)) for row in spark.table(name).collect())


def in_process(case: Case, name: str, **options: Any) -> Counter[tuple[Any, ...]]:
    """What tidegate gives, in this process."""
    job = InProcessJob(lambda: pipeline(case, CollectSink(name)), {"parallelism": 2, **options})
    assert isinstance(job.submit().to_end(), RunEnded)
    rows = Counter(as_tuple(row) for row in collected(name).table().to_pylist())
    forget_collected(name)
    return rows


def as_tuple(row: dict[str, Any]) -> tuple[Any, ...]:
    """Values that can be counted."""

    def plain(value: Any) -> Any:
        if isinstance(value, datetime):  # Spark's is naive, of this machine's zone
            return value.timestamp()
        return tuple(value) if isinstance(value, list) else value

    return tuple(map(plain, row.values()))


@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_a_processor_gives_the_same_rows_as_on_spark(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """S8: `transformWithState`, unchanged."""
    case = CASES[name]
    theirs = on_spark(spark, case, tmp_path / "rows", name.replace(" ", "_"))
    # At the end of its input Spark leaves timers alone, and here they fire (S7.6): so does that of the last session.
    ours = Counter({row: n for row, n in in_process(case, f"both-{name}").items() if row[0] != "end"})
    assert sum(ours.values()) >= 4
    assert ours == theirs


def test_a_processor_runs_in_a_job_on_real_spark(local_job: RealJob) -> None:
    """The rows are those of the other two, through slots, snapshots and files."""
    local_job.start(rows=0, rate=0.0, function="sessions", pipeline=PIPELINE)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", local_job.logs()[-4000:]
    rows = ds.dataset(local_job.out, format="parquet").to_table().to_pylist()
    assert Counter(map(as_tuple, rows)) == in_process(CASES["sessions"], "both-job")
