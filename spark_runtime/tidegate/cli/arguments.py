"""Parsing of command-line arguments: `name=value` pairs, JSON, durations, and the options that several verbs have."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from tidegate.errors import OptionError
from tidegate.jobs.options import parse_duration
from tidegate.jobs.process_environment import STORAGE_OPTIONS_VARIABLE

ROOT_VARIABLE = "TIDEGATE_ROOT"
"""Environment variable that sets the default of --root."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises OptionError instead of printing a usage text and ending the process. It does not
    accept shortened options.

    Attributes:
        verbs: names of all verbs; set in the parser of the whole command line only.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        more.setdefault("allow_abbrev", False)
        super().__init__(*args, **more)
        self.verbs: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        """Raise OptionError. The remedy names the help of the verb concerned."""
        raise OptionError(message, where=self.prog, remedy=f"See `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words. Raises OptionError for an unknown one; the remedy names the nearest flag.

        argparse lets the parser of a verb ignore unknown words. It reports them for the whole command line, without
        the verb, and knows only the flags of the whole.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
            near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
            raise OptionError(
                f"unrecognized arguments: {' '.join(unknown)}",
                where=self.prog,
                remedy=(f"Did you mean {near[0]!r}? " if near else "") + f"See `{self.prog} --help`",
            )
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise OptionError when a flag does not accept the value; the remedy names the nearest value."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), choices, n=1)
        raise OptionError(
            f"{value!r} is not a value of {next(iter(action.option_strings), action.metavar)}",
            where=self.prog,
            remedy=(f"Did you mean {near[0]!r}? " if near else "") + f"Use one of {', '.join(choices)}",
        )

    def check_verb(self, words: Sequence[str]) -> None:
        """Raise OptionError when the first word is not a verb. The remedy names the nearest verb."""
        word = next(iter(words), "--help")
        if word.startswith("-") or word in self.verbs:
            return
        near = difflib.get_close_matches(word, self.verbs, n=1)
        raise OptionError(
            f"tidegate has no verb {word!r}",
            where=self.prog,
            remedy=f"Did you mean {near[0]!r}?" if near else f"The verbs are: {', '.join(self.verbs)}",
        )


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Parse `["a=1", "b=x=y"]` to `{"a": "1", "b": "x=y"}`. OptionError when "=" is missing or a name repeats."""
    found: dict[str, str] = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise OptionError(
                f"{word!r} does not have the form name=value", where=flag, remedy=f"Write {flag} name=value"
            )
        if name.strip() in found:
            raise OptionError(f"{name.strip()!r} is passed twice", where=flag, remedy="Pass each name once")
        found[name.strip()] = value
    return found


def json_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object. Raises OptionError with the line and column of a mistake."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(
            f"the text is not valid JSON: {error.msg}",
            where=f"{where}, line {error.lineno}, column {error.colno}",
            remedy="Correct the JSON text",
        ) from error
    if not isinstance(document, dict):
        raise OptionError("the JSON text is not an object", where=where, remedy='Write {"name": value, ...}')
    return document


def json_file(path: str, flag: str) -> dict[str, Any]:
    """Read a JSON object from a file. Raises OptionError when the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return json_object(file.read(), f"{flag} {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            "the JSON file cannot be read",
            where=f"{flag} {path}",
            cause=str(error),
            remedy="Correct the path of the file",
        ) from error


def duration(text: str | None, flag: str) -> timedelta | None:
    """Parse a duration with its unit; None stays None. Raises OptionError."""
    return None if text is None else parse_duration(text, where=flag)


def storage_options(args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the root's storage options: --storage-option, or else the environment variable. Raises OptionError."""
    given = pairs(args.storage_option, "--storage-option")
    text = environment.get(STORAGE_OPTIONS_VARIABLE)
    return json_object(text, STORAGE_OPTIONS_VARIABLE) if text and not given else dict(given)


def root(args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return --root, or else the root from the environment. Raises OptionError when neither is set."""
    found: str | None = args.root or environment.get(ROOT_VARIABLE)
    if not found:
        raise OptionError(
            "the root of the jobs is not set",
            where="--root",
            cause="the root is the folder or URL that holds the job directories",
            remedy=f"Pass --root, or set {ROOT_VARIABLE}",
        )
    return found


def job_id(args: argparse.Namespace) -> str:
    """Return the job id, from the positional argument or --job-id. Raises OptionError unless exactly one is named."""
    words = {word for word in (getattr(args, "job", None), args.job_id) if word is not None}
    if len(words) != 1:
        raise OptionError(
            "no job is named" if not words else f"two jobs are named: {' and '.join(sorted(words))}",
            where="--job-id",
            remedy="Name one job, for example --job-id flight-delays; `tidegate list` shows the jobs of a root",
        )
    return str(words.pop())


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every verb that reads a root."""
    parser.add_argument("--root", help=f"folder or URL of the job directories (default: ${ROOT_VARIABLE})")
    parser.add_argument(
        "--storage-option",
        action="append",
        metavar="NAME=VALUE",
        help="option for the root's file system; secrets as secret:env/NAME or secret:file/PATH",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def add_job(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    """Add the arguments of every verb that concerns one job."""
    if positional:
        parser.add_argument("job", nargs="?", metavar="JOB", help="job id; the same as --job-id")
    parser.add_argument("--job-id", metavar="JOB", help="job id: letters, digits, '.', '_' and '-'")
    add_root(parser)


def add_timeout(parser: argparse.ArgumentParser, default: str | None, what: str) -> None:
    """Add --timeout. If `default` is None, the verb chooses the default, and `what` describes it."""
    parser.add_argument("--timeout", default=default, metavar="DURATION", help=what)
