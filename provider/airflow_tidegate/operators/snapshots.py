"""Operators that request a checkpoint or a savepoint of a running job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_tidegate.operators.job_operator import WaitingOperator
from airflow_tidegate.operators.task_commands import send_command
from airflow_tidegate.waits.job_waits import CommandWait, Payload, Wait
from tidegate.jobs.client.job_client import JobClient


class CommandOperator(WaitingOperator):
    """Base class: sends one command, waits for its answer, and withdraws it when the wait takes too long."""

    verb: ClassVar[str]
    wait_class: ClassVar[type[CommandWait]] = CommandWait

    def command_arguments(self) -> dict[str, Any]:
        """Return the arguments of the command, checked before it is sent."""
        return {}

    def begin(self, client: JobClient, context: Any) -> Wait:
        """Send the command, or find this task instance's own."""
        timeout = self.wait_limit()
        return self.wait_class(command_id=send_command(client, context, self.verb, self.command_arguments(), timeout))

    def on_wait_timeout(self, client: JobClient, wait: Mapping[str, Any]) -> None:
        """Withdraw the command: if the driver has not started it, it never will (S9.4)."""
        client.withdraw(wait["command_id"])


class TidegateTriggerCheckpointOperator(CommandOperator):
    """Take a checkpoint now.

    XCom: `{"checkpoint_id", "path", "answered_at"}`. A retry that finds its own answer returns it, with its time. A
    clear takes another checkpoint.
    """

    verb = "checkpoint"

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the checkpoint."""
        return {k: found.get(k) for k in ("checkpoint_id", "path", "answered_at")}


class TidegateTriggerSavepointOperator(CommandOperator):
    """Take a savepoint: a snapshot that belongs to the user and is never deleted by the job.

    XCom: `{"path", "checkpoint_id", "answered_at"}`. A clear takes another savepoint; the earlier one stays.

    Args:
        path: folder or URL in which the savepoint's folder is created; default: the job's savepoint directory.
    """

    template_fields: Sequence[str] = (*CommandOperator.template_fields, "path")
    verb = "savepoint"

    def __init__(self, *, path: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def command_arguments(self) -> dict[str, Any]:
        """Return the path."""
        return {"path": self.path} if self.path else {}

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the savepoint."""
        return {k: found.get(k) for k in ("path", "checkpoint_id", "answered_at")}
