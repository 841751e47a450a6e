"""The verbs of the command line, each loaded when it is called: one entry here and the module that it names.

`tidegate status` must not pay for what `tidegate snapshot` needs. A verb's module declares its arguments and imports
what every installation has. What needs the runtime is named in `RUNTIME` and imported when the verb has been parsed, so
that its `--help` works without the runtime too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.errors import EnvironmentProblemError


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Attributes:
        arguments: "module:function"; the function gets the verb's parser, declares its description and arguments, and
            sets the default `run`: a function of the parsed arguments and the Surroundings that returns the exit code.
        help: one line for `tidegate --help`.
    """

    arguments: str
    help: str


VERBS: Mapping[str, Verb] = {
    "start": Verb("tidegate.cli.jobs.start:add_start", "submit a pipeline as a job and start it"),
    "restore": Verb(
        "tidegate.cli.jobs.start:add_restore", "start a job from one of its snapshots, or from another job's savepoint"
    ),
    "fork": Verb("tidegate.cli.jobs.start:add_fork", "run a bounded job beside another one, from one of its snapshots"),
    "pack": Verb("tidegate.cli.upkeep.pack:add_pack", "put a pipeline and the packages it needs into one file"),
    "status": Verb("tidegate.cli.jobs.inspection:add_status", "what a job is doing"),
    "checkpoints": Verb("tidegate.cli.jobs.inspection:add_checkpoints", "a job's snapshots"),
    "list": Verb("tidegate.cli.jobs.inspection:add_list", "the jobs of a root"),
    "logs": Verb("tidegate.cli.jobs.inspection:add_logs", "a job's logs"),
    "checkpoint": Verb("tidegate.cli.jobs.commands:add_checkpoint", "take a checkpoint now"),
    "savepoint": Verb("tidegate.cli.jobs.commands:add_savepoint", "take a savepoint; the job goes on"),
    "stop": Verb("tidegate.cli.jobs.commands:add_stop", "stop with a savepoint"),
    "cancel": Verb("tidegate.cli.jobs.commands:add_cancel", "end the job without a snapshot"),
    "rescale": Verb("tidegate.cli.jobs.rescale:add_rescale", "go on at another parallelism"),
    "approve": Verb("tidegate.cli.verdicts.verdict_verbs:add_approve", "commit what waits for a verdict"),
    "reject": Verb("tidegate.cli.verdicts.verdict_verbs:add_reject", "give up what waits for a verdict"),
    "staged": Verb("tidegate.cli.verdicts.verdict_verbs:add_staged", "where the data is that waits for a verdict"),
    "commit-pending": Verb(
        "tidegate.cli.verdicts.verdict_verbs:add_commit_pending", "commit what is approved, with no job running"
    ),
    "snapshot": Verb("tidegate.cli.snapshots.snapshot_verbs:add_snapshot", "look into a snapshot"),
    "gc": Verb("tidegate.cli.upkeep.gc:add_gc", "delete checkpoints and files that nobody needs"),
    "agent": Verb("tidegate.cli.upkeep.agent:add_agent", "launch the drivers that jobs of the root want launched"),
    "doctor": Verb(
        "tidegate.cli.upkeep.doctor:add_doctor", "check Java, Python, packages, ports and access to the root"
    ),
}
"""By name, in the order of `tidegate --help`."""

RUNTIME: Mapping[str, str] = {
    "start": "tidegate.cli.pipeline_validation:validate_pipeline",
    "restore": "tidegate.cli.pipeline_validation:validate_pipeline",
    "fork": "tidegate.cli.pipeline_validation:validate_pipeline",
    "commit-pending": "tidegate.cli.verdicts.pending_commits:run",
    "snapshot inspect": "tidegate.cli.snapshots.snapshot_summary:run",
    "snapshot read": "tidegate.cli.snapshots.state_rows:run",
    "snapshot check": "tidegate.cli.snapshots.restore_preflight:run",
    "gc": "tidegate.cli.upkeep.job_garbage:run",
}
"""What a verb needs of the runtime: "module:function"."""
RUNTIME_EXTRA = "tidegate[spark]"


def add_arguments(verb: str, parser: Parser) -> None:
    """Declare the arguments of one of VERBS on its parser."""
    _loaded(VERBS[verb].arguments)(parser)


def runtime(verb: str) -> Any:
    """What `verb` needs of the runtime, imported now. Raises EnvironmentProblemError when that is not installed."""
    try:
        return _loaded(RUNTIME[verb])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "tidegate":
            raise  # a mistake of ours, not of the installation
        raise EnvironmentProblemError(
            f"`tidegate {verb}` needs the runtime",
            cause=f"the package {error.name} is not installed",
            remedy=f"Install {RUNTIME_EXTRA} here",
        ) from error


def with_runtime(verb: str) -> Callable[[argparse.Namespace, CliEnvironment], int]:
    """A verb's `run` that is of the runtime as a whole."""
    return lambda args, around: int(runtime(verb)(args, around))


def _loaded(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
