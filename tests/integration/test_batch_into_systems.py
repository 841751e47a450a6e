"""Batch jobs from end to end: by the command line, on a real standalone cluster, into a Delta table and into a real
PostgreSQL server (S8.1)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import PIPELINE, RealJob
from deltalake import DeltaTable
from pipelines.counting import KEYS, expected
from postgres_server import PostgresServer

from tidegate.jobs.os_processes import child_processes

INTO_POSTGRES = Path(__file__).parent / "pipelines" / "into_postgres.py"
ROWS = 20_000
LONG_S = 400.0
COUNTED = "SELECT k, (extract(epoch FROM window_start) * 1000)::int8, n, total FROM counted ORDER BY 1, 2"


def tidegate(*words: str) -> dict[str, Any]:
    """What the command line answers, when it has done what it was told."""
    command = [sys.executable, "-m", "tidegate.cli.main", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run_in_batch(job: RealJob, pipeline: str, *words: str) -> dict[str, Any]:
    """`tidegate start --wait`, in batch."""
    where = ("--root", job.root, "--job-id", job.client.job_id, "--master", job.master)
    options = ("--option", "execution_mode=batch", "--option", "parallelism=2")
    given = ("--arg", f"rows={ROWS}", "--arg", "rate=1e9", "--arg", f"out={job.out}")
    return tidegate("start", pipeline, "--wait", *where, *options, *given, *words)


@pytest.mark.slow
def test_a_delta_table_gets_one_version_of_each_subtask(local_job: RealJob) -> None:
    """S7.4, and S9.3: by the command line alone."""
    answer = run_in_batch(local_job, f"{PIPELINE}:into_delta")
    assert answer["status"] == "FINISHED"
    table = DeltaTable(local_job.out)
    rows = table.to_pyarrow_table()
    starts = pc.divide(pc.cast(rows["window_start"], pa.int64()), 1000).to_pylist()
    found = zip(rows["k"].to_pylist(), starts, rows["n"].to_pylist(), rows["total"].to_pylist(), strict=True)
    assert sorted(found) == expected(ROWS)
    assert len(table.partitions()) == KEYS
    assert sum(entry["operation"] == "WRITE" for entry in table.history()) == 2


@pytest.mark.slow
def test_rows_wait_in_postgresql_for_a_verdict_that_comes_after_the_end(
    local_job: RealJob, postgres: PostgresServer
) -> None:
    """S7.8: prepared by Spark's tasks, committed by the command line, once."""
    with postgres.connect() as sql:
        sql.execute(
            "DROP TABLE IF EXISTS counted; CREATE TABLE counted (k int8, window_start timestamp, n int8, total int8)"
        )
        local_job.out = postgres.dsn
        answer = run_in_batch(local_job, f"{INTO_POSTGRES}:build", "--option", "commit=on_request")
        assert answer["status"] == "FINISHED_COMMIT_PENDING"
        assert sql.execute(COUNTED).fetchall() == []
        for verdict in (["--approve"], []):
            where = (local_job.client.job_id, "--root", local_job.root)
            assert tidegate("commit-pending", *where, *verdict)["status"] == "FINISHED"
        assert sql.execute(COUNTED).fetchall() == expected(ROWS)
        assert sql.execute("SELECT count(*) FROM tidegate.transactions").fetchone() == (0,)


@pytest.mark.slow
def test_a_standalone_cluster_loses_an_executor_and_each_row_is_there_once(cluster_job: RealJob) -> None:
    """S8.1: Spark runs the tasks again that were lost, and the job knows nothing of it."""
    job = cluster_job
    job.start(rows=ROWS, rate=2_000.0, execution_mode="batch", restart_strategy="none")
    job.until(lambda _: reading_executors(job.master), "an executor whose Python reads", LONG_S)
    os.kill(reading_executors(job.master)[0], signal.SIGKILL)
    view = job.until(lambda view: view.status.value in ("FINISHED", "FAILED"), "its end", LONG_S)
    assert view.status.value == "FINISHED", job.logs()[-6000:]
    assert "Lost executor" in job.logs()
    assert [(c.kind, c.committed) for c in view.checkpoints] == [("final", True)] and view.restarts == 0
    assert job.output() == expected(ROWS)


def reading_executors(master: str) -> list[int]:
    """Processes of the cluster's executors that have started a Python worker."""
    workers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_worker(pid, master)]
    executors = [pid for worker in workers for pid, _ in child_processes(worker, "CoarseGrainedExecutorBackend")]
    return [pid for pid in executors if child_processes(pid, "python")]


def is_worker(pid: int, master: str) -> bool:
    """Whether it is a Worker of the cluster."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return master in words and "org.apache.spark.deploy.worker.Worker" in words
