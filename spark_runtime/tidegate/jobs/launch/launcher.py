"""The interface of a launcher: one way to bring drivers up, to find them again, to read their log and to end them.

A launch is recorded before it is made (`launches.record_launch`), and what it has started after it; whoever comes
later finds the driver by these records and by asking the place where it runs. So a launcher keeps nothing in memory,
and one that dies at any point leaves at worst a driver too many, which the decision log fences off (S9.2), or a launch
that started nothing, after which the next one is a new attempt.

A launcher is one module with everything of its kind, and one registration: a line of `launcher_registry.BUILT_IN`, or
an entry point of the group `tidegate.launchers` in another package. `tidegate.testing.LauncherConformance` tests it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.programs import Run, connects, run_program
from tidegate.jobs.records import Launch, Spec


class DriverState(StrEnum):
    """What the place where a driver runs says of it. UNKNOWN: it cannot be asked from here, as of a process of another
    machine; only the heartbeat tells then."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LauncherSetting:
    """A setting of one kind of launcher. From it come the option of `tidegate agent`, the extra of an Airflow
    connection and the field of Airflow's connection form.

    Attributes:
        name: of the extra, such as "driver_script"; the option is then `--driver-script`. Kinds that use the same name
            share the value.
        label: of the form's field.
        description: one sentence for the form and for `--help`.
        default: used where nothing is set.
        metavar: what the value is, for `--help`.
    """

    name: str
    label: str
    description: str
    default: str
    metavar: str = "PATH"

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """How drivers are launched, besides what the submission says.

    Attributes:
        kind: of the launcher, see `launcher_registry.connection_kinds`.
        python: interpreter of the driver, with tidegate[spark]: a path of this machine, for YARN and Kubernetes
            one of the driver's container; None: this process's own, in a container python3.
        spark_submit: path of spark-submit; None: that of SPARK_HOME, else on the PATH, else beside `python`, or this
            process's own.
        extra: values of the settings that the kinds declare, by name (`LauncherSetting`).
    """

    kind: str = "local"
    python: str | None = None
    spark_submit: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def value(self, setting: LauncherSetting) -> str:
        """The value of a setting that a kind declares, or its default."""
        return self.extra.get(setting.name) or setting.default

    def found_spark_submit(self) -> str:
        """The program to run; the bare name when none is found."""
        if self.spark_submit is not None:
            return self.spark_submit
        home = os.environ.get("SPARK_HOME")
        pythons = (self.python, sys.executable)  # the first one may be a container's
        beside = [os.path.join(os.path.dirname(python), "spark-submit") for python in pythons if python]
        candidates = ([os.path.join(home, "bin", "spark-submit")] if home else []) + ["spark-submit", *beside]
        return next((found for name in candidates if (found := shutil.which(name))), "spark-submit")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, or what is wrong and what to do."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class World:
    """What a launcher's check inspects; replaced in tests.

    Attributes:
        run: runs a program.
        connect: host and port to None, or why no connection comes about.
        environment: variables of this process.
    """

    run: Run = run_program
    connect: Callable[[str, int], str | None] = connects
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


class Launcher(Protocol):
    """One way to bring drivers up. All calls block; any of them may come again at any time, from any process that has
    the same settings.

    Attributes:
        kind: as in a launch's record. It is durable: a kind never changes its name.
        settings: what it needs to know besides `python` and `spark_submit`.
        runs_on_this_host: its drivers are processes of the host that launches them. They need Java, slots and ports
            there, and end with it.
    """

    kind: ClassVar[str]
    settings: ClassVar[tuple[LauncherSetting, ...]]
    runs_on_this_host: ClassVar[bool]

    def __init__(self, settings: LauncherSettings) -> None:
        """Must not block, and must not fail: a launcher is also made to ask for the drivers of others."""

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

    def check(self, master: str, spark_conf: Mapping[str, str], world: World) -> list[Check]:
        """Whether drivers could be launched from this host: for the Test button of a connection. Starts no driver; an
        interpreter and a connection at most. Never raises for what it finds."""

    @staticmethod
    def log_place(launch: Launch) -> str:
        """Where a driver ran and where its log is, in one line, from its record alone."""


def driver_arguments(root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """The command line of a driver, whoever starts it."""
    return ("--root", root, "--job", job_id, "--spec", str(launch.spec), "--launch", str(launch.attempt))


def recorded_place(launch: Launch) -> str:
    """`Launcher.log_place` of a process, and of a launch that nothing was recorded of after its start."""
    if launch.external_id is not None:
        return f"{launch.external_id} on {launch.host}"
    if launch.pid is None:
        return f"on {launch.host}: what it started was never recorded"
    return f"process {launch.pid} on {launch.host}, log {launch.log}"
