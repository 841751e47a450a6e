"""Options of the verbs that load a pipeline: the arguments of its function, and the job options."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from tidegate.cli import arguments
from tidegate.log_format import LogFormat

PIPELINE_HELP = "path/to/file.py:function, package.module:function, or a file of `tidegate pack`"
"""Description of the argument PIPELINE."""


def add_pipeline_settings(parser: argparse.ArgumentParser) -> None:
    """Add --arg, --args-json, --option, --options and --code-root."""
    parser.add_argument(
        "--arg", action="append", metavar="NAME=VALUE", help="argument of the pipeline's function, as text"
    )
    parser.add_argument(
        "--args-json", metavar="JSON", help='arguments as a JSON object: {"rows": 10}; --arg overrides it'
    )
    parser.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help='job option: --option "checkpoint_interval=10 s"'
    )
    parser.add_argument("--options", metavar="FILE.json", help="job options from a JSON file; --option overrides it")
    parser.add_argument(
        "--code-root", metavar="FOLDER", help="folder to pin as a whole (default: the file, or its package)"
    )


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add --log-format, for verbs that start a driver. It sets the job option of the same name."""
    parser.add_argument(
        "--log-format",
        choices=get_args(LogFormat),
        help="log format of driver and slots (default: as in the previous submission, or text)",
    )


def parse_arguments(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the arguments of the pipeline's function; None when none were passed. Raises OptionError."""
    if args.arg is None and args.args_json is None:
        return None
    document = arguments.json_object(args.args_json, "--args-json") if args.args_json is not None else {}
    return {**document, **arguments.pairs(args.arg, "--arg")}


def parse_options(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the job options, with --log-format; None when none were passed. Raises OptionError."""
    log_format = getattr(args, "log_format", None)
    if args.option is None and args.options is None and log_format is None:
        return None
    document = arguments.json_file(args.options, "--options") if args.options is not None else {}
    named = {} if log_format is None else {"log_format": log_format}
    return {**document, **arguments.pairs(args.option, "--option"), **named}
