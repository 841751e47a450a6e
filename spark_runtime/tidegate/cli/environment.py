"""What verbs need of the world around them, so that tests can give them another one."""

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
"""Pause between two looks at a job while a person waits, seconds."""


@dataclass(frozen=True)
class CliEnvironment:
    """The world of one call.

    Attributes:
        output: where words go.
        environment: variables.
        launch: starts the driver of a submission; None: `launch_local`.
        require: checks what a driver needs of this machine, before a submission; None: `require_machine`.
        sleep: pause, seconds.
        monotonic: seconds.
        poll_s: pause between two looks at a job, seconds.
    """

    output: Output
    environment: Mapping[str, str]
    launch: Callable[[JobDirectory, Spec], Launch] | None = None
    require: Callable[[str | None, Mapping[str, Any], JobOptions, Mapping[str, str]], None] | None = None
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    poll_s: float = POLL_S

    def connect(self, kind: type[Job], root: str, job_id: str, storage_options: Mapping[str, Any]) -> Job:
        """A job of a root, to read it or, as a JobClient, to command it. Raises OptionError for a bad job id,
        StoreError for a bad root."""
        return kind(root, job_id, storage_options, sleep=self.sleep, monotonic=self.monotonic)

    @property
    def caller(self) -> str:
        """Who calls, for the job directory's readers: what TIDEGATE_CALLER says, else user and host."""
        if told := self.environment.get(CALLER_VARIABLE):
            return told
        import getpass  # loads the terminal's settings too, and verbs that only read need no name

        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        return f"cli:{user}@{host_name()}"
