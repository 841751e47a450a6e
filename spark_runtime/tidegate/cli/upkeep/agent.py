"""`tidegate agent`: launch, beside the cluster, the drivers that job directories say are wanted."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.environment import Surroundings, Verbs
from tidegate.errors import OptionError
from tidegate.jobs.launch.agent import Agent
from tidegate.jobs.launch.launcher import KINDS, LauncherSettings
from tidegate.jobs.launch.launcher_registry import launchers
from tidegate.jobs.launch.relaunch import Budget

INNER = tuple(kind for kind in KINDS if kind != "agent")
RESTARTS = 3
WITHIN = "1 h"


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "agent",
        help="launch the drivers that jobs of the root want launched",
        description="Runs until it is ended; the drivers it has launched go on. Several may look after one root.",
    )
    arguments.add_root(parser)
    parser.add_argument("--launcher", choices=INNER, default="local", help="how drivers are launched (default: local)")
    parser.add_argument("--python", metavar="PATH", help="the drivers' interpreter (default: this one)")
    parser.add_argument("--spark-submit", metavar="PATH", help="default: found by SPARK_HOME and PATH")
    parser.add_argument("--yarn", metavar="PATH", default="yarn", help="YARN's command line (default: yarn)")
    parser.add_argument("--driver-script", metavar="URL", help="on Kubernetes: the driver's program in the image")
    parser.add_argument(
        "--restarts", default=str(RESTARTS), metavar="N", help=f"relaunches of a dead driver (default: {RESTARTS})"
    )
    parser.add_argument(
        "--within", default=WITHIN, metavar="DURATION", help=f"in any so long a time (default: {WITHIN})"
    )
    parser.set_defaults(run=agent)


def agent(args: argparse.Namespace, around: Surroundings) -> int:
    """Look after the root until SIGTERM or SIGINT. Exit code 0."""
    over = threading.Event()
    made = make_agent(args, around)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    around.output.say(f"agent: looking after {arguments.root(args, around.environment)}, launcher {args.launcher}")
    made.run(over)
    around.output.say("agent: ended; the drivers go on")
    return 0


def make_agent(args: argparse.Namespace, around: Surroundings) -> Agent:
    """The agent that the command line describes. Raises OptionError."""
    within = arguments.duration(args.within, "--within")
    assert within is not None, "it has a default"
    more: dict[str, Any] = {} if args.driver_script is None else {"driver_script": args.driver_script}
    settings = LauncherSettings(
        kind=args.launcher, python=args.python, spark_submit=args.spark_submit, yarn=args.yarn, **more
    )
    return Agent(
        arguments.root(args, around.environment),
        arguments.storage_options(args, around.environment),
        kind=args.launcher,
        launchers=launchers(settings),
        budget=Budget(_restarts(args.restarts), within.total_seconds()),
        say=around.output.say,
    )


def _restarts(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{text!r} is not a number of relaunches", where="--restarts", remedy="Give 0 or more")
    return int(text)
