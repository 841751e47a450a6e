"""The arguments of `tidegate gc`. The module `job_garbage` executes the verb."""

from __future__ import annotations

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.verb_registry import with_runtime

DEFAULT_AGE = "1 h"


def add_gc(parser: Parser) -> None:
    """Add the arguments of `tidegate gc`."""
    parser.description = (
        "Deletes files that no job needs: checkpoints and savepoints that never completed, checkpoints that are no "
        "longer needed, shared files that no checkpoint uses, rows of DataFrames at which no snapshot has positions, "
        "and code of no submission. With JOB it cleans one job, without JOB every job below the root. Completed "
        "savepoints stay, and so does everything that a job can still use. Jobs may run at the same time."
    )
    arguments.add_job(parser)
    parser.add_argument(
        "--older-than",
        default=DEFAULT_AGE,
        metavar="DURATION",
        help=f"delete only files last written longer ago (default: {DEFAULT_AGE}); must exceed checkpoint_timeout",
    )
    parser.add_argument(
        "--keep",
        type=int,
        metavar="N",
        help="number of newest recovery points that stay (default: retained_checkpoints)",
    )
    parser.add_argument(
        "--sinks",
        action="store_true",
        help="also clean the targets of sinks: delete data that failed runs staged before a fresh start, and merge "
        "commit markers. Runs the pinned pipeline's code here, and needs the sinks' packages, network and secrets",
    )
    parser.add_argument(
        "--sources",
        action="store_true",
        help="also delete what the sources of ended jobs own in the systems that they read, such as replication slots, "
        "if no snapshot needs it. Runs the pinned pipelines' code here, like --sinks",
    )
    parser.add_argument(
        "--even-with-snapshots",
        action="store_true",
        help="with --sources and JOB: also delete what snapshots of the ended job need. The output names these "
        "snapshots, which cannot be restored afterwards; call it with --dry-run first",
    )
    parser.add_argument("--dry-run", action="store_true", help="list what would be deleted, and delete nothing")
    parser.set_defaults(run=with_runtime("gc"))
