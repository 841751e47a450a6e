"""JSON lines as the sink of a job on real Spark: killed, stopped, restored at another parallelism, and taken back."""

from __future__ import annotations

import os
import signal

import pyarrow as pa
import pytest
from conftest import RealJob
from pipelines.counting import KEYS, expected

from tidegate import JsonLines
from tidegate.connectors.transactions import SinkContext
from tidegate.jobs.records import RestoreFrom

ROWS = 24_000


def rows_of(folder: str) -> list[tuple[int, int, int, int]]:
    """Rows as Spark sees them, sorted."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        read = spark.read.json(folder).selectExpr("k", "unix_millis(to_timestamp(window_start)) w", "n", "total")
        return sorted((row.k, row.w, row.n, row.total) for row in read.collect())
    finally:
        spark.stop()


@pytest.mark.slow
def test_json_lines_are_exact_after_a_kill_a_restore_and_a_rewind(local_job: RealJob) -> None:
    """S5.5, S7.4, S9.1, S9.3."""
    local_job.start(rows=ROWS, rate=2_000.0, function="into_json_lines")
    local_job.completed(3)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok and result.data["outcome"] == "committed", result
    view = local_job.until_status("STOPPED")
    saved = view.completed[-1].checkpoint_id
    half_way = rows_of(local_job.out)
    assert 0 < len(half_way) < len(expected(ROWS)), "the job should have been stopped half-way"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=ROWS, rate=50_000.0, function="into_json_lines", restore=restore, parallelism=1)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert rows_of(local_job.out) == expected(ROWS)
    assert len([name for name in os.listdir(local_job.out) if name.startswith("k=")]) == KEYS
    spec = local_job.client.specs()[-1]
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    everybody = SinkContext(spec.job_id, spec.lineage, "out", 0, 1, view.generation + 1, "run-later", schema)
    JsonLines(local_job.out, partition_by="k").rewind_to(everybody, saved)()
    assert rows_of(local_job.out) == half_way
