"""`tidegate doctor`: check that this machine has everything that a job needs."""

from __future__ import annotations

import argparse

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.upkeep.installation_checks import examine
from tidegate.errors import EnvironmentProblemError


def add_doctor(parser: Parser) -> None:
    """Add the arguments of `tidegate doctor`."""
    parser.description = "Checks that this machine has everything that a job needs. Exit code 12: something is wrong."
    arguments.add_root(parser)
    parser.set_defaults(run=doctor)


def doctor(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Print one line per check. Returns EnvironmentProblemError's exit code when a check found a problem."""
    root = args.root or around.environment.get(arguments.ROOT_VARIABLE)
    findings = examine(root, arguments.storage_options(args, around.environment), around.environment)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        around.output.print(f"{'ok     ' if finding.ok else 'problem'}  {finding.name:<{width}}  {finding.detail}")
        if not finding.ok:
            around.output.print(f"{'':<{width + 11}}{finding.remedy}")
    problems = [finding for finding in findings if not finding.ok]
    around.output.print(
        "all checks passed" if not problems else f"{len(problems)} of {len(findings)} checks found a problem"
    )
    around.output.document(
        {
            "ok": not problems,
            "findings": [
                {"name": f.name, "ok": f.ok, "detail": f.detail, "remedy": f.remedy or None} for f in findings
            ],
        }
    )
    return EnvironmentProblemError.exit_code if problems else 0
