"""`tidegate approve`, `reject` and `staged`: verdicts on the staged output of a job with a commit gate (S7.8)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of, show_progress
from tidegate.cli.job_output import size_text
from tidegate.cli.jobs.commands import send_command
from tidegate.cli.output import table
from tidegate.cli.verb_registry import with_runtime
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.status import JobView

DEFAULT_TIMEOUT = "10 min"
NEWEST = 0
"""Stands for the newest checkpoint that waits. No checkpoint has this id."""


def add_approve(parser: Parser) -> None:
    """Add the arguments of `tidegate approve`."""
    parser.description = "Approves a checkpoint and all earlier ones that wait, and waits until sinks have committed."
    arguments.add_job(parser)
    parser.add_argument(
        "--checkpoint",
        type=int,
        metavar="ID",
        help="id of the checkpoint (default: the newest that waits for approval)",
    )
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=approve)


def add_reject(parser: Parser) -> None:
    """Add the arguments of `tidegate reject`."""
    parser.description = "Rejects a checkpoint and all later ones. Their output is never committed."
    arguments.add_job(parser)
    parser.add_argument("--checkpoint", type=int, metavar="ID", required=True, help="the oldest checkpoint to reject")
    parser.add_argument(
        "--then",
        choices=("stop", "replay", "quarantine"),
        default="stop",
        help="stop: end the job (default). replay: restart at once from the checkpoint before the rejected ones. "
        "quarantine: the job continues, and its staged output moves to the job's quarantine/",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="a note for readers, recorded with the verdict")
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=reject)


def add_staged(parser: Parser) -> None:
    """Add the arguments of `tidegate staged`."""
    parser.description = "Shows the output that an approval would publish, and where to read it until then."
    arguments.add_job(parser)
    parser.add_argument(
        "checkpoint",
        nargs="?",
        type=int,
        metavar="ID",
        help="id of the checkpoint (default: the newest that waits for approval)",
    )
    parser.set_defaults(run=staged)


def add_commit_pending(parser: Parser) -> None:
    """Add the arguments of `tidegate commit-pending`."""
    parser.description = (
        "Commits approved output of a job that has ended, in this process, with the pinned code. With a verdict, it "
        "gives the verdict first. It may be repeated."
    )
    arguments.add_job(parser)
    word = parser.add_mutually_exclusive_group()
    what = "approve this checkpoint and all before it (default: the newest that waits)"
    word.add_argument("--approve", nargs="?", const=NEWEST, type=int, metavar="ID", help=what)
    word.add_argument(
        "--reject",
        type=int,
        metavar="ID",
        help="reject this checkpoint and all after it; a restore starts before them",
    )
    word.add_argument(
        "--quarantine", type=int, metavar="ID", help="reject this checkpoint, and move its output to quarantine/"
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="a note for readers, recorded with a rejection")
    parser.add_argument("--id", metavar="ID", help="name of the verdict in the decision log (default: a random one)")
    parser.set_defaults(run=with_runtime("commit-pending"))


def approve(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Approve, and wait for the commit. If the job ends before it, the commit stays pending."""
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
    """Reject a checkpoint and all later ones."""
    client = job_of(JobClient, args, around)
    given = {"checkpoint_id": args.checkpoint, "then": args.then, "reason": args.reason}
    result = send_command(client, around, "reject", given, arguments.duration(args.timeout, "--timeout"))
    around.output.print(result.message)
    around.output.document({"job_id": client.job_id, "command_id": result.command_id, **dict(result.data)})
    return 0


def staged(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Show staged output: a table, then its files and tables."""
    client = job_of(JobClient, args, around)
    found = client.staged(args.checkpoint)
    for line in staged_lines(found):
        around.output.print(line)
    if not found:
        around.output.print(f"{client.job_id}: no staged output waits for approval or rejection")
    around.output.document({"job_id": client.job_id, "staged": [data.to_json() for data in found]})
    return 0


def staged_lines(found: Sequence[StagedData]) -> list[str]:
    """Return staged output as lines of text; no lines for no output."""
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
