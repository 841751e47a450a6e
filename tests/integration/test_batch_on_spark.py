"""Batch mode on real Spark: the same pipelines, the same job directory, no barriers (S8)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import PIPELINE, RealJob
from pipelines.batched import expected_of_everything, expected_of_retried, retried, written_rows
from pipelines.counting import expected

from tidegate.jobs.status import JobView
from tidegate.plan.batch_plan import plan_batch
from tidegate.spark.batch.stage_compiler import needs_spark_sql

BATCHED = Path(__file__).parent / "pipelines" / "batched.py"
ROWS = 20_000


LONG_S = 400.0
"""Patience: a job takes ten seconds on an idle machine, most of which Spark's start and its first stage cost."""
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a JVM that lives for seconds."""


def start(
    job: RealJob, rows: int, function: str, pipeline: Path = BATCHED, mode: str = "batch", **options: Any
) -> None:
    job.start(rows=rows, rate=1e9, pipeline=pipeline, function=function, conf=QUICK, execution_mode=mode, **options)


def ended(job: RealJob) -> JobView:
    """Wait for its end."""
    return job.until(lambda view: view.status.value in ("FINISHED", "FAILED"), "its end", LONG_S)


def finished(job: RealJob) -> JobView:
    """Wait for its end, which is a good one."""
    view = ended(job)
    assert view.status.value == "FINISHED", job.logs()[-6000:]
    return view


@pytest.mark.slow
@pytest.mark.gate
def test_a_job_commits_once_and_says_so(local_job: RealJob) -> None:
    """S8.1: and what needs barriers is answered."""
    start(local_job, ROWS, "build", PIPELINE, allow_mode_dependent=True)
    command = local_job.client.send("savepoint", issued_by="test")
    view = finished(local_job)
    assert local_job.output() == expected(ROWS)
    assert [(c.kind, c.status, c.committed) for c in view.checkpoints] == [("final", "completed", True)]
    assert all(source.end_of_data for source in view.sources)
    result = local_job.client.wait_result(command.command_id)
    assert (result.ok, result.code) == (False, "batch_mode"), result


@pytest.mark.parametrize("mode", ["batch", pytest.param("streaming", marks=pytest.mark.slow)])
def test_both_modes_give_what_the_closed_form_says(local_job: RealJob, mode: str) -> None:
    """S8.2: a process, a union, a broadcast join, types that Spark does not have, two sinks."""
    start(local_job, 5000, "everything", mode=mode)
    finished(local_job)
    sums, named = expected_of_everything(5000)
    found = ds.dataset(f"{local_job.out}/sums", format="parquet").to_table()
    assert sorted(zip(*(found[name].to_pylist() for name in ("k", "total", "tagged")), strict=True)) == sums
    rows = ds.dataset(f"{local_job.out}/named", format="json").to_table()
    assert Counter(zip(rows["v"].to_pylist(), rows["name"].to_pylist(), strict=True)) == named


@pytest.mark.parametrize("mode", ["batch", pytest.param("streaming", marks=pytest.mark.slow)])
def test_a_dataframe_is_a_source_in_both_modes(local_job: RealJob, mode: str) -> None:
    """S4.2: in streaming from files, which go with the job; in batch Spark filters and renames (S8.1)."""
    start(local_job, ROWS, "framed", mode=mode)
    finished(local_job)
    assert local_job.output() == expected(ROWS)
    said = local_job.logs().count(f"Spark reads id, k=key, ts where id < {ROWS}, which is all of ")
    assert said == (1 if mode == "batch" else 0)
    client = local_job.client
    assert not client.store.exists(client.layout.materialised_record(1, "orders"))


def test_a_function_that_fails_is_named_and_nothing_is_visible(local_job: RealJob) -> None:
    start(local_job, 5000, "broken", restart_strategy="none")
    view = ended(local_job)
    assert view.status.value == "FAILED"
    assert view.failure is not None
    assert (view.failure.message, view.failure.operator) == ("ValueError: the last row is bad", "refuse")
    assert "the last row is bad" in (view.failure.traceback or "")
    assert not list(Path(local_job.out).glob("*.parquet"))
    assert [c.status for c in view.checkpoints] == ["aborted"]


def test_tasks_that_are_lost_once_run_again_without_spark_sql(local_job: RealJob) -> None:
    """S8.1: a union, a broadcast input, windows and two sinks; no row is lost or there twice."""
    assert not needs_spark_sql(plan_batch(retried({"rows": 5000, "out": "unused"}).build(), 2, 128))
    local_job.master = "local[2,3]"
    start(local_job, 5000, "retried", restart_strategy="none")
    view = finished(local_job)
    counted, known = expected_of_retried(5000)
    found = ds.dataset(f"{local_job.out}/counted", format="parquet").to_table()
    assert sorted(zip(*(found[name].to_pylist() for name in ("k", "n", "total")), strict=True)) == counted
    rows = ds.dataset(f"{local_job.out}/known", format="parquet").to_table()
    by_name: Counter[str] = Counter()
    for name, n in zip(rows["name"].to_pylist(), rows["n"].to_pylist(), strict=True):
        by_name[name] += n
    assert by_name == known
    assert (view.restarts, "the first attempt is lost" in local_job.logs()) == (0, True)


@pytest.mark.slow
def test_writers_of_spark_write_once_though_the_driver_dies_in_the_midst_of_the_commits(local_job: RealJob) -> None:
    """S8.1, S7.4: the checkpoint is complete, the first sinks are committed, the last cannot be."""
    out, n = Path(local_job.out), 1000
    out.mkdir()
    (out / "last").write_text("in the way")
    (out / "replaced").mkdir()
    pq.write_table(pa.table({"v": [-1]}), out / "replaced" / "old.parquet")
    start(local_job, n, "spark_written", restart_delay="1 h")
    view = local_job.until(lambda view: view.status.value == "RESTARTING", "a commit that fails", LONG_S)
    assert [(c.status, c.committed) for c in view.checkpoints] == [("completed", False)], local_job.logs()[-6000:]
    local_job.end()
    (out / "last").unlink()
    local_job.relaunch()
    view = finished(local_job)
    assert [(c.checkpoint_id, c.committed) for c in view.checkpoints] == [(1, True)], "nothing is calculated again"
    made = written_rows(np.arange(n))
    expected_rows = sorted(zip(made["v"].tolist(), made["name"].to_pylist(), range(n), strict=True))
    appended = ds.dataset(out / "appended", format="parquet").to_table()
    replaced = ds.dataset(out / "replaced", format="parquet", partitioning="hive").to_table()
    for found in (appended, replaced):
        micros = [n if us == n * 1_001 // 1000 else -1 for n, us in _times(found)]
        assert sorted(zip(found["v"].to_pylist(), found["name"].to_pylist(), micros, strict=True)) == expected_rows
        assert sum(np.isnan(found["x"].to_numpy())) == n // 2
    assert sorted({str(day) for day in replaced["day"].to_pylist()}) == ["1970-01-01", "1970-01-02", "1970-01-03"]
    last = [json.loads(line) for file in (out / "last" / "made").glob("*.json") for line in file.open()]
    assert sorted(row["v"] for row in last) == list(range(n))


def _times(found: pa.Table) -> list[tuple[int, int]]:
    """(number, microseconds) of the rows."""
    micros = found["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return list(zip(found["v"].to_pylist(), micros.to_pylist(), strict=True))


LINES = Path(__file__).parent / "pipelines" / "lines.py"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_bad_records_are_emitted_once_and_counted_in_both_modes(local_job: RealJob, mode: str) -> None:
    """S8.2: also those that a stage without a sink has skipped."""
    folder = Path(local_job.out).parent / "lines"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").write_text("".join('{"n": 1}\n' if n % 10 else "bad\n" for n in range(1_000)))
    start(local_job, 0, "build", LINES, mode=mode, allow_mode_dependent=True)
    view = finished(local_job)
    rows = ds.dataset(f"{local_job.out}/letters", format="parquet").to_table()
    assert (rows.num_rows, set(rows["raw"].to_pylist())) == (200, {b"bad"})
    assert dict(view.counters["letters"]) == {"bad_records": 200}
    assert dict(view.counters["skipping"]) == {"bad_records": 200}
