"""From a verb's arguments to the job it concerns."""

from __future__ import annotations

import argparse
import os

from tidegate.cli import arguments
from tidegate.cli.environment import CliEnvironment, Job
from tidegate.cli.presentation import progress_text
from tidegate.jobs.status import JobView


def job_of(kind: type[Job], args: argparse.Namespace, around: CliEnvironment) -> Job:
    """The job named, to read it or, as a JobClient, to command it. Raises OptionError, StoreError."""
    job_id = arguments.job_id(args)
    root = arguments.root(args, around.environment)
    return around.connect(kind, root, job_id, arguments.storage_options(args, around.environment))


def show_progress(around: CliEnvironment, view: JobView) -> None:
    """Draw the progress line of a wait."""
    around.output.progress(progress_text(view))


def absolute_root(path: str) -> str:
    """A local path made absolute, since the driver's working directory may be another; a URL as it is."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def same_job_arguments(args: argparse.Namespace, job_id: str) -> str:
    """The arguments that lead another call to the same job, for hints of what to do next."""
    root = f" --root {args.root}" if args.root else ""
    options = "".join(f" --storage-option {pair}" for pair in args.storage_option or ())
    return f"{job_id}{root}{options}"
