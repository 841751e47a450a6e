"""What the driver's supervision makes of hung slots, cancels and strategies, on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected

ROWS = 24_000
HANGING = Path(__file__).parent / "pipelines" / "hanging.py"


def test_a_slot_whose_user_function_does_not_return_is_found_hung_and_the_job_recovers(local_job: RealJob) -> None:
    """S9.1."""
    local_job.start(rows=ROWS, rate=4_000.0, pipeline=HANGING, slot_progress_timeout="6 s")
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.restarts == 1
    assert view.failure is not None and "is hung" in view.failure.message
    assert local_job.output() == expected(ROWS)


@pytest.mark.slow
def test_a_job_that_fails_again_and_again_is_given_up_by_its_failure_rate(local_job: RealJob) -> None:
    """S9.1."""
    local_job.start(
        rows=0,
        rate=4_000.0,
        function="failing",
        restart_strategy="failure_rate",
        restart_attempts=1,
        restart_failure_interval="10 min",
    )
    view = local_job.until_status("FAILED")
    assert "more than 1 failures in 10 min: " in view.reason
    assert view.failure is not None and view.failure.operator == "explode"


@pytest.mark.slow
def test_two_cancels_are_both_answered_canceled(local_job: RealJob) -> None:
    """S9.4."""
    local_job.start(rows=0, rate=4_000.0)
    local_job.until_status("RUNNING")
    commands = [local_job.client.send("cancel", issued_by=f"test {n}") for n in range(2)]
    results = [local_job.client.wait_result(command.command_id, "60 s") for command in commands]
    assert [(result.ok, result.code) for result in results] == [(True, "canceled")] * 2
    local_job.until_status("CANCELED")
