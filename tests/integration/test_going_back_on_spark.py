"""S9.3 on real Spark: back to an older checkpoint, and the files that were committed behind it are taken back."""

from __future__ import annotations

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom

ROWS = 6_000


@pytest.mark.slow
def test_files_committed_behind_a_checkpoint_are_taken_back_and_come_once(local_job: RealJob) -> None:
    """S9.3."""
    job = local_job
    job.start(rows=ROWS, rate=3_000.0, retained_checkpoints=20)
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(ROWS)
    first, *later = [c.checkpoint_id for c in view.completed]
    back = RestoreFrom("checkpoint", checkpoint_id=first, on_committed_after="rewind")
    job.start(rows=ROWS, rate=50_000.0, restore=back)
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(ROWS)
    assert [d.data["checkpoint_id"] for d in job.client.decisions() if d.kind == "rewind"] == [first]
    assert [c.checkpoint_id for c in view.completed if c.taken_back] == later
    with pytest.raises(SnapshotError, match=f"checkpoint {later[0]} had committed"):
        job.client.submit(restore=RestoreFrom("checkpoint", checkpoint_id=later[0]))
