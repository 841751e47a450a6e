"""What the driver's supervision makes of hung slots, cancels and strategies, on real Spark."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from conftest import RealJob
from pipelines.counting import expected

ROWS = 24_000
HANGING = Path(__file__).parent / "pipelines" / "hanging.py"


@pytest.mark.slow
@pytest.mark.gate
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


@pytest.mark.slow
@pytest.mark.gate
def test_the_death_of_the_jvm_ends_the_driver_and_the_next_one_continues_the_job(local_job: RealJob) -> None:
    """S9.1: it uses up no restart, because it is no failure of the job."""
    local_job.start(rows=ROWS, rate=4_000.0, restart_strategy="none")
    local_job.completed(1)
    first = local_job.driver_pid()
    [jvm] = [child for child in psutil.Process(first).children() if child.name() == "java"]
    jvm.kill()
    local_job.until(lambda view: view.generation == 2, "the next driver")
    local_job.adopt_driver()
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    log = local_job.client.store.read(local_job.client.layout.launch_log(1, 1)).decode()
    assert "the JVM of the driver has ended" in log
    assert local_job.output() == expected(ROWS)
    assert not psutil.pid_exists(first)


@pytest.mark.slow
def test_a_jvm_that_dies_before_the_first_checkpoint_is_not_started_again_and_again(local_job: RealJob) -> None:
    local_job.start(rows=0, rate=4_000.0, checkpoint_interval="10 min")
    local_job.until_status("RUNNING")
    driver = psutil.Process(local_job.driver_pid())
    [jvm] = [child for child in driver.children() if child.name() == "java"]
    jvm.kill()
    psutil.wait_procs([driver], timeout=60)
    assert not driver.is_running()
    assert local_job.client.view().status.value == "RUNNING", "no decision of a driver that is not at fault"
    assert "has completed no checkpoint" in local_job.logs()
