"""The arguments of `tidegate gc`; the verb itself is in `job_garbage`."""

from __future__ import annotations

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.verb_registry import with_runtime

DEFAULT_AGE = "1 h"


def add_gc(parser: Parser) -> None:
    """The arguments of `tidegate gc`."""
    parser.description = (
        "Deletes what dead drivers left: checkpoints and savepoints that were never completed, checkpoints "
        "that are not needed any more, shared files that no checkpoint uses, rows of DataFrames that no snapshot has "
        "positions in, and code that no submission names; of one job, or without JOB of every "
        "job below the root. Completed savepoints, and whatever can be reached, stay. Jobs may run meanwhile."
    )
    arguments.add_job(parser)
    parser.add_argument(
        "--older-than",
        default=DEFAULT_AGE,
        metavar="DURATION",
        help=f"only what was last written so long ago (default: {DEFAULT_AGE}); longer than checkpoint_timeout",
    )
    parser.add_argument(
        "--keep", type=int, metavar="N", help="newest recovery points that stay (default: retained_checkpoints)"
    )
    parser.add_argument(
        "--sinks",
        action="store_true",
        help="also what sinks keep for nobody: data that failed runs staged before a fresh start goes, commit markers "
        "are put together. Runs the pinned pipeline's code here, and needs the sinks' packages, network and secrets",
    )
    parser.add_argument("--dry-run", action="store_true", help="delete nothing, but tell what would go")
    parser.set_defaults(run=with_runtime("gc"))
