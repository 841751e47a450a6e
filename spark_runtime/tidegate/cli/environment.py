"""What verbs need of the world around them, so that tests can give them another one."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.cli.arguments import Parser
from tidegate.cli.output import Output
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.driver_requirements import require_machine
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.options import JobOptions
from tidegate.jobs.os_processes import host_name
from tidegate.jobs.process_environment import CALLER_VARIABLE
from tidegate.jobs.records import Launch, Spec

POLL_S = 0.25
"""Pause between two looks at a job while a person waits, seconds."""


class Verbs(Protocol):
    """What a module adds its verbs to."""

    def add_parser(self, name: str, *, help: str, description: str) -> Parser:
        """A verb's parser."""


@dataclass(frozen=True)
class Surroundings:
    """The world of one call.

    Attributes:
        output: where words go.
        environment: variables.
        connect: root, job id and storage options to a client; OptionError for a bad job id, StoreError for a bad root.
        launch: starts the driver of a submission.
        require: looks at what a driver needs of this machine, before a submission (`require_machine`).
        sleep: pause, seconds.
        poll_s: pause between two looks at a job, seconds.
    """

    output: Output
    environment: Mapping[str, str]
    connect: Callable[[str, str, Mapping[str, Any]], JobClient] = JobClient
    launch: Callable[[JobClient, Spec], Launch] = launch_local
    require: Callable[[str | None, Mapping[str, Any], JobOptions, Mapping[str, str]], None] = require_machine
    sleep: Callable[[float], None] = time.sleep
    poll_s: float = POLL_S

    @property
    def caller(self) -> str:
        """Who calls, for the job directory's readers: what TIDEGATE_CALLER says, else user and host."""
        if told := self.environment.get(CALLER_VARIABLE):
            return told
        try:
            user = getpass.getuser()
        except (OSError, KeyError, ImportError):
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        return f"cli:{user}@{host_name()}"
