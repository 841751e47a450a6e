"""Defines what happens to a job when a user kills the Airflow task that watches it: one command, prepared as plain
data.

The worker and the triggerer send the same command, under an id that the task instance can compute again after a
restart. However often it is sent, and from wherever, the job executes it once (S9.4).
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

logger = logging.getLogger("airflow_tidegate")


def check_kill_policy(policy: str, task_id: str) -> None:
    """Raise OptionError unless `policy` is one of `KILL_POLICIES`."""
    if policy not in KILL_POLICIES:
        raise OptionError(
            f"on_kill={policy!r} is unknown",
            where=f"Airflow task {task_id}",
            remedy='Use "keep_running", "savepoint_then_stop" or "cancel"',
        )


def kill_command(policy: str, context: Any, spec: int | None = None) -> dict[str, Any] | None:
    """Return the command that `policy` sends, JSON-able; None: no command.

    Args:
        policy: one of `KILL_POLICIES`.
        context: the Airflow task context; names the command.
        spec: submission that the command is for: the killed task must not end a later one. None: the newest when the
            command is sent.

    Returns:
        `{"verb", "arguments", "command_id", "issued_by", "spec"}`.
    """
    if policy == "keep_running":
        return None
    # Not "stop": a stop task uses that name for its own command.
    verb, name = ("cancel", "cancel") if policy == "cancel" else ("stop", "kill-stop")
    return {
        "verb": verb,
        "arguments": {"mode": "suspend"} if verb == "stop" else {},
        "command_id": make_command_id(context, name),
        "issued_by": issued_by(context),
        "spec": spec,
    }


def trigger_supports_on_kill(context: Any) -> bool:
    """Return whether a triggerer may end the deferred wait of this run's tasks on behalf of a user.

    This is not so for `dag.test`, which runs each trigger itself and then continues its task. A triggerer on the same
    database, as of `airflow standalone`, starts the same trigger and later reports its task as killed.
    """
    return getattr(context.get("dag_run"), "triggering_user_name", None) != "dag_test"


def is_still_deferred(instance: Any) -> bool:
    """Return whether a task still waits in a triggerer.

    Then nobody killed it, but another triggerer has taken it over: Airflow 3.3 reports a kill to a trigger that was
    moved away from a slow triggerer.

    Args:
        instance: the trigger's `task_instance`; None: unknown, False.
    """
    if instance is None:
        return False
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # slow import, not needed to parse DAGs

    try:
        states = RuntimeTaskInstance.get_task_states(
            instance.dag_id, map_index=instance.map_index, task_ids=[instance.task_id], run_ids=[instance.run_id]
        )
    except Exception as error:  # any error of Airflow: in doubt, the kill is passed on
        logger.warning(
            "the state of Airflow task %s cannot be read, so the task counts as killed and on_kill applies: %s",
            instance.task_id,
            error,
        )
        return False
    return "deferred" in states.get(instance.run_id, {}).values()


def send_kill_command(client: JobClient, command: Mapping[str, Any]) -> None:
    """Send the command of `kill_command`, or withdraw a command ("verb": "withdraw"). A job that has ended is left
    alone."""
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
        logger.info(
            "job %s: the Airflow task was killed, but the job gets no command, nothing to do: %s", client.job_id, error
        )
