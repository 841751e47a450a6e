"""What a killed Airflow task leaves of its job: the same one command from the worker and from the triggerer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from scripted_job import PIPELINE, Job, ScriptedDriver

from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.triggers.job_triggers import TRIGGERS
from airflow_tidegate.version_compat import TaskDeferred

START = {"job_id": "j1", "pipeline": PIPELINE, "deferrable": True}


@pytest.fixture
def drivers(job: Job) -> list[ScriptedDriver]:
    """Every launch is a driver that waits for slots."""
    made: list[ScriptedDriver] = []

    def on_launch(spec: int, attempt: int) -> None:
        made.append(ScriptedDriver(job.client, spec, attempt))
        made[-1].status("WAITING_FOR_SLOTS")

    job.on_launch = on_launch
    return made


def defer(operator: Any, job: Job, *, by: str | None = None) -> Any:
    """The trigger that a triggerer makes of what the operator defers to; `by` triggered the DAG run."""
    context = job.context(operator.task_id)
    context["dag_run"].triggering_user_name = by
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context)
    trigger: Any = caught.value.trigger
    path, arguments = trigger.serialize()
    [found] = [t for t in TRIGGERS.values() if t.__name__ == path.rpartition(".")[2]]
    return found(**arguments)


@pytest.mark.parametrize(
    ("policy", "verb", "arguments"),
    [
        ("keep_running", None, None),
        ("savepoint_then_stop", "stop", {"mode": "suspend"}),
        ("cancel", "cancel", {}),
    ],
)
@pytest.mark.parametrize("kind", [TidegateStartJobOperator, TidegateRunJobOperator, TidegateRestoreJobOperator])
def test_worker_and_triggerer_send_one_and_the_same_command(
    job: Job, drivers: list[ScriptedDriver], kind: Any, policy: str, verb: str | None, arguments: dict[str, Any] | None
) -> None:
    """S9.4: a command id is create-only; sending it twice is sending it once."""
    if kind is TidegateRestoreJobOperator:
        job.submit()
        before = ScriptedDriver(job.client)
        before.checkpoint(1)
        before.status("FAILED")
    operator = kind(task_id="t", on_kill=policy, **START)
    trigger = defer(operator, job)
    operator.on_kill()
    asyncio.run(trigger.on_kill())
    sent = [job.client.command(command_id) for command_id in drivers[-1].commands()]
    if verb is None:
        assert sent == []
        return
    [command] = sent
    assert command is not None
    assert (command.verb, command.arguments) == (verb, arguments)
    assert command.spec == len(job.client.specs())
    assert command.issued_by == "airflow:d/r1/t"


def test_a_kill_does_not_reach_a_submission_that_came_since(job: Job, drivers: list[ScriptedDriver]) -> None:
    """S9.4: a command is meant for one submission; the killed task is not the owner of what came after it."""
    trigger = defer(TidegateRunJobOperator(task_id="t", **START), job)
    drivers[0].status("FAILED")
    job.submit("somebody-else")
    ScriptedDriver(job.client, 2).status("RUNNING")
    asyncio.run(trigger.on_kill())
    [command_id] = drivers[0].commands()
    command = job.client.command(command_id)
    assert command is not None and command.spec == 1


def test_a_kill_when_the_job_is_over_sends_nothing_and_does_not_fail(job: Job, drivers: list[ScriptedDriver]) -> None:
    operator = TidegateRunJobOperator(task_id="t", **START)
    trigger = defer(operator, job)
    drivers[0].status("FINISHED")
    operator.on_kill()
    asyncio.run(trigger.on_kill())
    assert drivers[0].commands() == []


def test_a_kill_before_anything_was_submitted_sends_nothing(job: Job) -> None:
    TidegateRunJobOperator(task_id="t", **START).on_kill()
    assert not any(p.is_file() for p in job.root.rglob("*"))


@pytest.mark.parametrize(
    ("state", "sent"),
    [("deferred", 0), ("failed", 1), ("success", 1), ("scheduled", 1), (None, 1), (RuntimeError("no API"), 1)],
)
def test_a_trigger_whose_task_waits_on_elsewhere_was_taken_over_not_killed(
    job: Job, drivers: list[ScriptedDriver], monkeypatch: pytest.MonkeyPatch, state: str | Exception | None, sent: int
) -> None:
    """Airflow 3.3 tells the one by the other: a triggerer that was late, and lost its triggers to another one."""
    asked: list[Any] = []

    def states(dag_id: str, **which: Any) -> dict[str, dict[str, str | None]]:
        asked.append((dag_id, which))
        if isinstance(state, Exception):
            raise state
        return {"r1": {"t_3": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    trigger = defer(TidegateRunJobOperator(task_id="t", **START), job)
    trigger.task_instance = SimpleNamespace(dag_id="d", run_id="r1", task_id="t", map_index=3)
    asyncio.run(trigger.on_kill())
    assert asked == [("d", {"map_index": 3, "task_ids": ["t"], "run_ids": ["r1"]})]
    assert len(drivers[-1].commands()) == sent


@pytest.mark.parametrize(("by", "sent"), [("dag_test", 0), ("admin", 1), (None, 1)])
def test_a_triggerer_beside_dag_test_does_not_end_the_job_when_the_task_goes_on(
    job: Job, drivers: list[ScriptedDriver], by: str | None, sent: int
) -> None:
    """`dag.test` runs the trigger by itself, takes the task back, and the triggerer's copy hears of a kill."""
    trigger = defer(TidegateRunJobOperator(task_id="t", **START), job, by=by)
    asyncio.run(trigger.on_kill())
    assert len(drivers[-1].commands()) == sent
