"""Supervising: a dead driver is relaunched within a budget that lies in the job directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.operators.supervise import TidegateSuperviseJobOperator
from airflow_tidegate.triggers.job_triggers import STEP_TRIGGERS
from airflow_tidegate.version_compat import AirflowFailException, TaskDeferred
from airflow_tidegate.waits.step_waits import SuperviseWait
from tidegate.clock import iso
from tidegate.jobs.launch.desired_state import stop_requested_by
from tidegate.jobs.os_processes import host_name, process_namespace
from tidegate.jobs.records import Desired, Launch, encode

Steps = list[Callable[[], None]]


@pytest.fixture
def launch(job: Job, dead_process: int, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Records a launch here whose process is gone, with a driver that has said RUNNING; launches of operators do the
    same."""
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)

    def record(spec: int = 1, ago: timedelta = timedelta(0)) -> None:
        attempt = 1 + sum(number == spec for number, _ in job.client.launches())
        at = iso(datetime.now(UTC) - ago)
        made = Launch(spec, attempt, "local", host_name(), at, (), "n", process_space=process_namespace())
        job.client.store.create(job.client.layout.launch(spec, attempt), encode(made))
        there = Launch(spec, attempt, "local", host_name(), at, (), "n", dead_process, "then", process_namespace())
        job.client.store.create(job.client.layout.launched_process(spec, attempt), encode(there))
        driver = ScriptedDriver(job.client, spec, attempt)
        driver.status("RUNNING")
        drivers.append(driver)

    drivers: list[ScriptedDriver] = []
    job.on_launch = lambda spec, attempt: record(spec)
    job.submit()
    record.drivers = drivers  # type: ignore[attr-defined]
    return record


def supervise(**changes: Any) -> TidegateSuperviseJobOperator:
    return TidegateSuperviseJobOperator(**{"task_id": "s", "job_id": "j1", "deferrable": False, **changes})


def test_a_dead_driver_is_relaunched_until_the_budget_is_spent_and_then_somebody_is_woken(
    job: Job, launch: Any, between_looks: Steps
) -> None:
    """S9.1: not one relaunch more, and no retry is used up for it."""
    launch()
    between_looks += [lambda: None] * 6
    with pytest.raises(AirflowFailException, match="relaunched 2 times within 1 h; at most 2") as caught:
        supervise(max_relaunches="2").execute(job.context("s"))
    assert job.launches == [1, 1]
    assert "the driver's process" in str(caught.value), "the cause of the last death is told"


@pytest.mark.parametrize("launcher", ["local", "agent"])
def test_a_silent_driver_that_cannot_be_launched_again_wakes_somebody_in_the_end(
    job: Job, launch: Any, between_looks: Steps, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """S9.2: its process is there, frozen; or nobody launches what an agent is asked for."""
    if launcher == "local":
        monkeypatch.setattr("airflow_tidegate.launchers.driver_launch.find_local_driver", lambda *_: object())
    connection = {"conn_type": "tidegate", "host": str(job.root), "extra": {"launcher": launcher}}
    monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps(connection))
    launch(ago=timedelta(minutes=20))
    operator = supervise(no_progress_timeout="30 min")

    def later() -> None:
        operator.now = lambda: (datetime.now(UTC) + timedelta(minutes=31)).timestamp()  # type: ignore[method-assign]

    between_looks += [lambda: None, later]
    with pytest.raises(AirflowFailException, match="no sign of life for .* min.*no other driver was launched"):
        operator.execute(job.context("s"))
    assert job.launches == [] and not between_looks


def test_a_retry_has_no_budget_of_its_own(job: Job, launch: Any, between_looks: Steps) -> None:
    for minutes in (50, 40, 30):
        launch(ago=timedelta(minutes=minutes))
    between_looks += [lambda: None] * 2
    with pytest.raises(AirflowFailException, match="at most 2"):
        supervise(max_relaunches=2).execute(job.context("s"))
    assert job.launches == []


def test_relaunches_out_of_the_window_are_forgotten_and_the_end_is_told(
    job: Job, launch: Any, between_looks: Steps
) -> None:
    for hours in (9, 8, 7):
        launch(ago=timedelta(hours=hours))
    between_looks += [lambda: None, lambda: launch.drivers[-1].status("FINISHED")]
    result = supervise(max_relaunches=1).execute(job.context("s"))
    assert job.launches == [1]
    assert (result["status"], result["relaunches"]) == ("FINISHED", 3)


def test_a_job_whose_driver_died_while_it_was_stopped_is_not_relaunched(
    job: Job, launch: Any, between_looks: Steps
) -> None:
    launch()
    job.client.send("stop", {}, command_id="stop-1", issued_by="cli")
    between_looks += [lambda: None]
    assert supervise().execute(job.context("s"))["status"] == "RUNNING"
    assert job.launches == []


def test_who_wants_a_job_to_be_over(job: Job, launch: Any) -> None:
    """S7.7, S9.4: a stop that was refused, withdrawn or never begun in time leaves the job as it was."""
    launch()
    assert stop_requested_by(job.client, 1) == ""
    for verb in ("checkpoint", "stop", "cancel"):
        job.client.send(verb, {}, command_id=verb, issued_by=f"by-{verb}")
        assert stop_requested_by(job.client, 2) == "", "another submission is not meant"
    assert stop_requested_by(job.client, 1) == "by-cancel"
    launch.drivers[0].answer("cancel", ok=False, code="refused")
    assert stop_requested_by(job.client, 1) == "by-stop"
    job.client.withdraw("stop")
    assert stop_requested_by(job.client, 1) == ""
    job.client.send("stop", {}, command_id="late", expires_in=timedelta(0), issued_by="x")
    assert stop_requested_by(job.client, 1) == ""
    for state, spec, by in (("running", 1, ""), ("stopped", 2, ""), ("stopped", 1, "agent")):
        desired = Desired("stopped" if state == "stopped" else "running", spec, iso(datetime.now(UTC)), "agent")
        job.client.store.replace(job.client.layout.desired, encode(desired))
        assert stop_requested_by(job.client, 1) == by


@pytest.mark.parametrize("status", ["FINISHED", "FINISHED_COMMIT_PENDING", "STOPPED", "CANCELED"])
def test_it_ends_with_the_job(job: Job, launch: Any, status: str) -> None:
    launch()
    launch.drivers[0].status(status)
    result = supervise().execute(job.context("s"))
    assert (result["status"], result["relaunches"]) == (status, 0)


def test_a_job_that_failed_for_good_wakes_somebody_with_the_root_cause(job: Job, launch: Any) -> None:
    launch()
    launch.drivers[0].generation_log.append("failure", {"message": "disk full", "operator": "daily", "subtask": 1})
    launch.drivers[0].status("FAILED")
    with pytest.raises(AirflowFailException, match="disk full"):
        supervise().execute(job.context("s"))
    assert job.launches == []


def test_no_progress_is_no_checkpoint_and_no_record_for_too_long(job: Job) -> None:
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    now = [1000.0]
    wait = SuperviseWait(no_progress_s=60.0, now=lambda: now[0])

    def observed(seconds: float, records: int) -> Any:
        now[0] += seconds
        driver.beat(sources={"in": {"boundedness": "unbounded", "records": records}})
        return wait.check(job.client, job.client.view())

    assert observed(500, 5) is None, "the first look sees the job for the first time"
    assert observed(59, 5) is None
    assert observed(0.9, 6) is None
    assert observed(59.9, 6) is None
    found = observed(0.1, 6)
    assert (found["action"], "for 1 min" in found["why"]) == ("fail", True)
    driver.checkpoint(1)  # completed long ago, by the scripted clock of the job
    now[0] = job_time() + 59
    assert wait.check(job.client, job.client.view()) is None
    now[0] = job_time() + 60
    assert wait.check(job.client, job.client.view()) is not None


def job_time() -> float:
    """The scripted driver's clock, seconds since the epoch."""
    return datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def test_a_job_that_stands_still_wakes_somebody_and_is_left_running(
    job: Job, launch: Any, between_looks: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "airflow_tidegate.waits.step_waits.SuperviseWait._progressed_s", lambda self, view, now_s: now_s - 99
    )
    launch()
    with pytest.raises(AirflowFailException, match="no checkpoint has completed"):
        supervise(no_progress_timeout="90 s").execute(job.context("s"))
    assert launch.drivers[0].commands() == []


def test_deferred_each_watch_is_held_by_the_triggerer(job: Job, launch: Any) -> None:
    """The worker relaunches when the trigger tells that the driver is lost, and defers again."""
    launch()
    operator = supervise(deferrable=True, max_relaunches=1)
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(job.context("s"))
    trigger: Any = caught.value.trigger
    path, arguments = trigger.serialize()
    assert path.endswith("TidegateSuperviseTrigger")
    assert STEP_TRIGGERS["supervise"](**arguments).job_wait() == SuperviseWait(
        no_progress_s=1800.0, owner="airflow:d/r1/s"
    )
    lost = {"wait": trigger.wait, "failure": {"code": "driver_lost", "message": "gone", "final": False}}
    with pytest.raises(TaskDeferred):
        supervise(deferrable=True, max_relaunches=1).execute_complete(job.context("s"), lost)
    assert job.launches == [1]
    with pytest.raises(AirflowFailException, match="at most 1"):
        supervise(deferrable=True, max_relaunches=1).execute_complete(job.context("s"), lost)
    assert job.launches == [1]


def test_a_driver_that_was_just_launched_elsewhere_is_given_its_time(job: Job, launch: Any) -> None:
    """Its heartbeat is silent because it has not started."""
    launch()
    elsewhere = Launch(1, 2, "local", "elsewhere", iso(datetime.now(UTC)), (), "n")
    job.client.store.create(job.client.layout.launch(1, 2), encode(elsewhere))
    lost = {"wait": {}, "failure": {"code": "driver_lost", "message": "silent", "final": False}}
    with pytest.raises(TaskDeferred):
        supervise(deferrable=True).execute_complete(job.context("s"), lost)
    assert job.launches == []


def test_what_cannot_be_meant_is_refused_at_once(job: Job, launch: Any) -> None:
    launch()
    for wrong in ({"max_relaunches": -1}, {"relaunch_window": 3600}, {"no_progress_timeout": "5"}, {"on_kill": "x"}):
        with pytest.raises(AirflowFailException, match=next(iter(wrong))):
            supervise(**wrong).execute(job.context("s"))
