"""The verbs of the command line. Each has one entry here and one module, which is loaded when the verb is called.

`tidegate status` must not load the modules of `tidegate snapshot`. A verb's module declares its arguments, and imports
only what every installation has. The part of a verb that needs the runtime is listed in `RUNTIME`. It is imported after
the arguments are parsed, so that `--help` works without the runtime too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.extras import extra_required_by

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
"""The function of each verb that needs the runtime, as "module:function"."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Attributes:
        arguments: "module:function". The function receives the verb's parser and declares its description and
            arguments. It also sets the default `run`: a function of the parsed arguments and the CliEnvironment that
            returns the exit code.
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
    "status": Verb("tidegate.cli.jobs.inspection:add_status", "show the status of a job"),
    "checkpoints": Verb("tidegate.cli.jobs.inspection:add_checkpoints", "list a job's snapshots"),
    "list": Verb("tidegate.cli.jobs.inspection:add_list", "list the jobs of a root"),
    "logs": Verb("tidegate.cli.jobs.inspection:add_logs", "show a job's logs"),
    "checkpoint": Verb("tidegate.cli.jobs.commands:add_checkpoint", "take a checkpoint now"),
    "savepoint": Verb("tidegate.cli.jobs.commands:add_savepoint", "take a savepoint; the job continues"),
    "delete-savepoint": Verb(
        "tidegate.cli.snapshots.savepoint_deletion:add_delete_savepoint",
        "delete a savepoint that is not needed",
    ),
    "stop": Verb("tidegate.cli.jobs.commands:add_stop", "stop a job with a savepoint"),
    "cancel": Verb("tidegate.cli.jobs.commands:add_cancel", "end the job without a snapshot"),
    "rescale": Verb("tidegate.cli.jobs.rescale:add_rescale", "restart a job from a savepoint at another parallelism"),
    "approve": Verb(
        "tidegate.cli.verdicts.verdict_verbs:add_approve", "commit output that waits for approval or rejection"
    ),
    "reject": Verb(
        "tidegate.cli.verdicts.verdict_verbs:add_reject", "discard output that waits for approval or rejection"
    ),
    "staged": Verb("tidegate.cli.verdicts.verdict_verbs:add_staged", "show where the output that waits is stored"),
    "commit-pending": Verb(
        "tidegate.cli.verdicts.verdict_verbs:add_commit_pending", "commit approved output of a job that is not running"
    ),
    "snapshot": Verb("tidegate.cli.snapshots.snapshot_verbs:add_snapshot", "inspect a snapshot"),
    "gc": Verb("tidegate.cli.upkeep.gc:add_gc", "delete checkpoints and files that nobody needs"),
    "agent": Verb("tidegate.cli.upkeep.agent:add_agent", "launch the drivers of the jobs below a root"),
    "doctor": Verb(
        "tidegate.cli.upkeep.doctor:add_doctor", "check Java, Python, packages, ports and access to the root"
    ),
}
"""Verbs by name, in the order of `tidegate --help`."""


def add_arguments(verb: str, parser: Parser) -> None:
    """Declare the arguments of one of VERBS on its parser."""
    _loaded(VERBS[verb].arguments)(parser)


def runtime(verb: str) -> Any:
    """Import the function of `verb` that needs the runtime. Raises MissingExtraError when the runtime is missing."""
    with extra_required_by(f"`tidegate {verb}`"):
        return _loaded(RUNTIME[verb])


def with_runtime(verb: str) -> Callable[[argparse.Namespace, CliEnvironment], int]:
    """Return the `run` of a verb that needs the runtime for everything it does."""
    return lambda args, around: int(runtime(verb)(args, around))


def _loaded(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
