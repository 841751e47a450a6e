"""Commands of one Airflow task instance. A retry finds the earlier command; after a failure or a clear it sends a new
one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_tidegate.task_identity import issued_by, make_command_id, numbered_command_id
from tidegate.errors import CommandRefusedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.status import JobView

MAX_COMMANDS = 1000
"""Most commands of one task instance; limits the search for the last one."""
MAX_WAIT = timedelta(days=7)
"""Expiry of a command without a timeout."""


def send_command(
    client: JobClient, context: Any, verb: str, arguments: Mapping[str, Any], expires_in: timedelta | None = None
) -> str:
    """Send `verb`, or find this task instance's earlier command. Returns the command id.

    A retry uses an earlier command that is unanswered or succeeded. If it was refused, failed, was withdrawn, or was
    meant for an earlier submission (S9.4), a new command is sent under the next number. A command id is create-only, so
    the driver sees each command once. No command is sent to a job that has ended; the caller's wait reports this.

    Raises:
        JobNotFoundError: the job was never submitted.
        CommandRefusedError: the task instance has sent too many commands.
    """
    view = client.view()
    base = make_command_id(context, verb)
    for attempt in range(1, MAX_COMMANDS + 1):
        command_id = numbered_command_id(base, attempt)
        if _is_final(client, view, command_id):
            continue
        if client.command(command_id) is not None or not view.is_terminal:
            client.send(
                verb,
                arguments,
                command_id=command_id,
                expires_in=expires_in or MAX_WAIT,
                issued_by=issued_by(context),
            )
        return command_id
    raise CommandRefusedError(
        f"the Airflow task has sent {MAX_COMMANDS} commands to the job, of which none succeeded",
        where=f"job {client.job_id}, command {base}",
        remedy="Find out in the task's log why the commands fail. Then clear the task, which sends a new command",
    )


def executed_verdict(client: JobClient, context: Any, verb: str) -> int | None:
    """Return the checkpoint of this task instance's verdict in the decision log, answered or not; the newest of
    several."""
    base = make_command_id(context, verb)
    own = {numbered_command_id(base, attempt) for attempt in range(1, MAX_COMMANDS + 1)}
    verdicts = [d.data for d in client.decisions() if d.kind in ("approve", "reject")]
    return next((int(entry["checkpoint_id"]) for entry in reversed(verdicts) if entry.get("command") in own), None)


def _is_final(client: JobClient, view: JobView, command_id: str) -> bool:
    """Return whether this command can no longer succeed."""
    command = client.command(command_id)
    if command is None:
        return False
    result = client.result(command_id)
    if result is not None:
        return not result.ok
    return command.spec != view.spec_number or client.store.exists(client.layout.withdrawn(command_id))
