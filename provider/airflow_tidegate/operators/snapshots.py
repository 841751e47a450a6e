"""Ask a running job for a checkpoint or a savepoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_tidegate.operators.job_operator import WaitingOperator
from airflow_tidegate.operators.task_commands import send_command
from airflow_tidegate.waits.job_waits import CommandWait, Payload, Wait
from tidegate.jobs.client.job_client import JobClient


class CommandOperator(WaitingOperator):
    """Sends one command and waits for its answer; withdraws it when the wait takes too long. Not used by itself."""

    verb: ClassVar[str]
    wait_class: ClassVar[type[CommandWait]] = CommandWait

    def command_arguments(self) -> dict[str, Any]:
        """Arguments of the command; checked here, before anything is sent."""
        return {}

    def begin(self, client: JobClient, context: Any) -> Wait:
        """Ask, or find the own question."""
        timeout = self.wait_limit()
        return self.wait_class(command_id=send_command(client, context, self.verb, self.command_arguments(), timeout))

    def on_wait_timeout(self, client: JobClient, wait: Mapping[str, Any]) -> None:
        """Withdraw the command: if the driver has not begun it, it never will (S9.4)."""
        client.withdraw(wait["command_id"])


class TidegateTriggerCheckpointOperator(CommandOperator):
    """Take a checkpoint now.

    XCom: `{"checkpoint_id", "path", "answered_at"}`; a retry that finds its own answer gives that, with its time. A
    clear takes another one.
    """

    verb = "checkpoint"

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """The checkpoint."""
        return {k: found.get(k) for k in ("checkpoint_id", "path", "answered_at")}


class TidegateTriggerSavepointOperator(CommandOperator):
    """Take a savepoint: a snapshot that belongs to the user and is never deleted by the job.

    XCom: `{"path", "checkpoint_id", "answered_at"}`. A clear takes another one; the one before stays.

    Args:
        path: folder or URL that the savepoint's own folder is made in; default: the job's savepoint directory.
    """

    template_fields: Sequence[str] = (*CommandOperator.template_fields, "path")
    verb = "savepoint"

    def __init__(self, *, path: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def command_arguments(self) -> dict[str, Any]:
        """Where to."""
        return {"path": self.path} if self.path else {}

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """The savepoint."""
        return {k: found.get(k) for k in ("path", "checkpoint_id", "answered_at")}
