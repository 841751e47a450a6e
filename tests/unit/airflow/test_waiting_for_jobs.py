"""Waits and sensors: what they take for done, what they refuse to wait for, and how they notice a dead driver."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scripted_job import NOW, Job, ScriptedDriver

from airflow_tidegate.operators.snapshots import TidegateTriggerSavepointOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.sensors.end_of_data import TidegateEndOfDataSensor
from airflow_tidegate.version_compat import (
    TRIGGER_TIMEOUT_MARGIN,
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    TaskDeferred,
)
from airflow_tidegate.waits.job_waits import (
    CancelWait,
    CheckpointWait,
    CommandWait,
    EndOfDataWait,
    JobStatusWait,
    StatusWait,
    StopWait,
)
from airflow_tidegate.waits.watch import LAUNCH_GRACE_S, WaitRunner
from tidegate.errors import DriverLostError, JobFailedError, WaitTimeoutError
from tidegate.jobs.launches import record_launch, record_process
from tidegate.jobs.records import Launch, RestoreFrom


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    """A running job with three sources."""
    job.submit()
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    made.beat(sources=SOURCES)
    return made


SOURCES = {
    "airlines": {"boundedness": "bounded", "records": 16},
    "weather": {"boundedness": "bounded", "records": 9},
    "flights": {"boundedness": "unbounded", "records": 100, "played_all": False},
}


class Clocks:
    """Two clocks that stand still until moved."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1000.0, 5.0

    def watch(self, job: Job, wait: Any, deadline_at: float | None = None) -> WaitRunner:
        return WaitRunner(
            job.client,
            wait,
            deadline_at=deadline_at,
            timeout_s=60.0,
            now=lambda: self.wall,
            monotonic=lambda: self.monotonic,
        )


def test_a_refused_start_does_not_change_what_waits_conclude_about_the_job(job: Job) -> None:
    """S9.3: the job is as it was; only those who wait for the refused submission see a failure."""
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    driver.checkpoint(1)
    command = job.client.send("stop", command_id="c1", issued_by="x")
    stop = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 1, "path": "p"}
    driver.status("STOPPED", stop=stop)
    job.submit("again", restore=RestoreFrom("latest"), fresh=False, pipeline=None, code_root=None)
    refused = ScriptedDriver(job.client, spec=2)
    refused.generation_log.append("failure", {"message": "no such column", "code": "pipeline"})
    refused.status("FAILED", reason="no such column")
    view = job.client.view()
    ended = JobStatusWait(statuses=("STOPPED",)).check(job.client, view)
    assert ended == {"job_id": "j1", "spec": 1, "generation": 2, "status": "STOPPED"}
    stopped = StopWait(command_id=command.command_id).check(job.client, view)
    assert stopped is not None and stopped["outcome"] == "committed"
    cancelled = CancelWait(command_id="none").check(job.client, view)
    assert cancelled is not None and cancelled["status"] == "STOPPED"
    for wait in (StatusWait(spec=2, statuses=("RUNNING",)), JobStatusWait(statuses=("RUNNING",)), EndOfDataWait()):
        with pytest.raises(JobFailedError, match="no such column"):
            wait.check(job.client, view)


def poke(sensor: Any, job: Job) -> Any:
    return sensor.poke(job.context(sensor.task_id))


def checkpoint_sensor(**arguments: Any) -> TidegateCheckpointSensor:
    return TidegateCheckpointSensor(task_id="s", job_id="j1", **arguments)


def savepoint(**arguments: Any) -> TidegateTriggerSavepointOperator:
    return TidegateTriggerSavepointOperator(task_id="p", job_id="j1", **arguments)


def end_sensor(**arguments: Any) -> TidegateEndOfDataSensor:
    return TidegateEndOfDataSensor(task_id="s", job_id="j1", **arguments)


def test_a_checkpoint_counts_when_it_is_completed_and_not_when_it_is_claimed_or_aborted(
    job: Job, driver: ScriptedDriver
) -> None:
    sensor = checkpoint_sensor()
    driver.checkpoint(1, aborted="declined")
    driver.generation_log.append("claim", {"checkpoint_id": 2, "kind": "checkpoint", "path": "p", "triggered_at": NOW})
    assert not poke(sensor, job)
    driver.checkpoint(3)
    found = poke(sensor, job)
    assert found
    assert (found.xcom_value["checkpoint_id"], found.xcom_value["duration_ms"]) == (3, 7)


def test_counting_counts_the_current_submission_only(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1)
    driver.checkpoint(2)
    driver.status("FINISHED")
    job.submit("second")
    second = ScriptedDriver(job.client, spec=2)
    second.status("RUNNING")
    second.checkpoint(3)
    assert not poke(checkpoint_sensor(count="2"), job)
    second.checkpoint(4)
    found = poke(checkpoint_sensor(count="2"), job)
    assert found.xcom_value["count"] == 2


def test_newer_than_takes_the_xcom_of_a_savepoint(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1, "savepoint")
    assert not poke(checkpoint_sensor(newer_than={"checkpoint_id": 1, "path": "p"}), job)
    driver.checkpoint(2)
    assert poke(checkpoint_sensor(newer_than="1"), job)


def test_waiting_for_a_checkpoint_that_was_aborted_fails_with_its_reason(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1, aborted="declined by daily")
    driver.checkpoint(2)
    with pytest.raises(AirflowException, match="declined by daily"):
        poke(checkpoint_sensor(checkpoint_id=1), job)


def test_a_number_that_is_none_fails_at_once(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowFailException, match="newer_than"):
        poke(checkpoint_sensor(newer_than="the last one"), job)


def test_named_sources_are_waited_for_and_others_are_not(job: Job, driver: ScriptedDriver) -> None:
    sensor = end_sensor(sources=["airlines"])
    driver.generation_log.append("end_of_data", {"source": "weather"})
    assert not poke(sensor, job)
    driver.generation_log.append("end_of_data", {"source": "airlines"})
    assert poke(sensor, job)


def test_without_names_all_sources_are_waited_for(job: Job, driver: ScriptedDriver) -> None:
    for ended in ("airlines", "weather"):
        driver.generation_log.append("end_of_data", {"source": ended})
    assert not poke(end_sensor(), job)
    driver.generation_log.append("end_of_data", {"source": "flights"})
    assert poke(end_sensor(), job)


def test_without_names_nothing_has_ended_while_no_source_is_known(job: Job) -> None:
    job.submit()
    assert not poke(end_sensor(), job)


def test_a_replay_has_played_all_when_the_hint_of_the_current_reign_says_so(job: Job, driver: ScriptedDriver) -> None:
    sensor = end_sensor(played_all="flights")
    assert not poke(sensor, job)
    driver.beat(sources={**SOURCES, "flights": {**SOURCES["flights"], "played_all": True}})
    assert poke(sensor, job)
    ScriptedDriver(job.client, launch=2).status("RUNNING")
    assert not poke(end_sensor(played_all="flights"), job), "what an earlier driver told is over"


def test_a_finished_job_has_ended_all_its_sources(job: Job, driver: ScriptedDriver) -> None:
    driver.status("FINISHED")
    assert poke(end_sensor(sources=["airlines"], played_all=["flights"]), job)


def test_a_source_that_the_job_does_not_have_fails_at_once_naming_the_nearest(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowFailException, match="Did you mean 'airlines'"):
        poke(end_sensor(sources=["airline"]), job)


def test_a_sensor_on_a_failed_job_fails_with_the_root_cause_instead_of_waiting(
    job: Job, driver: ScriptedDriver
) -> None:
    driver.generation_log.append(
        "failure", {"message": "no column 'x'", "operator": "daily", "subtask": 0, "traceback": None}
    )
    driver.status("FAILED")
    with pytest.raises(AirflowException, match="no column 'x'"):
        poke(checkpoint_sensor(), job)


def test_a_rescheduled_sensor_notices_a_dead_driver_within_one_poke(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    with pytest.raises(AirflowException, match="driver is lost"):
        poke(checkpoint_sensor(mode="reschedule"), job)
    assert not poke(checkpoint_sensor(mode="poke"), job)


def test_a_driver_whose_heartbeat_stands_still_is_noticed(job: Job, driver: ScriptedDriver) -> None:
    clocks = Clocks()
    watch = clocks.watch(job, CheckpointWait(count=1))
    assert watch.poll() is None
    clocks.monotonic += 29
    driver.beat()
    assert watch.poll() is None
    clocks.monotonic += 29
    assert watch.poll() is None
    clocks.monotonic += 2
    with pytest.raises(DriverLostError, match="no heartbeat for 31 s; no launch of the submission is recorded"):
        watch.poll()


def test_a_driver_whose_process_here_is_gone_is_noticed_at_the_second_look(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Launch(1, 1, "local", "here", NOW, (), "n", pid=4711)
    monkeypatch.setattr("airflow_tidegate.waits.job_reader.local_driver_death", lambda *_: gone)
    watch = Clocks().watch(job, CheckpointWait(count=1))
    assert watch.poll() is None, "its last words may have come after the first look"
    with pytest.raises(DriverLostError, match="4711"):
        watch.poll()


def test_last_words_of_a_process_that_is_gone_are_heard(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Launch(1, 1, "local", "here", NOW, (), "n", pid=4711)
    monkeypatch.setattr("airflow_tidegate.waits.job_reader.local_driver_death", lambda *_: gone)
    watch = Clocks().watch(job, StatusWait(spec=1, statuses=("FINISHED",)))
    assert watch.poll() is None
    driver.status("FINISHED")
    assert watch.poll() is not None


def test_a_driver_that_never_begins_is_noticed(job: Job) -> None:
    job.submit()
    clocks = Clocks()
    watch = clocks.watch(job, StatusWait(spec=1, statuses=("RUNNING",)))
    assert watch.poll() is None
    clocks.monotonic += LAUNCH_GRACE_S - 1
    assert watch.poll() is None
    clocks.monotonic += 1
    with pytest.raises(DriverLostError, match="has not started"):
        watch.poll()


def test_a_driver_that_waits_in_a_clusters_queue_is_not_lost(job: Job) -> None:
    spec = job.submit()
    launch = record_launch(job.client.store, job.client.layout, spec.number, launcher="yarn", host="yarn")
    record_process(job.client.store, job.client.layout, replace(launch, external_id="application_1_2"))
    clocks = Clocks()
    watch = clocks.watch(job, StatusWait(spec=1, statuses=("RUNNING",)))
    assert watch.poll() is None
    clocks.monotonic += 100 * LAUNCH_GRACE_S
    assert watch.poll() is None


def test_a_wait_ends_at_its_deadline_and_not_before(job: Job, driver: ScriptedDriver) -> None:
    clocks = Clocks()
    watch = clocks.watch(job, CheckpointWait(count=1), deadline_at=1060.0)
    clocks.wall = 1059.9
    assert watch.poll() is None
    clocks.wall = 1060.0
    with pytest.raises(WaitTimeoutError, match="60 s"):
        watch.poll()


def test_an_answer_that_came_before_the_deadline_was_noticed_counts(job: Job, driver: ScriptedDriver) -> None:
    clocks = Clocks()
    job.client.send("savepoint", command_id="c", issued_by="t")
    watch = clocks.watch(job, CommandWait(command_id="c"), deadline_at=1000.0)
    driver.answer("c", path="p")
    assert watch.poll() is not None


def test_a_status_wait_ends_when_a_newer_submission_takes_over(job: Job, driver: ScriptedDriver) -> None:
    driver.status("FINISHED")
    job.submit("second")
    with pytest.raises(Exception, match="submission 2 has replaced it"):
        Clocks().watch(job, StatusWait(spec=1, statuses=("RUNNING",))).poll()


def test_a_job_that_failed_is_a_job_failed_error(job: Job, driver: ScriptedDriver) -> None:
    driver.status("FAILED", reason="boom")
    with pytest.raises(JobFailedError, match="boom"):
        Clocks().watch(job, StatusWait(spec=1, statuses=("RUNNING",))).poll()


def test_a_sensor_that_takes_too_long_times_out_as_airflow_sensors_do(job: Job, driver: ScriptedDriver) -> None:
    sensor = checkpoint_sensor(timeout=0, poke_interval=0)
    with pytest.raises(AirflowSensorTimeout):
        sensor.execute(job.context("s"))


def test_airflow_ends_a_deferred_sensor_that_nobody_answers_some_time_after_its_timeout(
    job: Job, driver: ScriptedDriver
) -> None:
    """A store that hangs, or no triggerer."""
    with pytest.raises(TaskDeferred) as deferred:
        checkpoint_sensor(timeout=60, deferrable=True).execute(job.context("s"))
    assert deferred.value.timeout == timedelta(seconds=60) + TRIGGER_TIMEOUT_MARGIN


def test_airflows_setting_says_what_is_deferred_that_does_not_say_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not checkpoint_sensor().deferrable and not savepoint().deferrable
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "true")
    assert checkpoint_sensor().deferrable and savepoint().deferrable
    assert not checkpoint_sensor(deferrable=False).deferrable and not savepoint(deferrable=False).deferrable
