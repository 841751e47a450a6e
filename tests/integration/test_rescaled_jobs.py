"""S5.5 on real Spark: a job goes on at another parallelism."""

from __future__ import annotations

from conftest import RealJob
from pipelines.counting import expected

from tidegate.contract.records import RestoreFrom

ROWS = 24_000
RATE = 4_000.0


def suspend(job: RealJob) -> str:
    """Stop half-way; the savepoint's path."""
    command = job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = job.client.wait_result(command.command_id, "60 s")
    assert result.ok and result.data["outcome"] == "committed"
    job.until_status("STOPPED")
    return str(result.data["path"])


def test_a_job_suspended_with_two_slots_goes_on_with_three_and_then_with_one(local_job: RealJob) -> None:
    """S4.2, S5.5, S7.4: windows, splits and files that wait for their commit move to other slots."""
    local_job.start(rows=ROWS, rate=RATE)
    local_job.completed(2)
    path = suspend(local_job)
    first = len(local_job.output())
    local_job.master = "local[3]"
    local_job.start(rows=ROWS, rate=RATE, parallelism=3, restore=RestoreFrom("savepoint", path=path))
    local_job.until_status("RUNNING", "FAILED")
    local_job.until(lambda view: len(local_job.output()) > first, "a window that three slots have committed")
    path = suspend(local_job)
    second = len(local_job.output())
    assert first < second < len(expected(ROWS)), "both stops should have come half-way"
    local_job.start(rows=ROWS, rate=50_000.0, parallelism=1, restore=RestoreFrom("savepoint", path=path))
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
