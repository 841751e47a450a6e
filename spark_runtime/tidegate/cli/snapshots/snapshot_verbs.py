"""The arguments of `tidegate snapshot` and of its verbs. Each of these verbs has its own module."""

from __future__ import annotations

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.pipeline_arguments import PIPELINE_HELP, add_pipeline_settings
from tidegate.cli.verb_registry import with_runtime

DEFAULT_LIMIT = 20
"""Rows that `read` shows when neither --limit nor --out is given."""


def add_snapshot(parser: Parser) -> None:
    """Add the verbs of `tidegate snapshot`."""
    parser.description = "Inspects a checkpoint or savepoint. No job has to run."
    added = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=Parser)
    _add_inspect(
        added.add_parser(
            "inspect",
            help="show the contents of a snapshot",
            description="Shows operators, states with their columns, rows and bytes, watermark and source positions.",
        )
    )
    _add_read(
        added.add_parser(
            "read", help="show the rows of a state", description="Shows the rows of a state, or writes them to a file."
        )
    )
    _add_check(
        added.add_parser(
            "check",
            help="check that a pipeline can be restored from a snapshot",
            description="Compares a snapshot with a pipeline: operators, states, max_parallelism, finished operators, "
            "and whether each source still has its positions. Changes nothing. Exit code 10: it does not fit.",
        )
    )


def _add_path(parser: Parser) -> None:
    parser.add_argument("path", metavar="PATH", help="folder or URL of the snapshot, or a path below --root")
    arguments.add_root(parser)


def _add_inspect(parser: Parser) -> None:
    _add_path(parser)
    parser.set_defaults(run=with_runtime("snapshot inspect"))


def _add_read(parser: Parser) -> None:
    _add_path(parser)
    parser.add_argument("--uid", required=True, metavar="UID", help="uid of the operator")
    parser.add_argument("--state", required=True, metavar="NAME", help="name of the state; `inspect` lists them")
    parser.add_argument("--out", metavar="FILE", help="write all rows to FILE.parquet or FILE.arrow, batch by batch")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"number of rows (default: {DEFAULT_LIMIT}; all with --out or --format json)",
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="format of the rows; json: one object per line"
    )
    parser.set_defaults(run=with_runtime("snapshot read"))


def _add_check(parser: Parser) -> None:
    _add_path(parser)
    parser.add_argument("pipeline", metavar="PIPELINE", help=PIPELINE_HELP)
    add_pipeline_settings(parser)
    parser.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="accept state of operators that the pipeline does not have",
    )
    parser.add_argument("--allow-drained", action="store_true", help="accept a savepoint that a drain took")
    parser.add_argument(
        "--write-graph", metavar="FILE.json", help="write the pipeline's graph to a file, for an Airflow preflight"
    )
    parser.set_defaults(run=with_runtime("snapshot check"))
