"""A Delta table as the sink of a job on real Spark: killed, stopped, and restored at another parallelism."""

from __future__ import annotations

import os
import signal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import RealJob
from deltalake import DeltaTable
from ledger import compared
from pipelines.counting import KEYS, expected

from tidegate.jobs.records import RestoreFrom

ROWS = 24_000


def rows_of(folder: str) -> list[tuple[int, int, int, int]]:
    """Rows of the table, sorted."""
    table = DeltaTable(folder).to_pyarrow_table()
    starts = pc.divide(pc.cast(table["window_start"], pa.int64()), 1_000_000).to_pylist()
    starts = [second * 1000 for second in starts]
    return sorted(zip(table["k"].to_pylist(), starts, table["n"].to_pylist(), table["total"].to_pylist(), strict=True))


@pytest.mark.slow
def test_a_delta_table_is_exact_after_a_kill_and_a_restore_at_another_parallelism(local_job: RealJob) -> None:
    """S5.5, S7.4, S9.1."""
    local_job.start(rows=ROWS, rate=2_000.0, function="into_delta")
    local_job.completed(3)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok and result.data["outcome"] == "committed", result
    local_job.until_status("STOPPED")
    assert len(rows_of(local_job.out)) < len(expected(ROWS)), "the job should have been stopped half-way"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=ROWS, rate=50_000.0, function="into_delta", restore=restore, parallelism=1)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert compared("DataGen, Delta", expected(ROWS), rows_of(local_job.out)) == (0, 0)
    assert len(DeltaTable(local_job.out).partitions()) == KEYS
