"""`tidegate.read_state` as a Spark DataFrame: every Spark task reads the state of one subtask of the snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])


def rows(n: Any) -> dict[str, Any]:
    return {"k": n % 50, "ts": pa.array(n).cast(pa.timestamp("ms"))}


def pipeline() -> td.Pipeline:
    p = td.Pipeline()
    stream = p.read(td.DataGen(rows, SCHEMA, rows=6400, splits=2, batch_rows=100), uid="rows").with_watermark(
        "ts", "0 s"
    )
    stream.group_by("k").window(td.tumbling("1 h")).agg(n=td.count(), uid="hourly").write(td.Discard(), uid="out")
    return p


def test_the_state_of_a_savepoint_is_a_data_frame(tmp_path: Path) -> None:
    job = InProcessJob(pipeline, {"parallelism": 2}, root=str(tmp_path))
    run = job.submit()
    run.pump(9)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok, answer
    path = f"{tmp_path}/{answer.data['path']}"
    expected = td.read_state(path, "hourly", "windows").select(["key:k", "count:n"]).to_pylist()
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        frame = td.read_state(path, "hourly", "windows", spark=spark)
        assert dict(frame.dtypes)["__key_group"] == "int" and frame.rdd.getNumPartitions() == 2
        found = [row.asDict() for row in frame.select("`key:k`", "`count:n`").collect()]
    finally:
        spark.stop()
    run.crash()
    assert len(found) == 50 and sorted(map(str, found)) == sorted(map(str, expected))
