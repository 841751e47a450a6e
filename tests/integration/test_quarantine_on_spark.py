"""S7.8 on real Spark: what is staged is read, some of it rejected into quarantine, and the rest committed after the
end of the job."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import pyarrow.dataset as ds
import pytest
from conftest import RealJob
from pipelines.counting import expected
from test_commit_gate_on_spark import approve_until_the_end, say

from tidegate.cli.main import main
from tidegate.jobs.client.staged_data import StagedData

ROWS = 8_000
Rows = set[tuple[int, int]]


def rows_of(staged: Iterable[StagedData]) -> Rows:
    """(key, window start), as plain readers find them."""
    found: Rows = set()
    for data in staged:
        table = ds.dataset(list(data.paths), format=data.format).to_table()
        starts = [int(start.timestamp() * 1000) for start in table["window_start"].to_pylist()]
        assert table.num_rows == data.rows == sum(len(pd.read_parquet(path)) for path in data.paths)
        found |= set(zip(table["k"].to_pylist(), starts, strict=True))
    return found


@pytest.mark.slow
def test_read_what_is_staged_reject_some_and_commit_the_rest_after_the_end(local_job: RealJob) -> None:
    """S7.8: every window is visible once, or in quarantine."""
    job = local_job
    gate = {"commit": "on_request", "max_uncommitted_checkpoints": 2}
    job.start(rows=ROWS, rate=2_000.0, **gate)
    gone: list[int] = []
    behind: Rows = set()
    while not gone:  # sources pause, so that nothing is decided by who is quicker
        waiting = job.until(lambda v: v.sources_paused, "sources to pause").waiting
        behind = rows_of(data for data in job.client.staged() if data.checkpoint_id == waiting[-1])
        if not behind:
            assert say(job, "commit", checkpoint_id=waiting[-1]).ok
            job.until(lambda v, n=waiting[-1]: n not in v.uncommitted, "the commit")  # type: ignore[misc]
            continue
        rejected = say(job, "reject", checkpoint_id=waiting[-1], then="quarantine", reason="wrong prices")
        assert rejected.ok and rejected.data["rejected"] == [waiting[-1]], rejected
        gone = rejected.data["rejected"]
    job.until(lambda _: behind == rows_of(job.client.staged(gone[0])), "all that is in quarantine")
    view = approve_until_the_end(job)
    assert view.status.value == "FINISHED_COMMIT_PENDING", view.failure
    assert view.waiting and set(gone).isdisjoint(view.uncommitted)
    words = ["commit-pending", job.client.job_id, "--root", job.client.root]
    assert main([*words, "--approve"]) == 0 and main(words) == 0
    assert job.client.view().status.value == "FINISHED"
    visible = {(k, start): (n, total) for k, start, n, total in job.output()}
    assert not visible.keys() & behind and len(visible) == len(job.output())
    everything = {(k, start): (n, total) for k, start, n, total in expected(ROWS)}
    assert visible.keys() | behind == everything.keys()
    assert all(everything[key] == value for key, value in visible.items())
