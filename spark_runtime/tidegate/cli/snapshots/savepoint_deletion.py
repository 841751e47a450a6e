"""`tidegate delete-savepoint`: delete a savepoint that its user no longer needs (S2.3)."""

from __future__ import annotations

import argparse
import dataclasses
import os

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of
from tidegate.cli.job_output import size_text
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.client.savepoint_deletion import SavepointDeletion, delete_savepoint


def add_delete_savepoint(parser: Parser) -> None:
    """Add the arguments of `tidegate delete-savepoint`."""
    parser.description = (
        "Deletes a savepoint of a job, which may run or have ended. It is refused while a job of the root may start "
        "from the savepoint, or its output waits for a verdict. If the savepoint is gone already, the verb succeeds."
    )
    arguments.add_job(parser)
    parser.add_argument(
        "savepoint", metavar="SAVEPOINT", help="its number, or its folder or URL, as `tidegate checkpoints` lists it"
    )
    parser.add_argument(
        "--also-latest",
        action="store_true",
        help="also if the job has ended and would be restored from this savepoint. The job cannot be restored from it "
        "then, and output of the savepoint that is not committed is lost",
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, and delete nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Delete the savepoint, and print the freed bytes."""
    client = job_of(JobDirectory, args, around)
    found = delete_savepoint(
        client, _savepoint(args.savepoint), by=around.caller, also_latest=args.also_latest, dry_run=args.dry_run
    )
    around.output.print(f"{client.job_id}: {_words(found)}")
    if found.left:
        around.output.note(f"files of others stay in {found.path}: {', '.join(found.left)}")
    around.output.document({"job_id": client.job_id, "dry_run": args.dry_run, **dataclasses.asdict(found)})
    return 0


def _savepoint(text: str) -> int | str:
    """Return the number or path of a savepoint. A snapshot in the working directory is preferred, as in --from."""
    if text.isascii() and text.isdigit():
        return int(text)
    path = os.path.expanduser(text).rstrip("/") or text
    return os.path.abspath(path) if "://" not in path and os.path.isfile(os.path.join(path, "_metadata")) else path


def _words(found: SavepointDeletion) -> str:
    name = f"savepoint {found.checkpoint_id} ({found.path})"
    if not found.existed:
        return f"{name} is gone already"
    return f"{name} {'deleted' if found.deleted else 'would be deleted'}, {size_text(found.size_bytes)}"
