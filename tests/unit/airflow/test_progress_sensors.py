"""Sensors for event time, for a job's status, and for a checkpoint newer than a point in time; in a worker and in the
triggerer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.sensors.job_status import TidegateJobStatusSensor
from airflow_tidegate.sensors.watermark import TidegateWatermarkSensor
from airflow_tidegate.version_compat import AirflowException, AirflowFailException, TaskDeferred

SIX = "2013-01-01T06:00:00+00:00"
SIX_US = 1357020000 * 1_000_000
SOURCES = {"flights": {"boundedness": "unbounded", "watermark_us": SIX_US + 5}, "weather": {"boundedness": "bounded"}}


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    """A running job that has told nothing of itself yet."""
    job.submit()
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    return made


def watermark_sensor(**arguments: Any) -> TidegateWatermarkSensor:
    return TidegateWatermarkSensor(task_id="s", job_id="j1", **{"at": SIX, **arguments})


def found(sensor: Any, job: Job) -> Any:
    """What one poke finds; None: not yet."""
    return sensor.poke(job.context(sensor.task_id)).xcom_value


def found_deferred(sensor: Any, job: Job, then: Any) -> Any:
    """What the deferred sensor finds when `then` happens after the deferral."""
    sensor.deferrable, sensor.poke_interval = True, 0.01
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(job.context(sensor.task_id))
    then()
    trigger: Any = deferred.value.trigger
    _, arguments = trigger.serialize()

    async def fire() -> Any:
        return await asyncio.wait_for(anext(type(trigger)(**arguments).run()), 20)

    return sensor.execute_complete(job.context(sensor.task_id), asyncio.run(fire()).payload)


@pytest.mark.parametrize(
    "at", [SIX, "2013-01-01 06:00:00+00:00", "2013-01-01T07:00:00+01:00", datetime(2013, 1, 1, 6, tzinfo=UTC)]
)
def test_a_watermark_is_waited_for_until_it_has_reached_the_point(job: Job, driver: ScriptedDriver, at: Any) -> None:
    """S4.4."""
    sensor = watermark_sensor(at=at)
    assert found(sensor, job) is None, "no watermark is known"
    driver.beat(watermark_us=SIX_US - 1)
    assert found(sensor, job) is None
    driver.beat(watermark_us=SIX_US)
    assert found(sensor, job) == {
        "job_id": "j1",
        "status": "RUNNING",
        "at": "2013-01-01T06:00:00.000Z",
        "watermark": "2013-01-01T06:00:00.000Z",
        "checkpoint_id": None,
    }


def test_what_a_driver_told_before_a_restart_counts_no_more(job: Job, driver: ScriptedDriver) -> None:
    driver.beat(watermark_us=SIX_US)
    ScriptedDriver(job.client, launch=2).status("RUNNING")
    assert found(watermark_sensor(), job) is None


def test_the_watermark_of_one_source_may_be_ahead_of_the_jobs(job: Job, driver: ScriptedDriver) -> None:
    driver.beat(watermark_us=SIX_US - 9, sources=SOURCES)
    assert found(watermark_sensor(), job) is None
    assert found(watermark_sensor(source="flights"), job)["watermark"] == "2013-01-01T06:00:00.000Z"
    assert found(watermark_sensor(source="weather"), job) is None
    driver.generation_log.append("end_of_data", {"source": "weather"})
    assert found(watermark_sensor(source="weather"), job)["watermark"] is None
    with pytest.raises(AirflowFailException, match="Did you mean 'flights'"):
        found(watermark_sensor(source="flight"), job)


def test_a_durable_watermark_is_one_of_a_checkpoint_whose_output_is_committed(job: Job, driver: ScriptedDriver) -> None:
    """S4.4, S7.4."""
    sensor = watermark_sensor(durable=True)
    driver.beat(watermark_us=SIX_US + 9)
    driver.checkpoint(1, watermark_us=SIX_US - 1, sinks=("out",))
    driver.generation_log.append("committed", {"checkpoint_id": 1})
    assert found(sensor, job) is None
    driver.checkpoint(2, watermark_us=SIX_US, sinks=("out",))
    assert found(sensor, job) is None, "its output is not committed"
    driver.generation_log.append("committed", {"checkpoint_id": 2})
    assert found(sensor, job)["checkpoint_id"] == 2


def test_where_no_sink_commits_the_completed_checkpoint_is_enough(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1, "savepoint", watermark_us=SIX_US)
    assert found(watermark_sensor(durable="True"), job) is None, "a savepoint is no recovery point (S2.4)"
    driver.checkpoint(2, watermark_us=SIX_US)
    assert found(watermark_sensor(durable="True"), job)["checkpoint_id"] == 2


def test_a_checkpoint_of_a_timeline_that_was_left_counts_no_more(job: Job, driver: ScriptedDriver) -> None:
    """S9.3."""
    driver.checkpoint(1, watermark_us=SIX_US)
    driver.status("FINISHED")
    assert found(watermark_sensor(durable=True), job)["checkpoint_id"] is None, "a job that has finished is past all"
    job.submit("afresh")
    ScriptedDriver(job.client, spec=2).status("RUNNING")
    assert found(watermark_sensor(durable=True), job) is None


def test_a_job_that_ends_before_the_point_is_a_failure(job: Job, driver: ScriptedDriver) -> None:
    driver.beat(watermark_us=SIX_US - 1)
    driver.status("STOPPED")
    with pytest.raises(AirflowException, match="STOPPED"):
        found(watermark_sensor(), job)


@pytest.mark.parametrize("at", ["2013-01-01", "2013-01-01T06:00:00", "six", datetime(2013, 1, 1), None])
def test_a_point_without_zone_is_refused(job: Job, driver: ScriptedDriver, at: Any) -> None:
    with pytest.raises(AirflowFailException, match="argument at"):
        found(watermark_sensor(at=at), job)


def test_a_durable_watermark_of_one_source_is_refused(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowFailException, match="Remove source or durable"):
        found(watermark_sensor(durable=True, source="flights"), job)


@pytest.mark.parametrize("durable", ["yes", 1, None])
def test_what_durable_cannot_mean_is_refused_and_not_taken_for_false(
    job: Job, driver: ScriptedDriver, durable: Any
) -> None:
    with pytest.raises(AirflowFailException, match="argument durable"):
        found(watermark_sensor(durable=durable), job)


def test_a_status_is_waited_for_and_another_end_is_a_failure(job: Job, driver: ScriptedDriver) -> None:
    sensor = TidegateJobStatusSensor(task_id="s", job_id="j1", statuses="stopped, FINISHED")
    assert found(sensor, job) is None
    driver.status("FINISHED")
    assert found(sensor, job) == {"job_id": "j1", "spec": 1, "generation": 1, "status": "FINISHED"}
    with pytest.raises(AirflowException, match="the job is FINISHED"):
        found(TidegateJobStatusSensor(task_id="s", job_id="j1", statuses=["RUNNING"]), job)


def test_a_status_that_there_is_not_is_refused_naming_the_nearest(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowFailException, match="Did you mean 'RUNNING'"):
        found(TidegateJobStatusSensor(task_id="s", job_id="j1", statuses="RUNING"), job)
    with pytest.raises(AirflowFailException, match="no status to wait for"):
        found(TidegateJobStatusSensor(task_id="s", job_id="j1", statuses=""), job)


def test_a_checkpoint_newer_than_a_point_in_time_was_triggered_after_it(job: Job, driver: ScriptedDriver) -> None:
    sensor = TidegateCheckpointSensor(task_id="s", job_id="j1", newer_than="2026-01-01 06:00:00+00:00")
    driver.checkpoint(1, triggered_at="2026-01-01T05:59:59.999Z")
    assert found(sensor, job) is None
    driver.checkpoint(2, triggered_at="2026-01-01T06:00:00.001Z")
    assert found(sensor, job)["checkpoint_id"] == 2


def test_deferred_sensors_find_the_same(job: Job, driver: ScriptedDriver) -> None:
    watermark = found_deferred(watermark_sensor(), job, lambda: driver.beat(watermark_us=SIX_US))
    assert watermark["watermark"] == "2013-01-01T06:00:00.000Z"
    newer = TidegateCheckpointSensor(task_id="s", job_id="j1", newer_than="2026-01-01T06:00:00Z")
    triggered = lambda: driver.checkpoint(2, triggered_at="2026-01-01T06:00:00.001Z")  # noqa: E731
    assert found_deferred(newer, job, triggered)["checkpoint_id"] == 2
    ended = TidegateJobStatusSensor(task_id="s", job_id="j1", statuses="STOPPED")
    assert found_deferred(ended, job, lambda: driver.status("STOPPED"))["status"] == "STOPPED"
