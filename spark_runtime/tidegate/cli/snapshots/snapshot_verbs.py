"""The arguments of `tidegate snapshot` and of its own verbs; each of them is in a module of its own."""

from __future__ import annotations

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.pipeline_arguments import add_pipeline_settings
from tidegate.cli.verb_registry import with_runtime

DEFAULT_LIMIT = 20
"""Rows that `read` shows when neither --limit nor --out is given."""


def add_snapshot(parser: Parser) -> None:
    """The verbs of `tidegate snapshot`."""
    parser.description = "Looks into a checkpoint or savepoint; no job is needed."
    added = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=Parser)
    _add_inspect(
        added.add_parser(
            "inspect",
            help="what a snapshot holds",
            description="Shows operators, states with their columns, rows and bytes, watermark and source positions.",
        )
    )
    _add_read(
        added.add_parser(
            "read", help="the rows of a state", description="Shows the rows of a state, or writes them to a file."
        )
    )
    _add_check(
        added.add_parser(
            "check",
            help="whether a pipeline can go on from a snapshot",
            description="Compares a snapshot with a pipeline: operators, states, max_parallelism, what has finished, "
            "and whether sources find their positions. Changes nothing. Exit code 10: it does not fit.",
        )
    )


def _add_path(parser: Parser) -> None:
    parser.add_argument("path", metavar="PATH", help="folder or URL of the snapshot; also relative to --root")
    arguments.add_root(parser)


def _add_inspect(parser: Parser) -> None:
    _add_path(parser)
    parser.set_defaults(run=with_runtime("snapshot inspect"))


def _add_read(parser: Parser) -> None:
    _add_path(parser)
    parser.add_argument("--uid", required=True, metavar="UID", help="the operator")
    parser.add_argument("--state", required=True, metavar="NAME", help="its state; `inspect` lists them")
    parser.add_argument("--out", metavar="FILE", help="write all rows to FILE.parquet or FILE.arrow, batch by batch")
    parser.add_argument(
        "--limit", type=int, metavar="N", help=f"rows (default: {DEFAULT_LIMIT}; with --out or --format json all)"
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="how rows are shown; json: one object a line"
    )
    parser.set_defaults(run=with_runtime("snapshot read"))


def _add_check(parser: Parser) -> None:
    _add_path(parser)
    parser.add_argument("pipeline", metavar="PIPELINE", help="path/to/file.py:function or package.module:function")
    add_pipeline_settings(parser)
    parser.add_argument("--allow-non-restored-state", action="store_true", help="state without an operator is dropped")
    parser.add_argument("--allow-drained", action="store_true", help="what a drain took may be restored")
    parser.add_argument(
        "--write-graph", metavar="FILE.json", help="write the pipeline's graph there, for an Airflow preflight"
    )
    parser.set_defaults(run=with_runtime("snapshot check"))
