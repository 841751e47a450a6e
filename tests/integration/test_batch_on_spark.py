"""Batch mode on real Spark: the same pipeline, the same job directory, no barriers (S8.1)."""

from __future__ import annotations

from conftest import RealJob
from pipelines.counting import expected

ROWS = 20_000


def test_a_job_runs_in_batch_and_commits_once(local_job: RealJob) -> None:
    local_job.start(rows=ROWS, rate=1e9, execution_mode="batch")
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", local_job.logs()[-6000:]
    assert local_job.output() == expected(ROWS)
    assert [(c.kind, c.status, c.committed) for c in view.checkpoints] == [("final", "completed", True)]
    assert all(source.end_of_data for source in view.sources)
