"""`tidegate approve` and `reject`: verdicts on what a job behind a commit gate stages (S7.8)."""

from __future__ import annotations

import argparse
import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.environment import Surroundings, Verbs
from tidegate.cli.job_lookup import client_of, show_progress
from tidegate.cli.jobs.commands import ask
from tidegate.cli.output import table
from tidegate.cli.presentation import size
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.status import JobView

DEFAULT_TIMEOUT = "10 min"
NEWEST = 0
"""No checkpoint has this id."""


def add(verbs: Verbs) -> None:
    """Add the verbs."""
    parser = verbs.add_parser(
        "approve",
        help="commit what waits for a verdict",
        description="Approves a checkpoint and all in front of it that wait, and waits until sinks have committed.",
    )
    arguments.add_job(parser)
    parser.add_argument("--checkpoint", type=int, metavar="ID", help="which one (default: the newest that waits)")
    arguments.add_timeout(parser, DEFAULT_TIMEOUT, f"how long to wait (default: {DEFAULT_TIMEOUT})")
    parser.set_defaults(run=approve)
    parser = verbs.add_parser(
        "reject",
        help="give up what waits for a verdict",
        description="Rejects a checkpoint and what came after it: nothing of it is ever committed.",
    )
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
    parser = verbs.add_parser(
        "staged",
        help="where the data is that waits for a verdict",
        description="Shows what approving a checkpoint would publish, and where it can be read until then.",
    )
    arguments.add_job(parser)
    parser.add_argument("checkpoint", nargs="?", type=int, metavar="ID", help="default: the newest that waits")
    parser.set_defaults(run=staged)
    parser = verbs.add_parser(
        "commit-pending",
        help="commit what is approved, with no job running",
        description="Commits what is approved of a job that has ended, in this process, with the code that was pinned; "
        "may be repeated. With a verdict: gives it first.",
    )
    arguments.add_job(parser)
    word = parser.add_mutually_exclusive_group()
    what = "approve it, and all in front of it (default: the newest that waits)"
    word.add_argument("--approve", nargs="?", const=NEWEST, type=int, metavar="ID", help=what)
    word.add_argument("--reject", type=int, metavar="ID", help="give up it and what came after it; a restore goes back")
    word.add_argument("--quarantine", type=int, metavar="ID", help="give up its output, which moves to quarantine/")
    parser.add_argument("--reason", default="", metavar="TEXT", help="of a rejection, for people")
    parser.add_argument("--id", metavar="ID", help="name of the verdict in the decision log (default: a random one)")
    parser.set_defaults(run=commit_pending)


def approve(args: argparse.Namespace, around: Surroundings) -> int:
    """Approve, and wait for the commit; a job that ends before it leaves it pending."""
    client = client_of(args, around)
    timeout = arguments.duration(args.timeout, "--timeout")
    result = ask(client, around, "commit", {"checkpoint_id": args.checkpoint}, timeout)
    n = int(result.data["checkpoint_id"])

    def done(view: JobView) -> bool:
        return view.is_terminal or n not in view.uncommitted

    view = client.wait_until(
        done, f"the commit of checkpoint {n}", timeout, around.poll_s, lambda seen: show_progress(around, seen)
    )
    committed = n not in view.uncommitted
    around.output.say(f"checkpoint {n}: {'committed' if committed else 'approved; the job ended before its commit'}")
    document: dict[str, Any] = {"checkpoint_id": n, "committed": committed, "waiting": list(view.waiting)}
    around.output.document({"job_id": client.job_id, "command_id": result.command_id, **document})
    return 0


def reject(args: argparse.Namespace, around: Surroundings) -> int:
    """Reject."""
    client = client_of(args, around)
    given = {"checkpoint_id": args.checkpoint, "then": args.then, "reason": args.reason}
    result = ask(client, around, "reject", given, arguments.duration(args.timeout, "--timeout"))
    around.output.say(result.message)
    around.output.document({"job_id": client.job_id, "command_id": result.command_id, **dict(result.data)})
    return 0


def staged(args: argparse.Namespace, around: Surroundings) -> int:
    """Show what is staged: a table of it, then the places."""
    client = client_of(args, around)
    found = client.staged(args.checkpoint)
    for line in staged_lines(found):
        around.output.say(line)
    if not found:
        around.output.say(f"{client.job_id}: nothing is staged that waits for a verdict")
    around.output.document({"job_id": client.job_id, "staged": [data.to_json() for data in found]})
    return 0


def staged_lines(found: Sequence[StagedData]) -> list[str]:
    """For people; nothing of nothing."""
    if not found:
        return []
    rows = [
        (str(d.checkpoint_id), d.uid, "-" if d.rows is None else f"{d.rows:,}", size(d.bytes), d.format or d.kind)
        for d in found
    ]
    lines = table(("checkpoint", "sink", "rows", "size", "as"), rows, right=frozenset({"checkpoint", "rows", "size"}))
    lines += [path for data in found for path in data.paths]
    lines += [f"SELECT * FROM {d.relation} WHERE {d.where};  -- {d.place}" for d in found if d.kind == "table"]
    return lines


def commit_pending(args: argparse.Namespace, around: Surroundings) -> int:
    """Give a verdict, commit what is approved, and say what is left."""
    from tidegate.cli.verdicts.pending_commits import commit_pending as commit
    from tidegate.coordinator.events import Ruling

    client = client_of(args, around)
    around.output.progress(f"{client.job_id}: looking for its driver")
    words = (("approve", args.approve), ("stop", args.reject), ("quarantine", args.quarantine))
    given = next(((then, n) for then, n in words if n is not None), None)
    ruling = None
    if given is not None:
        then, n = given
        approves = then == "approve"
        ruling = Ruling(
            args.id or f"commit-pending-{secrets.token_hex(8)}",
            approves,
            None if n == NEWEST else n,
            around.caller,
            "quarantine" if then == "quarantine" else "stop",
            args.reason,
        )
    result = commit(client, ruling)
    view = client.view()
    committed = f"committed up to checkpoint {result.committed}" if result.committed else "nothing is committed"
    waiting = f"; waiting for a verdict: {', '.join(map(str, result.waiting))}" if result.waiting else ""
    gone = f"; in quarantine: {', '.join(map(str, result.quarantined))}" if result.quarantined else ""
    around.output.say(f"{client.job_id}: {view.status}; {committed}{waiting}{gone}")
    around.output.document({"job_id": client.job_id, "status": str(view.status), **dataclasses.asdict(result)})
    return 0
