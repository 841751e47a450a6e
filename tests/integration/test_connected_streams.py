"""S5.1, S5.5 on real Spark: processes without keys and of two streams."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

PIPELINE = Path(__file__).parent / "pipelines" / "connected.py"
ROWS = 240_000
"""A minute's: enough for a kill and a stop on a busy machine."""
RATE = 4_000.0


@pytest.mark.slow
def test_states_of_subtasks_outlive_a_killed_slot_and_go_on_with_three_slots(local_job: RealJob) -> None:
    """S5.1, S5.5, S9.1: list, broadcast and raw state, and keyed state of two streams."""
    local_job.start(rows=ROWS, rate=RATE, pipeline=PIPELINE)
    local_job.completed(2)
    before = local_job.client.view().run_id
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    view = local_job.until(lambda view: view.run_id != before and view.status.value == "RUNNING", "another run")
    local_job.completed(len(view.completed) + 2)
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok and result.data["outcome"] == "committed", result
    local_job.until_status("STOPPED")
    assert 0 < len(local_job.output()) < len(expected(ROWS)), "the stop should have come half-way"
    local_job.master = "local[3]"
    restore = RestoreFrom("savepoint", path=str(result.data["path"]))
    local_job.start(rows=ROWS, rate=50_000.0, parallelism=3, pipeline=PIPELINE, restore=restore)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
