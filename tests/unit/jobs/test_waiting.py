"""Waits end: with what was waited for, or with the reason why it will not come."""

from __future__ import annotations

import pytest
from scripted_contract import FakeTime, ScriptedDriver

from tidegate.errors import CommandRefusedError, DriverLostError, JobFailedError, JobNotFoundError, WaitTimeoutError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import RESULT_GRACE_S
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.status import JobStatus, JobView


def beating(clock: FakeTime, driver: ScriptedDriver, until: float = 1e9) -> None:
    def beat() -> None:
        driver.beat(slots_registered=1, slots_needed=2)
        if clock.seconds < until:
            clock.at(clock.seconds + 1.0, beat)

    clock.at(clock.seconds + 1.0, beat)


def test_a_wait_for_a_status_gives_the_view_that_has_it(client: JobClient, clock: FakeTime, spec: Spec) -> None:
    driver = ScriptedDriver(client, spec)
    clock.at(5.0, lambda: driver.status("RUNNING"))
    seen: list[JobView] = []
    view = client.wait_status({"RUNNING", JobStatus.FINISHED}, "1 min", on_poll=seen.append)
    assert view.status is JobStatus.RUNNING
    assert seen[-1] == view and len(seen) > 5
    assert 5.0 <= clock.seconds < 6.0


def test_a_wait_that_takes_too_long_says_what_the_job_is_doing(client: JobClient, clock: FakeTime, spec: Spec) -> None:
    driver = ScriptedDriver(client, spec)
    beating(clock, driver)
    with pytest.raises(
        WaitTimeoutError, match=r"status RUNNING.*60 s.*WAITING_FOR_SLOTS, 1 of 2 slots.*Only the wait has ended"
    ):
        client.wait_status({"RUNNING"}, "1 min")
    assert 60.0 <= clock.seconds < 61.0


def test_a_failed_job_ends_the_wait_with_its_root_cause(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    def fail() -> None:
        driver.generation_log.append(
            "failure", {"message": "no column 'x'", "operator": "daily", "subtask": 1, "traceback": "File pipeline.py"}
        )
        driver.status("FAILED")

    clock.at(3.0, fail)
    with pytest.raises(
        JobFailedError, match=r"no column 'x' \[job flights, operator daily, subtask 1\](?s:.*)pipeline.py"
    ):
        client.wait_status({"FINISHED"})


def test_a_job_that_ends_otherwise_ends_the_wait(client: JobClient, clock: FakeTime, driver: ScriptedDriver) -> None:
    clock.at(3.0, lambda: driver.status("CANCELED", reason="asked for"))
    with pytest.raises(CommandRefusedError, match="the job is CANCELED, so status RUNNING will not arrive.*asked for"):
        client.wait_until(lambda view: False, "status RUNNING")


def test_a_silent_driver_ends_the_wait_after_its_heartbeat_timeout(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    path = driver.checkpoint(1)
    beating(clock, driver, until=20.0)
    with pytest.raises(DriverLostError, match=rf"no heartbeat for 30 s.*Restore the job from .*{path}"):
        client.wait_status({"FINISHED"})
    assert 50.0 <= clock.seconds < 53.0


def test_a_submission_without_a_driver_is_not_taken_for_a_dead_one(
    client: JobClient, clock: FakeTime, spec: Spec
) -> None:
    with pytest.raises(WaitTimeoutError, match="CREATED"):
        client.wait_status({"RUNNING"}, "2 min")


def test_a_newer_submission_ends_a_wait_for_the_older(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    driver.checkpoint(1)
    clock.at(1.0, lambda: client.submit(restore=RestoreFrom("latest")))
    with pytest.raises(CommandRefusedError, match="submission 1 has ended.*submission 2 has replaced it"):
        client.wait_status({"FINISHED"}, spec=1)


def test_a_wait_for_a_result_gives_it(client: JobClient, clock: FakeTime, driver: ScriptedDriver) -> None:
    command = client.send("savepoint", issued_by="me")
    beating(clock, driver)
    clock.at(100.0, lambda: driver.answer(command.command_id, ok=False))
    result = client.wait_result(command.command_id, timeout="10 min")
    assert not result.ok
    with pytest.raises(CommandRefusedError, match="told"):
        result.raise_if_refused()


def test_an_answer_that_comes_just_after_the_jobs_end_still_counts(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    command = client.send("stop", issued_by="me")
    clock.at(1.0, lambda: driver.status("STOPPED"))
    clock.at(1.0 + RESULT_GRACE_S / 2, lambda: driver.answer(command.command_id))
    assert client.wait_result(command.command_id).ok


def test_a_job_that_ends_without_answering_ends_the_wait(
    client: JobClient, clock: FakeTime, driver: ScriptedDriver
) -> None:
    command = client.send("savepoint", issued_by="me")
    clock.at(1.0, lambda: driver.status("FINISHED"))
    with pytest.raises(CommandRefusedError, match="the job is FINISHED, so the answer to 'savepoint' will not arrive"):
        client.wait_result(command.command_id)
    assert clock.seconds < 2.0 + RESULT_GRACE_S


def test_a_command_to_a_dead_driver_does_not_hang(client: JobClient, clock: FakeTime, driver: ScriptedDriver) -> None:
    command = client.send("stop", issued_by="me")
    with pytest.raises(DriverLostError):
        client.wait_result(command.command_id)


def test_a_wait_for_an_unknown_command_is_refused(client: JobClient, driver: ScriptedDriver) -> None:
    with pytest.raises(JobNotFoundError, match="no command with the id nope"):
        client.wait_result("nope")
