"""The process, clock and output that verbs use, in one object, so that tests can replace them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.cli.output import Output
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.options import JobOptions
from tidegate.jobs.os_processes import host_name
from tidegate.jobs.process_environment import CALLER_VARIABLE
from tidegate.jobs.records import Launch, Spec

Job = TypeVar("Job", bound=JobDirectory)

POLL_S = 0.25
"""Pause between two reads of a job's status while a verb waits, in seconds."""


@dataclass(frozen=True)
class CliEnvironment:
    """The environment of one call of the command line.

    Attributes:
        output: where results, notes and errors are written.
        environment: environment variables.
        launch: starts the driver of a submission; None: `launch_local`.
        require: checks before a submission that a driver can run on this machine; None: `require_machine`.
        sleep: pauses for a number of seconds.
        monotonic: returns seconds of a clock that nobody sets.
        poll_s: pause between two reads of a job's status, in seconds.
    """

    output: Output
    environment: Mapping[str, str]
    launch: Callable[[JobDirectory, Spec], Launch] | None = None
    require: Callable[[str | None, Mapping[str, Any], JobOptions, Mapping[str, str]], None] | None = None
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    poll_s: float = POLL_S

    def connect(self, kind: type[Job], root: str, job_id: str, storage_options: Mapping[str, Any]) -> Job:
        """Open a job of a root. `kind` is JobDirectory to read the job, or JobClient to send commands to it.

        Raises OptionError for a wrong job id, StoreError for a root that cannot be opened.
        """
        return kind(root, job_id, storage_options, sleep=self.sleep, monotonic=self.monotonic)

    @property
    def caller(self) -> str:
        """The caller's name for the job directory: the value of TIDEGATE_CALLER, or else user and host."""
        if caller := self.environment.get(CALLER_VARIABLE):
            return caller
        import getpass  # here, because it also loads terminal modules, and verbs that only read need no name

        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        return f"cli:{user}@{host_name()}"
