"""`tidegate checkpoint`, `savepoint`, `stop` and `cancel`: send commands to a running job."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import absolute_root, job_of, same_job_arguments, show_progress
from tidegate.cli.job_output import checkpoint_document, size_text, status_text
from tidegate.errors import CommandRefusedError, WaitTimeoutError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import CommandResult
from tidegate.jobs.status import JobStatus
from tidegate.jobs.stop_outcomes import ON_TIMEOUT, answer_timeout, next_action, stop_warning

DEFAULT_TIMEOUT = "10 min"
CANCEL_TIMEOUT = "2 min"
COMMAND_LIFE = timedelta(hours=1)
"""The shortest time until a command expires. A driver refuses an expired command. A longer --timeout extends it."""


def add_checkpoint(parser: Parser) -> None:
    """Add the arguments of `tidegate checkpoint`."""
    parser.description = "Takes a checkpoint and waits for it."
    arguments.add_job(parser)
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=checkpoint, path=None)


def add_savepoint(parser: Parser) -> None:
    """Add the arguments of `tidegate savepoint`."""
    parser.description = "Takes a savepoint and waits for it."
    arguments.add_job(parser)
    _add_path(parser)
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=savepoint)


def add_stop(parser: Parser) -> None:
    """Add the arguments of `tidegate stop`."""
    parser.description = (
        "Stops the job with a savepoint, and commits the output before it. Without --drain, open windows stay in the "
        "savepoint."
    )
    arguments.add_job(parser)
    parser.add_argument(
        "--drain", action="store_true", help="fire all windows and timers first, when the job will not be resumed"
    )
    _add_path(parser)
    arguments.add_timeout(parser, None, "how long the job may take to end (default: the job's stop_timeout)")
    parser.add_argument(
        "--on-timeout",
        choices=ON_TIMEOUT,
        default=ON_TIMEOUT[0],
        help="what happens after the timeout: the job continues (default), or stops again without a drain, or ends "
        "without a savepoint",
    )
    parser.set_defaults(run=stop)


def add_cancel(parser: Parser) -> None:
    """Add the arguments of `tidegate cancel`."""
    parser.description = "Ends the job at once, without a savepoint. Its checkpoints stay."
    arguments.add_job(parser)
    arguments.add_timeout(parser, CANCEL_TIMEOUT, f"how long to wait (default: {CANCEL_TIMEOUT})")
    parser.set_defaults(run=cancel)


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path", metavar="FOLDER", help="folder or URL of the savepoint (default: below the job directory)"
    )


def checkpoint(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Take a checkpoint and wait for it."""
    return _snapshot(args, around, "checkpoint")


def savepoint(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Take a savepoint and wait for it."""
    return _snapshot(args, around, "savepoint")


def _snapshot(args: argparse.Namespace, around: CliEnvironment, verb: str) -> int:
    client = job_of(JobClient, args, around)
    timeout = arguments.duration(args.timeout, "--timeout")
    result = send_command(client, around, verb, _with_path(args, {}), timeout)
    taken = client.view().checkpoint(int(result.data.get("checkpoint_id", 0)))
    output = around.output
    text = f"{verb} {result.data.get('checkpoint_id')}: {result.data.get('path')}"
    if taken is not None and taken.duration_ms is not None:
        text += f" ({taken.duration_ms:,} ms, {size_text(taken.metrics.get('bytes'))})"
    output.print(text)
    document = checkpoint_document(taken) if taken is not None else dict(result.data)
    output.document({"job_id": client.job_id, "command_id": result.command_id, **document})
    return 0


def stop(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Stop with a savepoint: suspend, or drain with --drain."""
    client = job_of(JobClient, args, around)
    timeout = arguments.duration(args.timeout, "--timeout")
    given = {"mode": "drain" if args.drain else "suspend", "timeout": timeout, "on_timeout": args.on_timeout}
    if timeout is None:
        timeout = JobOptions.from_mapping(client.spec(client.view().spec_number).options).stop_timeout
    result = send_command(client, around, "stop", _with_path(args, given), answer_timeout(timeout))
    view = client.view()
    output = around.output
    outcome, mode = result.data.get("outcome", view.status), result.data.get("mode", given["mode"])
    output.print(f"{client.job_id}: {outcome} ({mode}), savepoint {result.data.get('path')}")
    if words := stop_warning(result.data):
        output.note(f"tidegate: {words}")
    if mode == "suspend":
        output.print(f"next: tidegate restore {same_job_arguments(args, client.job_id)}")
    document = {"job_id": client.job_id, "command_id": result.command_id, "status": str(view.status)}
    output.document({**document, **dict(result.data), "next": next_action(str(outcome))})
    return 0


def cancel(args: argparse.Namespace, around: CliEnvironment) -> int:
    """End the job. If its driver is dead, record the end in the decision log without it."""
    client = job_of(JobClient, args, around)
    timeout = arguments.duration(args.timeout, "--timeout")
    view = client.view()
    if view.is_terminal and view.settled.status is not JobStatus.CANCELED:
        raise CommandRefusedError(
            f"the job cannot be cancelled: it is {view.settled.status}",
            where=f"job {client.job_id}",
            remedy="Nothing has to be done: the job has ended",
        )
    around.output.progress(f"{client.job_id}: looking for its driver")
    command_id: str | None = None
    if not view.is_terminal and client.is_alive():
        try:
            command_id = send_command(client, around, "cancel", {}, timeout).command_id
        except CommandRefusedError:
            if client.view().status is not JobStatus.CANCELED:  # else another caller has cancelled it in the meantime
                raise
        view = client.wait_status(
            {JobStatus.CANCELED},
            timeout,
            around.poll_s,
            lambda seen: show_progress(around, seen),
            spec=view.spec_number,
        )
    else:
        view = client.cancel_dead(around.caller).settled
    around.output.print(f"{client.job_id}: {status_text(view)}")
    around.output.document({"job_id": client.job_id, "command_id": command_id, "status": str(view.status)})
    return 0


def _with_path(args: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    return given if args.path is None else {**given, "path": absolute_root(args.path)}


def send_command(
    client: JobClient, around: CliEnvironment, verb: str, given: dict[str, Any], timeout: timedelta | None
) -> CommandResult:
    """Send a command and wait for its answer.

    Raises CommandRefusedError when the driver refuses it. A WaitTimeoutError names the command's id.
    """
    lives = COMMAND_LIFE if timeout is None else max(COMMAND_LIFE, timeout)
    command = client.send(verb, given, expires_in=lives, issued_by=around.caller)
    try:
        result = client.wait_result(
            command.command_id, timeout, around.poll_s, lambda view: show_progress(around, view)
        )
    except WaitTimeoutError as error:
        raise WaitTimeoutError(
            error.what,
            where=f"{error.where}, command {command.command_id}",
            cause=error.cause,
            remedy="The command stays valid, and the driver may still execute it. See `tidegate status` and `tidegate "
            "logs`",
        ) from error
    outcome = str(result.data.get("outcome", result.code))
    return result.raise_if_refused(where=f"job {client.job_id}", remedy=next_action(outcome))
