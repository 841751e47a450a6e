"""`tidegate approve` and `reject`: verdicts on what a job behind a commit gate stages (S7.8)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of, show_progress
from tidegate.cli.jobs.commands import send_command
from tidegate.cli.output import table
from tidegate.cli.presentation import size_text
from tidegate.cli.verb_registry import with_runtime
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.status import JobView

DEFAULT_TIMEOUT = "10 min"
NEWEST = 0
"""No checkpoint has this id."""


def add_approve(parser: Parser) -> None:
    """The arguments of `tidegate approve`."""
    parser.description = "Approves a checkpoint and all earlier ones that wait, and waits until sinks have committed."
    arguments.add_job(parser)
    parser.add_argument("--checkpoint", type=int, metavar="ID", help="which one (default: the newest that waits)")
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=approve)


def add_reject(parser: Parser) -> None:
    """The arguments of `tidegate reject`."""
    parser.description = "Rejects a checkpoint and what came after it: nothing of it is ever committed."
    arguments.add_job(parser)
    parser.add_argument("--checkpoint", type=int, metavar="ID", required=True, help="the oldest one to give up")
    parser.add_argument(
        "--then",
        choices=("stop", "replay", "quarantine"),
        default="stop",
        help="end the job (default), let it go back at once to what is in front of the rejected, or let it go on and "
        "move what was staged to the job's quarantine/",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="for people; written down with the verdict")
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=reject)


def add_staged(parser: Parser) -> None:
    """The arguments of `tidegate staged`."""
    parser.description = "Shows what approving a checkpoint would publish, and where it can be read until then."
    arguments.add_job(parser)
    parser.add_argument("checkpoint", nargs="?", type=int, metavar="ID", help="default: the newest that waits")
    parser.set_defaults(run=staged)


def add_commit_pending(parser: Parser) -> None:
    """The arguments of `tidegate commit-pending`."""
    parser.description = (
        "Commits what is approved of a job that has ended, in this process, with the code that was pinned; "
        "may be repeated. With a verdict: gives it first."
    )
    arguments.add_job(parser)
    word = parser.add_mutually_exclusive_group()
    what = "approve it, and all in front of it (default: the newest that waits)"
    word.add_argument("--approve", nargs="?", const=NEWEST, type=int, metavar="ID", help=what)
    word.add_argument("--reject", type=int, metavar="ID", help="give up it and what came after it; a restore goes back")
    word.add_argument("--quarantine", type=int, metavar="ID", help="give up its output, which moves to quarantine/")
    parser.add_argument("--reason", default="", metavar="TEXT", help="of a rejection, for people")
    parser.add_argument("--id", metavar="ID", help="name of the verdict in the decision log (default: a random one)")
    parser.set_defaults(run=with_runtime("commit-pending"))


def approve(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Approve, and wait for the commit; a job that ends before it leaves it pending."""
    client = job_of(JobClient, args, around)
    timeout = arguments.duration(args.timeout, "--timeout")
    result = send_command(client, around, "commit", {"checkpoint_id": args.checkpoint}, timeout)
    n = int(result.data["checkpoint_id"])

    def done(view: JobView) -> bool:
        return view.is_terminal or n not in view.uncommitted

    view = client.wait_until(
        done, f"the commit of checkpoint {n}", timeout, around.poll_s, lambda seen: show_progress(around, seen)
    )
    committed = n not in view.uncommitted
    around.output.print(f"checkpoint {n}: {'committed' if committed else 'approved; the job ended before its commit'}")
    document: dict[str, Any] = {"checkpoint_id": n, "committed": committed, "waiting": list(view.waiting)}
    around.output.document({"job_id": client.job_id, "command_id": result.command_id, **document})
    return 0


def reject(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Reject."""
    client = job_of(JobClient, args, around)
    given = {"checkpoint_id": args.checkpoint, "then": args.then, "reason": args.reason}
    result = send_command(client, around, "reject", given, arguments.duration(args.timeout, "--timeout"))
    around.output.print(result.message)
    around.output.document({"job_id": client.job_id, "command_id": result.command_id, **dict(result.data)})
    return 0


def staged(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Show what is staged: a table of it, then the places."""
    client = job_of(JobClient, args, around)
    found = client.staged(args.checkpoint)
    for line in staged_lines(found):
        around.output.print(line)
    if not found:
        around.output.print(f"{client.job_id}: nothing is staged that waits for a verdict")
    around.output.document({"job_id": client.job_id, "staged": [data.to_json() for data in found]})
    return 0


def staged_lines(found: Sequence[StagedData]) -> list[str]:
    """For people; nothing of nothing."""
    if not found:
        return []
    rows = [
        (str(d.checkpoint_id), d.uid, "-" if d.rows is None else f"{d.rows:,}", size_text(d.bytes), d.format or d.kind)
        for d in found
    ]
    lines = table(("checkpoint", "sink", "rows", "size", "as"), rows, right=frozenset({"checkpoint", "rows", "size"}))
    lines += [path for data in found for path in data.paths]
    lines += [f"SELECT * FROM {d.relation} WHERE {d.where};  -- {d.place}" for d in found if d.kind == "table"]
    return lines
