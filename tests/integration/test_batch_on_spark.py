"""Batch mode on real Spark: the same pipelines, the same job directory, no barriers (S8)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from conftest import RealJob
from pipelines.batched import expected_of_everything
from pipelines.counting import expected

BATCHED = Path(__file__).parent / "pipelines" / "batched.py"
ROWS = 20_000


def finished(job: RealJob) -> None:
    """Wait for its end."""
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", job.logs()[-6000:]


def test_a_job_commits_once_and_says_so(local_job: RealJob) -> None:
    """S8.1: and what needs barriers is answered."""
    local_job.start(rows=ROWS, rate=1e9, execution_mode="batch", allow_mode_dependent=True)
    command = local_job.client.send("savepoint", issued_by="test")
    finished(local_job)
    assert local_job.output() == expected(ROWS)
    view = local_job.client.view()
    assert [(c.kind, c.status, c.committed) for c in view.checkpoints] == [("final", "completed", True)]
    assert all(source.end_of_data for source in view.sources)
    result = local_job.client.wait_result(command.command_id)
    assert (result.ok, result.code) == (False, "batch_mode"), result


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_both_modes_give_what_the_closed_form_says(local_job: RealJob, mode: str) -> None:
    """S8.2: a process, a union, a broadcast join, types that Spark does not have, two sinks."""
    local_job.start(rows=5000, rate=0, pipeline=BATCHED, function="everything", execution_mode=mode)
    finished(local_job)
    sums, named = expected_of_everything(5000)
    found = ds.dataset(f"{local_job.out}/sums", format="parquet").to_table()
    assert sorted(zip(*(found[name].to_pylist() for name in ("k", "total", "tagged")), strict=True)) == sums
    rows = ds.dataset(f"{local_job.out}/named", format="json").to_table()
    assert Counter(zip(rows["v"].to_pylist(), rows["name"].to_pylist(), strict=True)) == named


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_a_dataframe_is_a_source_in_both_modes(local_job: RealJob, mode: str) -> None:
    """S4.2: in streaming from files, which go with the job."""
    local_job.start(rows=ROWS, rate=0, pipeline=BATCHED, function="framed", execution_mode=mode)
    finished(local_job)
    assert local_job.output() == expected(ROWS)
    client = local_job.client
    assert not client.store.exists(client.layout.materialised_record(1, "orders"))


def test_a_function_that_fails_is_named_and_nothing_is_visible(local_job: RealJob) -> None:
    local_job.start(
        rows=5000, rate=0, pipeline=BATCHED, function="broken", execution_mode="batch", restart_strategy="none"
    )
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FAILED"
    assert view.failure is not None
    assert (view.failure.message, view.failure.operator) == ("ValueError: the last row is bad", "refuse")
    assert "the last row is bad" in (view.failure.traceback or "")
    assert not list(Path(local_job.out).glob("*.parquet"))
    assert [c.status for c in view.checkpoints] == ["aborted"]
