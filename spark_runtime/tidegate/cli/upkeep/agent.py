"""`tidegate agent`: launch the drivers that the job directories of a root request, beside the cluster."""

from __future__ import annotations

import argparse
import signal
import threading

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.errors import OptionError
from tidegate.jobs.client.job_directory import root_problem
from tidegate.jobs.launch import launcher_registry
from tidegate.jobs.launch.agent import Agent
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.launcher_checks import require_interpreter
from tidegate.jobs.launch.relaunch import RelaunchBudget
from tidegate.jobs.stores.store_registry import open_store

RESTARTS = 3
WITHIN = "1 h"


def add_agent(parser: Parser) -> None:
    """Add the arguments of `tidegate agent`."""
    parser.description = (
        "Launches drivers until you end this command. Drivers that run continue to run. Several agents may supervise "
        "one root."
    )
    arguments.add_root(parser)
    kinds = launcher_registry.kinds()
    parser.add_argument(
        "--launcher", choices=kinds, default=kinds[0], help=f"how drivers are launched (default: {kinds[0]})"
    )
    parser.add_argument("--python", metavar="PATH", help="Python interpreter of the drivers (default: this one)")
    parser.add_argument("--spark-submit", metavar="PATH", help="spark-submit (default: found by SPARK_HOME and PATH)")
    for setting in launcher_registry.settings():
        parser.add_argument(
            setting.option, dest=setting.name, metavar=setting.metavar, help=setting.description.replace("%", "%%")
        )
    parser.add_argument(
        "--restarts",
        default=str(RESTARTS),
        metavar="N",
        help=f"most relaunches of a dead driver within --within (default: {RESTARTS})",
    )
    parser.add_argument(
        "--within",
        default=WITHIN,
        metavar="DURATION",
        help=f"period in which relaunches are counted (default: {WITHIN})",
    )
    parser.set_defaults(run=agent)


def agent(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Supervise the jobs of the root until SIGTERM or SIGINT. Exit code 0."""
    over = threading.Event()
    made = make_agent(args, around)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    root = arguments.root(args, around.environment)
    around.output.print(f"agent: supervises {root}, launcher {args.launcher}")
    problem = root_problem(open_store(root, arguments.storage_options(args, around.environment)))
    if problem:  # another process may create the root later, but a mistyped root stays empty
        around.output.note(f"agent: {problem} [{root}]")
    made.run(over)
    around.output.print("agent: ended; the drivers keep running")
    return 0


def make_agent(args: argparse.Namespace, around: CliEnvironment) -> Agent:
    """Make the agent that the arguments describe.

    Raises:
        EnvironmentProblemError: drivers are to run here, and the interpreter does not have the runtime; or the package
            of the launcher is broken.
        OptionError: an option is wrong.
    """
    within = arguments.duration(args.within, "--within")
    assert within is not None, "--within has a default"
    given = {setting.name: getattr(args, setting.name) for setting in launcher_registry.settings()}
    settings = LauncherSettings(
        kind=args.launcher,
        python=args.python,
        spark_submit=args.spark_submit,
        extra={name: value for name, value in given.items() if value is not None},
    )
    own = launcher_registry.make_launcher(settings)
    require_interpreter(settings, setting="--python")
    return Agent(
        arguments.root(args, around.environment),
        arguments.storage_options(args, around.environment),
        kind=args.launcher,
        launchers={**launcher_registry.make_launchers(settings), own.kind: own},
        budget=RelaunchBudget(_restarts(args.restarts), within.total_seconds()),
        say=around.output.print,
    )


def _restarts(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{text!r} is not a whole number of relaunches", where="--restarts", remedy="Pass 0 or more")
    return int(text)
