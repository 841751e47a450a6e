"""Opening the job that a verb's arguments name."""

from __future__ import annotations

import argparse
import os

from tidegate.cli import arguments
from tidegate.cli.environment import CliEnvironment, Job
from tidegate.cli.job_output import progress_text
from tidegate.jobs.status import JobView


def job_of(kind: type[Job], args: argparse.Namespace, around: CliEnvironment) -> Job:
    """Open the job that the arguments name; `kind` as in `CliEnvironment.connect`. Raises OptionError, StoreError."""
    job_id = arguments.job_id(args)
    root = arguments.root(args, around.environment)
    return around.connect(kind, root, job_id, arguments.storage_options(args, around.environment))


def show_progress(around: CliEnvironment, view: JobView) -> None:
    """Show the job's state in the progress line, while a verb waits."""
    around.output.progress(progress_text(view))


def absolute_root(path: str) -> str:
    """Make a local path absolute, because the driver's working directory may differ. A URL stays as it is."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def same_job_arguments(args: argparse.Namespace, job_id: str) -> str:
    """Return the arguments with which another verb finds the same job, for hints about the next command."""
    root = f" --root {args.root}" if args.root else ""
    options = "".join(f" --storage-option {pair}" for pair in args.storage_option or ())
    return f"{job_id}{root}{options}"
