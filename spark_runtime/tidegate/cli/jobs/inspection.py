"""`tidegate status`, `checkpoints`, `list` and `logs`: read jobs without changing them."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of
from tidegate.cli.job_output import (
    checkpoint_document,
    checkpoint_lines,
    one_line,
    progress_text,
    statistics_lines,
    status_text,
    view_document,
    view_lines,
)
from tidegate.cli.output import table
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.client.job_directory import JobDirectory, list_jobs, root_problem
from tidegate.jobs.client.snapshot_presence import with_deletions
from tidegate.jobs.restore.snapshot_lookup import has_deleted_checkpoints
from tidegate.jobs.status import JobStatus, JobView
from tidegate.jobs.stores.store_registry import open_store

FOLLOW_POLL_S = 1.0
"""Pause between two reads of logs with --follow, in seconds."""
_EVERY = tuple(status for status in JobStatus if status.is_terminal)


def add_status(parser: Parser) -> None:
    """Add the arguments of `tidegate status`."""
    parser.description = "Shows a job, once or until it has ended."
    arguments.add_job(parser)
    parser.add_argument(
        "--watch", action="store_true", help="update the output until the job has ended or its driver is lost"
    )
    parser.set_defaults(run=status)


def add_checkpoints(parser: Parser) -> None:
    """Add the arguments of `tidegate checkpoints`."""
    parser.description = "Lists all snapshots of a job, oldest first."
    arguments.add_job(parser)
    parser.set_defaults(run=checkpoints)


def add_list(parser: Parser) -> None:
    """Add the arguments of `tidegate list`."""
    parser.description = "Lists the jobs of a root."
    arguments.add_root(parser)
    parser.set_defaults(run=list_all)


def add_logs(parser: Parser) -> None:
    """Add the arguments of `tidegate logs`."""
    parser.description = "Shows the logs of the driver and the slots."
    arguments.add_job(parser)
    parser.add_argument("--follow", action="store_true", help="print new lines until the job has ended")
    parser.add_argument("--generation", type=int, metavar="N", help="number of the driver (default: the newest)")
    parser.set_defaults(run=logs)


def status(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Show a job. The exit code is 0 in every status."""
    client = job_of(JobDirectory, args, around)
    view = client.view()
    if args.watch:
        _refuse_json(args, "--watch")
        view = _watch(client, around)
    alive = None if view.is_terminal else client.is_alive()
    view = with_deletions(client, view)
    for line in view_lines(view, alive=alive):
        around.output.print(line)
    around.output.document(view_document(view, alive=alive))
    return 0


def _watch(client: JobDirectory, around: CliEnvironment) -> JobView:
    """Wait until the job has ended. Show a progress line on a terminal, else one line per change."""
    shown: tuple[object, ...] = ()

    def on_poll(view: JobView) -> None:
        nonlocal shown
        around.output.progress(progress_text(view))
        news = (view.status, view.reason, view.generation, len(view.completed))
        if not around.output.shows_progress and news != shown:
            around.output.print(progress_text(view))
        shown = news

    return client.wait_status(_EVERY, None, around.poll_s, on_poll)


def checkpoints(args: argparse.Namespace, around: CliEnvironment) -> int:
    """List a job's snapshots. Those that do not exist any more are listed as deleted."""
    client = job_of(JobDirectory, args, around)
    view = with_deletions(client, client.view())
    if not view.checkpoints:
        around.output.print(f"{client.job_id}: no snapshot yet")
    else:
        for line in checkpoint_lines(view.checkpoints, deleted=has_deleted_checkpoints(client.specs()[-1], view)):
            around.output.print(line)
        for line in statistics_lines(view.statistics):
            around.output.print(line)
    around.output.document(
        {
            "job_id": client.job_id,
            "checkpoints": [checkpoint_document(checkpoint) for checkpoint in view.checkpoints],
            "statistics": dataclasses.asdict(view.statistics),
        }
    )
    return 0


def list_all(args: argparse.Namespace, around: CliEnvironment) -> int:
    """List a root's jobs, each on one line. A job that cannot be read is listed with the error.

    `tidegate status` shows the whole text of a reason or error.
    """
    root, storage_options = (
        arguments.root(args, around.environment),
        arguments.storage_options(args, around.environment),
    )
    rows: list[tuple[str, str, str, str]] = []
    documents: list[dict[str, Any]] = []
    for job_id in list_jobs(root, storage_options):
        try:
            view = around.connect(JobDirectory, root, job_id, storage_options).view()
        except TidegateError as error:
            # one damaged job must not hide the others
            rows.append((job_id, "-", "-", one_line(f"cannot be read: {error}")))
            documents.append({"job_id": job_id, "status": None, "error": str(error)})
        else:
            settled = view.settled
            words = one_line(status_text(settled))
            if view.before_refusal is not None:
                words += f" (start of submission {view.spec_number} refused)"
            rows.append((job_id, str(settled.spec_number), str(len(view.completed)), words))
            documents.append(view_document(view))
    problem = "" if rows else root_problem(open_store(root, storage_options))
    if not rows:
        around.output.print(f"no jobs below {root}" + (f": {problem}" if problem else ""))
    else:
        headings = ("job", "submission", "snapshots", "status")
        for line in table(headings, rows, right=frozenset({"submission", "snapshots"})):
            around.output.print(line)
    around.output.document({"root": root, "jobs": documents} | ({"problem": problem} if problem else {}))
    return 0


def logs(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Show logs. If there are several files, a line with the name precedes each."""
    client = job_of(JobDirectory, args, around)
    client.view()
    if args.generation is not None and args.generation < 1:
        raise OptionError(
            f"{args.generation} is not the number of a driver (generation), which is 1 or more",
            where="--generation",
            remedy="Pass 1 or more; `tidegate status` shows the newest generation",
        )
    if args.follow:
        _refuse_json(args, "--follow")
        _follow(client, around, args.generation)
        return 0
    files = client.logs(args.generation)
    for name, text in files.items():
        if not args.json:
            around.output.raw(_headed(name, text, several=len(files) > 1))
    if not files:
        around.output.note(f"{client.job_id}: no logs on this machine")
    around.output.document({"job_id": client.job_id, "files": files})
    return 0


def _follow(client: JobDirectory, around: CliEnvironment, generation: int | None) -> None:
    shown: dict[str, int] = {}
    last = ""
    while True:
        ended = client.view().is_terminal  # read before the logs, so that the last lines of an ended job are shown
        for name, text in client.logs(generation).items():
            fresh = text[shown.get(name, 0) :]
            if fresh:
                around.output.raw(_headed(name, fresh, several=name != last and bool(last)))
                last = name
            shown[name] = len(text)
        if ended:
            return
        around.sleep(FOLLOW_POLL_S)


def _headed(name: str, text: str, *, several: bool) -> str:
    body = text if text.endswith("\n") else f"{text}\n"
    return f"==> {name} <==\n{body}" if several else body


def _refuse_json(args: argparse.Namespace, flag: str) -> None:
    if args.json:
        raise OptionError(
            f"{flag} cannot be used with --json",
            where=flag,
            cause="--json prints one document",
            remedy=f"Leave out {flag} or --json",
        )
