"""What becomes of a job when a user kills the Airflow task that watches it: one command, made beforehand as plain data.

The worker and the triggerer send the same command, under an id that the task instance computes anew after any restart:
however often and from wherever it is sent, the job is told once (S9.4).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from airflow_tidegate.task_identity import issued_by, make_command_id
from tidegate.errors import CommandRefusedError, OptionError
from tidegate.jobs.client.job_client import JobClient

KillPolicy = Literal["keep_running", "savepoint_then_stop", "cancel"]
KILL_POLICIES: tuple[KillPolicy, ...] = ("keep_running", "savepoint_then_stop", "cancel")

_log = logging.getLogger(__name__)


def check_kill_policy(policy: str, task_id: str) -> None:
    """Raise OptionError unless `policy` is one of `KILL_POLICIES`."""
    if policy not in KILL_POLICIES:
        raise OptionError(
            f"on_kill={policy!r} is unknown",
            where=f"Airflow task {task_id}",
            remedy='use "keep_running", "savepoint_then_stop" or "cancel"',
        )


def kill_command(policy: str, context: Any, spec: int | None = None) -> dict[str, Any] | None:
    """What `policy` has sent, JSON-able; None: nothing.

    Args:
        policy: one of `KILL_POLICIES`.
        context: the Airflow task context; names the command.
        spec: submission it is meant for: a later one is not the killed task's to end. None: the newest when it is sent.

    Returns:
        `{"verb", "arguments", "command_id", "issued_by", "spec"}`.
    """
    if policy == "keep_running":
        return None
    # Not "stop": that would be the name of what a stop task itself asks for.
    verb, name = ("cancel", "cancel") if policy == "cancel" else ("stop", "kill-stop")
    return {
        "verb": verb,
        "arguments": {"mode": "suspend"} if verb == "stop" else {},
        "command_id": make_command_id(context, name),
        "issued_by": issued_by(context),
        "spec": spec,
    }


def trigger_supports_on_kill(context: Any) -> bool:
    """Whether a triggerer may end the deferred wait of this run's tasks in a user's name.

    Not of `dag.test`, which runs each trigger by itself and then takes its task back: a triggerer on the same database,
    as of `airflow standalone`, takes up the same trigger and tells it that its task was killed.
    """
    return getattr(context.get("dag_run"), "triggering_user_name", None) != "dag_test"


def is_still_deferred(instance: Any) -> bool:
    """Whether a task waits on in a triggerer. Then nobody killed it, but another triggerer has taken it over: Airflow
    3.3 tells a trigger that was taken away from a late triggerer that its task was killed.

    Args:
        instance: the trigger's `task_instance`; None: unknown, False.
    """
    if instance is None:
        return False
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # slow, and of no use where DAGs are parsed

    try:
        states = RuntimeTaskInstance.get_task_states(
            instance.dag_id, map_index=instance.map_index, task_ids=[instance.task_id], run_ids=[instance.run_id]
        )
    except Exception as error:  # whatever Airflow raises: a kill is passed on when in doubt
        _log.warning("task %s: its state is not known, so it counts as killed: %s", instance.task_id, error)
        return False
    return "deferred" in states.get(instance.run_id, {}).values()


def send_kill_command(client: JobClient, command: Mapping[str, Any]) -> None:
    """Send what `kill_command` made, or withdraw a command ("verb": "withdraw"). A job that is over is left alone."""
    if command["verb"] == "withdraw":
        client.withdraw(command["command_id"], by=command["issued_by"])
        return
    try:
        client.send(
            command["verb"],
            command.get("arguments"),
            command_id=command["command_id"],
            spec=command.get("spec"),
            issued_by=command["issued_by"],
        )
    except CommandRefusedError as error:
        _log.info("job %s: the task was killed; nothing is sent: %s", client.job_id, error)
