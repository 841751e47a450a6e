"""Triggers and the operators that defer to them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from scripted_job import PIPELINE, Job, ScriptedDriver

from airflow_tidegate.operators.snapshots import TidegateTriggerSavepointOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator
from airflow_tidegate.operators.stop import TidegateStopJobOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.triggers.job_triggers import TRIGGERS, JobWaitTrigger, TidegateCheckpointTrigger
from airflow_tidegate.version_compat import AirflowException, AirflowFailException, AirflowSensorTimeout, TaskDeferred
from airflow_tidegate.waits.job_waits import CheckpointWait, EndOfDataWait, refuse_unknown_sources
from tidegate.errors import OptionError, StoreError
from tidegate.jobs.status import JobStatus


def again(trigger: JobWaitTrigger) -> JobWaitTrigger:
    """The trigger as a triggerer makes it after a restart."""
    path, arguments = trigger.serialize()
    name = path.rpartition(".")[2]
    [found] = [t for t in TRIGGERS.values() if t.__name__ == name]
    assert path == f"{found.__module__}.{name}"
    return found(**arguments)


def fire(trigger: JobWaitTrigger) -> Any:
    """The payload of the trigger's one event."""

    async def collect() -> list[TriggerEvent]:
        return [event async for event in trigger.run()]

    [event] = asyncio.run(asyncio.wait_for(collect(), 20))
    return event.payload


def deferred(operator: Any, job: Job) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(job.context(operator.task_id))
    return caught.value


def checkpoint_trigger(job: Job, **changes: Any) -> TidegateCheckpointTrigger:
    arguments: dict[str, Any] = {
        "root": str(job.root),
        "job_id": "j1",
        "wait": CheckpointWait(count=1).fields(),
        "poll_s": 0.01,
        **changes,
    }
    return TidegateCheckpointTrigger(**arguments)


def test_a_trigger_made_again_from_its_serialised_form_waits_for_the_same(job: Job, driver: ScriptedDriver) -> None:
    trigger = checkpoint_trigger(job, deadline_at=4e9, timeout_s=9.0, kill_command={"verb": "cancel"})
    twin = again(trigger)
    assert twin.serialize() == trigger.serialize()
    driver.checkpoint(1)
    assert fire(twin)["found"]["checkpoint_id"] == 1


def test_every_kind_of_wait_has_its_own_trigger_class_and_survives_serialisation(job: Job) -> None:
    wait = EndOfDataWait(sources=("a", "b"), played_all=("c",))
    trigger = TRIGGERS["end_of_data"](root=str(job.root), job_id="j1", wait=wait.fields())
    assert again(trigger).job_wait() == wait
    assert len(set(TRIGGERS.values())) == len(TRIGGERS) == 11


def test_the_store_is_never_read_on_the_event_loop(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.checkpoint(1)
    readers: set[str] = set()
    store = type(job.client.store)
    read = store.read_range

    def noting(self: Any, path: str, *span: int) -> bytes:
        readers.add(threading.current_thread().name)
        return read(self, path, *span)

    monkeypatch.setattr(store, "read_range", noting)
    fire(checkpoint_trigger(job))
    assert readers
    assert threading.current_thread().name not in readers


def test_a_trigger_fires_a_failure_when_it_cannot_come_any_more(job: Job, driver: ScriptedDriver) -> None:
    driver.status("FINISHED")
    assert "FINISHED" in fire(checkpoint_trigger(job))["failure"]["message"]


def test_a_trigger_fires_a_timeout_at_its_deadline(job: Job, driver: ScriptedDriver) -> None:
    assert fire(checkpoint_trigger(job, deadline_at=1.0))["failure"]["code"] == "timeout"


@pytest.mark.parametrize(("failures", "outcome"), [(3, "found"), (50, "failure")])
def test_a_store_that_fails_for_a_moment_does_not_end_the_wait(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, failures: int, outcome: str
) -> None:
    driver.checkpoint(1)
    left = [failures]
    store = type(job.client.store)
    read = store.read_range

    def failing(self: Any, path: str, *span: int) -> bytes:
        if left[0] > 0:
            left[0] -= 1
            raise StoreError("503")
        return read(self, path, *span)

    monkeypatch.setattr(store, "read_range", failing)
    assert outcome in fire(checkpoint_trigger(job))


def test_a_deferred_savepoint_gives_the_same_as_one_in_a_worker(job: Job, driver: ScriptedDriver) -> None:
    operator = TidegateTriggerSavepointOperator(task_id="save", job_id="j1", deferrable=True, poll_interval="10 ms")
    pause = deferred(operator, job)
    driver.answer(driver.commands()[0], path="/s/1", checkpoint_id=3)
    assert isinstance(pause.trigger, JobWaitTrigger)
    event = fire(again(pause.trigger))
    result = operator.execute_complete(job.context("save"), event)
    assert (result["path"], result["checkpoint_id"]) == ("/s/1", 3)


def test_what_is_there_already_is_not_deferred(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1)
    sensor = TidegateCheckpointSensor(task_id="s", job_id="j1", deferrable=True)
    assert sensor.execute(job.context("s"))["checkpoint_id"] == 1


def test_a_deferred_wait_that_timed_out_withdraws_its_command(job: Job, driver: ScriptedDriver) -> None:
    operator = TidegateStopJobOperator(task_id="stop", job_id="j1", mode="drain", deferrable=True, timeout="1 min")
    pause = deferred(operator, job)
    assert isinstance(pause.trigger, JobWaitTrigger)
    late = again(pause.trigger)
    late.deadline_at = 1.0
    with pytest.raises(AirflowException, match="waited 420 s for"):
        operator.execute_complete(job.context("stop"), fire(late))
    assert job.client.store.exists(job.client.layout.withdrawn(driver.commands()[0]))


def test_airflows_own_timeout_of_a_deferral_lies_behind_ours(job: Job, driver: ScriptedDriver) -> None:
    operator = TidegateStopJobOperator(task_id="stop", job_id="j1", mode="drain", deferrable=True, timeout="1 min")
    pause = deferred(operator, job)
    assert pause.timeout is not None
    assert pause.timeout.total_seconds() > 60


def test_a_failure_that_no_retry_mends_fails_the_deferred_task_for_good(job: Job, driver: ScriptedDriver) -> None:
    sensor = TidegateCheckpointSensor(task_id="s", job_id="j1", deferrable=True)
    event = {"failure": {"code": "option", "message": "no source", "final": True}}
    with pytest.raises(AirflowFailException, match="no source"):
        sensor.execute_complete(job.context("s"), event)


def test_a_deferred_sensor_that_timed_out_fails_as_airflow_sensors_do(job: Job, driver: ScriptedDriver) -> None:
    sensor = TidegateCheckpointSensor(task_id="s", job_id="j1", deferrable=True)
    event = {"failure": {"code": "timeout", "message": "too long", "final": False}}
    with pytest.raises(AirflowSensorTimeout, match="too long"):
        sensor.execute_complete(job.context("s"), event)


def test_a_user_who_kills_a_deferred_run_cancels_its_job_and_a_restarting_triggerer_does_not(job: Job) -> None:
    job.on_launch = lambda spec, attempt: ScriptedDriver(job.client, spec, attempt).status("RUNNING")
    operator = TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE, deferrable=True)
    pause = deferred(operator, job)
    assert isinstance(pause.trigger, JobWaitTrigger)
    trigger = again(pause.trigger)
    asyncio.run(trigger.cleanup())
    assert job.client.store.list(job.client.layout.commands) == []
    asyncio.run(trigger.on_kill())
    commands = [n for n in job.client.store.list(job.client.layout.commands) if n.startswith("cancel-")]
    assert len(commands) == 1


def test_a_trigger_in_a_triggerer_holds_its_event_back_until_the_scheduler_has_heard_of_the_deferral(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        await real(0)

    driver.checkpoint(1)
    trigger = checkpoint_trigger(job)
    monkeypatch.setattr("airflow_tidegate.triggers.job_triggers.CANCEL_GRACE_S", 10.0)
    monkeypatch.setattr("airflow_tidegate.triggers.job_triggers.asyncio.sleep", sleep)
    assert "found" in fire(trigger)
    assert pauses == [], "`dag.test` runs triggers by itself"
    trigger.trigger_id = 7
    assert "found" in fire(trigger)
    assert len(pauses) == 1 and 5.0 < pauses[0] <= 10.0


def test_a_source_is_only_unknown_once_the_driver_has_reported_its_sources() -> None:
    """The first hint of a generation has no sources; the log has those that ended before the restore."""

    def view(boundedness: str) -> Any:
        ended = SimpleNamespace(uid="weather", boundedness=boundedness)
        return SimpleNamespace(job_id="j", status=JobStatus.RUNNING, generation=2, hint_generation=2, sources=(ended,))

    refuse_unknown_sources(view("unknown"), ["flights"])
    with pytest.raises(OptionError, match="no source 'flights'"):
        refuse_unknown_sources(view("bounded"), ["flights"])
