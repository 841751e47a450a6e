"""What verbs that take a pipeline are given for it: its function's arguments, and the job's options."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli import arguments


def add_pipeline_settings(parser: argparse.ArgumentParser) -> None:
    """--arg, --args-json, --option, --options and --code-root."""
    parser.add_argument(
        "--arg", action="append", metavar="NAME=VALUE", help="argument of the pipeline's function, a text"
    )
    parser.add_argument(
        "--args-json", metavar="JSON", help='arguments as a JSON object: {"rows": 10}; --arg goes before it'
    )
    parser.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help='job option: --option "checkpoint_interval=10 s"'
    )
    parser.add_argument("--options", metavar="FILE.json", help="job options from a JSON file; --option goes before it")
    parser.add_argument(
        "--code-root", metavar="FOLDER", help="folder to pin as a whole (default: the file or its package)"
    )


def parse_arguments(args: argparse.Namespace) -> dict[str, Any] | None:
    """The arguments; None: none were given. Raises OptionError."""
    if args.arg is None and args.args_json is None:
        return None
    document = arguments.json_object(args.args_json, "--args-json") if args.args_json is not None else {}
    return {**document, **arguments.pairs(args.arg, "--arg")}


def parse_options(args: argparse.Namespace) -> dict[str, Any] | None:
    """The options; None: none were given. Raises OptionError."""
    if args.option is None and args.options is None:
        return None
    document = arguments.json_file(args.options, "--options") if args.options is not None else {}
    return {**document, **arguments.pairs(args.option, "--option")}
