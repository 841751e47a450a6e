"""Entry point of the command line. docs/cli.md lists the exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.output import Output
from tidegate.cli.verb_registry import VERBS, add_arguments
from tidegate.errors import TidegateError

EXIT_BUG = 70
"""Exit code for an exception that is not a TidegateError: a bug in tidegate."""
# 128 + 2 (SIGINT), as shells report it.
EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C. Running jobs continue."""
# 128 + 13 (SIGPIPE), as shells report it.
EXIT_PIPE_CLOSED = 141
"""Exit code when the reader of the output has closed the pipe."""


def parser(words: Sequence[str] = ()) -> Parser:
    """Return the parser for these words. It knows all verbs by name and help line, but only the arguments of the verb
    that is called: loading one verb's module is faster than loading all.
    """
    whole = Parser(
        prog="tidegate",
        description="Stateful jobs on Spark with checkpoints, savepoints, drain and restore.",
        epilog="`tidegate VERB --help` shows the options of a verb. Exit codes: 0 done, 2 wrong option, 3 pipeline, "
        "4 job exists, 5 no such job, 6 job failed, 7 refused, 8 timeout, 9 slots, 10 snapshot, 11 store, "
        "12 environment, 13 fenced.",
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    added = whole.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=Parser)
    called = next((word for word in words if word in VERBS), None)
    for name, verb in VERBS.items():
        made = added.add_parser(name, help=verb.help)
        if name == called:
            add_arguments(name, made)
    whole.verbs = tuple(VERBS)
    return whole


class _Version(argparse.Action):
    """The option --version. argparse's own action would need the version before a user requests it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"{parser.prog} {version()}")
        parser.exit()


def version() -> str:
    """Return the version of the installed distribution."""
    import importlib.metadata  # loads 30 modules, and few calls need it

    try:
        return importlib.metadata.version("tidegate")
    except importlib.metadata.PackageNotFoundError:  # the package runs from a source tree
        return "unknown"


def main(
    argv: Sequence[str] | None = None, *, make_surroundings: Callable[[Output], CliEnvironment] | None = None
) -> int:
    """Run one verb.

    Args:
        argv: words after `tidegate`; None: the arguments of this process.
        make_surroundings: makes the environment for an output; None: the environment of this process.

    Returns:
        The exit code. Only `--help` and `--version` end with SystemExit(0).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Read from the words, because a mistake in the arguments must be reported as JSON, too.
    output = Output(sys.stdout, sys.stderr, as_json="--json" in words)
    try:
        around = make_surroundings(output) if make_surroundings is not None else CliEnvironment(output, os.environ)
        grammar = parser(words)
        grammar.check_verb(words)
        args = grammar.parse_args(words)
        run: Callable[..., int] = args.run
        return run(args, around)
    except TidegateError as error:
        output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.note("interrupted; running jobs continue")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output when it exits, and would fail again; from here on it writes to the null device.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except Exception:
        import traceback  # only this branch needs it

        output.wipe()
        traceback.print_exc()
        output.note("tidegate: this is a bug in tidegate; please report it with the lines above")
        return EXIT_BUG
    finally:
        output.wipe()


if __name__ == "__main__":
    sys.exit(main())
