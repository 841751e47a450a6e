"""A job on real Spark that writes to a real PostgreSQL server (S7.4), killed, stopped and restored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import RealJob
from ledger import compared
from pipelines.counting import expected
from postgres_server import PASSWORD_VARIABLE, PostgresServer

from tidegate.jobs.records import RestoreFrom

INTO_POSTGRES = Path(__file__).parent / "pipelines" / "into_postgres.py"
ROWS = 24_000


@pytest.mark.slow
def test_a_killed_slot_and_a_restore_at_another_parallelism_leave_each_row_in_the_table_once(
    local_job: RealJob, postgres: PostgresServer
) -> None:
    """S5.5, S7.4, S9.1: rows are appended, so one that comes twice shows; and nothing tells the password."""
    with postgres.connect() as sql:
        sql.execute(
            "DROP TABLE IF EXISTS counted; CREATE TABLE counted (k int8, window_start timestamp, n int8, total int8)"
        )
        local_job.out = postgres.dsn
        local_job.start(rows=ROWS, rate=4_000.0, pipeline=INTO_POSTGRES)
        local_job.completed(2)
        os.kill(local_job.slot_pids()[0], signal.SIGKILL)
        local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
        command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
        result = local_job.client.wait_result(command.command_id, "60 s")
        assert result.ok, result
        local_job.until_status("STOPPED")
        query = "SELECT k, (extract(epoch FROM window_start) * 1000)::int8, n, total FROM counted ORDER BY 1, 2"
        assert 0 < len(sql.execute(query).fetchall()) < len(expected(ROWS)), "the job should have been stopped half-way"
        restore = RestoreFrom("savepoint", path=result.data["path"])
        local_job.start(rows=ROWS, rate=50_000.0, pipeline=INTO_POSTGRES, restore=restore, parallelism=1)
        view = local_job.until_status("FINISHED", "FAILED")
        assert view.status.value == "FINISHED", view.failure
        assert compared("DataGen, Postgres", expected(ROWS), sql.execute(query).fetchall()) == (0, 0)
        assert sql.execute("SELECT count(*) FROM tidegate.transactions").fetchone() == (0,)
    secret = os.environ[PASSWORD_VARIABLE].encode()
    assert not [path for path in Path(local_job.root).rglob("*") if path.is_file() and secret in path.read_bytes()]
