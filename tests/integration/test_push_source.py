"""A push source on real Spark (S4.1): threads of its own in every slot, killed, stopped and restored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

PUSHED = Path(__file__).parent / "pipelines" / "pushed.py"
ROWS = 24_000


@pytest.mark.slow
def test_a_push_source_survives_a_killed_slot_and_a_suspend_with_exact_output(local_job: RealJob) -> None:
    """S4.1, S4.2, S9.1."""
    local_job.start(rows=ROWS, rate=2_000.0, pipeline=PUSHED)
    local_job.completed(2)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    local_job.until_status("STOPPED")
    assert len(local_job.output()) < len(expected(ROWS)), "the job should have been stopped half-way"
    local_job.start(
        rows=ROWS, rate=50_000.0, pipeline=PUSHED, restore=RestoreFrom("savepoint", path=result.data["path"])
    )
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
