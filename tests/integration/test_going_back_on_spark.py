"""S9.3 on real Spark: back to an older checkpoint, and the output that was committed behind it is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RealJob
from ledger import compared
from pipelines.counting import expected
from postgres_server import PostgresServer

from tidegate.cli.main import main
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom

INTO_POSTGRES = Path(__file__).parent / "pipelines" / "into_postgres.py"
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


@pytest.mark.slow
def test_rows_committed_to_postgres_behind_a_checkpoint_are_rewound_and_come_once(
    local_job: RealJob, postgres: PostgresServer
) -> None:
    """S9.3: the job goes back from its end to its first checkpoint. `gc` then removes rewind records."""
    job = local_job
    with postgres.connect() as sql:
        sql.execute("DROP TABLE IF EXISTS counted; DROP SCHEMA IF EXISTS tidegate CASCADE")
        sql.execute("CREATE TABLE counted (k int8, window_start timestamp, n int8, total int8)")
        job.out = postgres.dsn
        job.start(rows=ROWS, rate=3_000.0, retained_checkpoints=20, pipeline=INTO_POSTGRES)
        view = job.until_status("FINISHED", "FAILED")
        assert view.status.value == "FINISHED", view.failure
        query = "SELECT k, (extract(epoch FROM window_start) * 1000)::int8, n, total FROM counted ORDER BY 1, 2"
        assert sql.execute(query).fetchall() == expected(ROWS)
        first = view.completed[0].checkpoint_id
        back = RestoreFrom("checkpoint", checkpoint_id=first, on_committed_after="rewind")
        job.start(rows=ROWS, rate=3_000.0, pipeline=INTO_POSTGRES, restore=back)
        view = job.until_status("FINISHED", "FAILED")
        assert view.status.value == "FINISHED", view.failure
        assert compared("DataGen, Postgres", expected(ROWS), sql.execute(query).fetchall()) == (0, 0)
        assert [d.data["checkpoint_id"] for d in job.client.decisions() if d.kind == "rewind"] == [first]
        query = "SELECT DISTINCT checkpoint_id FROM tidegate.rewind_records ORDER BY 1"
        kept = [n for (n,) in sql.execute(query)]
        gc = ["gc", job.client.job_id, "--root", job.root, "--sinks", "--older-than", "0 s", "--keep", "1"]
        assert main(gc) == 0
        assert len(kept) > 1
        assert [n for (n,) in sql.execute(query)] == [view.completed[-1].checkpoint_id], kept
