"""What every way to bring a driver up can do: launch, find again, read the log, kill.

A launch is recorded before it is made (`launches.record_launch`), and what it has started after it; whoever comes
later finds the driver by these records and by asking the place where it runs. So a launcher keeps nothing in memory,
and one that dies at any point leaves at worst a driver too many, which the decision log fences off (S9.2), or a launch
that started nothing, after which the next one is a new attempt.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.records import Launch, Spec

KINDS = ("local", "spark-submit", "yarn", "kubernetes", "agent")
"""Launchers that a connection may name."""


class DriverState(StrEnum):
    """What the place where a driver runs says of it. UNKNOWN: it cannot be asked from here, as of a process of another
    machine; only the heartbeat tells then."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """How drivers are launched, besides what the submission says.

    Attributes:
        kind: one of KINDS.
        python: interpreter of the driver, with tidegate and pyspark: a path of this machine, for YARN and Kubernetes
            one of the driver's container; None: this process's own, in a container python3.
        spark_submit: path of spark-submit; None: that of SPARK_HOME, else on the PATH, else beside `python`, or this
            process's own.
        yarn: YARN's command line.
        driver_script: what spark-submit is given on Kubernetes: a copy of `driver_entry.py` in the image.
    """

    kind: str = "local"
    python: str | None = None
    spark_submit: str | None = None
    yarn: str = "yarn"
    driver_script: str = "local:///opt/tidegate/driver_entry.py"

    def found_spark_submit(self) -> str:
        """The program to run; the bare name when none is found."""
        if self.spark_submit is not None:
            return self.spark_submit
        home = os.environ.get("SPARK_HOME")
        pythons = (self.python, sys.executable)  # the first one may be a container's
        beside = [os.path.join(os.path.dirname(python), "spark-submit") for python in pythons if python]
        candidates = ([os.path.join(home, "bin", "spark-submit")] if home else []) + ["spark-submit", *beside]
        return next((found for name in candidates if (found := shutil.which(name))), "spark-submit")


class Launcher(Protocol):
    """One way to bring drivers up. All calls block; any of them may come again at any time, from any process that has
    the same settings.

    Attributes:
        kind: as in a launch's record.
    """

    kind: ClassVar[str]

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """Record a launch, start a driver for `spec`, record what was started.

        Args:
            attempt: this one, or none; None: the next.

        Returns:
            The launch, with its process or external id.

        Raises:
            AlreadyExistsError: `attempt` is somebody else's; nothing was started.
            OptionError: the submission cannot be launched so.
            EnvironmentProblemError: nothing could be started; says why.
        """

    def state(self, launch: Launch) -> DriverState:
        """What has become of a launch of this kind. Raises EnvironmentProblemError when the place cannot be asked."""

    def log(self, launch: Launch) -> str:
        """What the driver has written so far, as far as it can be read from here; else where to read it."""

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """End the driver. `graceful`: let it stop with a savepoint, where the place knows such a thing
        (`sigterm_timeout`). False: it is gone already, or out of reach."""


def driver_arguments(root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """What a driver is told on its command line, whoever starts it."""
    return ("--root", root, "--job", job_id, "--spec", str(launch.spec), "--launch", str(launch.attempt))
