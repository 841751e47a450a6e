"""Commands of one Airflow task instance: found again by a retry, asked anew after a failure or a clear."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_tidegate.task_identity import issued_by, make_command_id, numbered_command_id
from tidegate.errors import CommandRefusedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.status import JobView

MAX_COMMANDS = 1000
"""Most questions one task instance may have asked: a bound on the search for its last one."""
MAX_WAIT = timedelta(days=7)
"""Expiry of a command that is waited for without a timeout."""


def send_command(
    client: JobClient, context: Any, verb: str, arguments: Mapping[str, Any], expires_in: timedelta | None = None
) -> str:
    """Send `verb`, or find this task instance's own question; returns the command id.

    A retry finds a question that is unanswered or was answered well, and gets that answer. After a refusal, a failure,
    a withdrawal, or when the question was meant for an earlier submission (S9.4), it asks again, under the next number.
    Atomic towards the driver: a command id is create-only. A job that is over is not asked: the caller's wait tells.

    Raises:
        JobNotFoundError: the job was never submitted.
        CommandRefusedError: the task instance has asked too often.
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
        f"this task instance has asked {MAX_COMMANDS} times",
        where=f"job {client.job_id}, command {base}",
        remedy="Find out why every answer is a refusal; clear the task to ask under a new name",
    )


def executed_verdict(client: JobClient, context: Any, verb: str) -> int | None:
    """The checkpoint on which a verdict that this task instance asked for is in the decision log, answered or not; the
    newest of several."""
    base = make_command_id(context, verb)
    own = {numbered_command_id(base, attempt) for attempt in range(1, MAX_COMMANDS + 1)}
    verdicts = [d.data for d in client.decisions() if d.kind in ("approve", "reject")]
    return next((int(told["checkpoint_id"]) for told in reversed(verdicts) if told.get("command") in own), None)


def _is_final(client: JobClient, view: JobView, command_id: str) -> bool:
    """No good answer can come to this question any more."""
    command = client.command(command_id)
    if command is None:
        return False
    result = client.result(command_id)
    if result is not None:
        return not result.ok
    return command.spec != view.spec_number or client.store.exists(client.layout.withdrawn(command_id))
