"""The interface of a launcher: it starts drivers in one way, finds them again, reads their logs and ends them.

A launch is recorded before the start (`launches.record_launch`), and its process or application after it. Other
processes find the driver by these records, and by a request to the place where it runs. So a launcher keeps nothing in
memory. If it dies at any point, the worst results are an extra driver, which the decision log fences off (S9.2), or a
launch that started nothing, after which the next launch is a new attempt.

A launcher consists of one module, and one registration: a line of `launcher_registry.BUILT_IN`, or an entry point of
the group `tidegate.launchers` in another package. `tidegate.testing.LauncherConformance` tests it.
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
    """State of a driver, reported by the place where it runs. UNKNOWN: the place cannot be asked from here, for example
    another machine; then only the heartbeat shows whether the driver lives."""

    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LauncherSetting:
    """A setting of one kind of launcher. It becomes an option of `tidegate agent`, an extra of an Airflow connection
    and a field of Airflow's connection form.

    Attributes:
        name: name of the extra, such as "driver_script"; the option is then `--driver-script`. Kinds with the same name
            share the value.
        label: label of the form's field.
        description: one sentence, for the form and for `--help`.
        default: value that is used when none is set.
        metavar: kind of value, for `--help`.
    """

    name: str
    label: str
    description: str
    default: str
    metavar: str = "PATH"

    @property
    def option(self) -> str:
        """Name of the option on the command line."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """Settings for launches that are not part of the submission.

    Attributes:
        kind: kind of the launcher; see `launcher_registry.connection_kinds`.
        python: interpreter of the driver, with tidegate[spark]: a path on this machine, or for YARN and Kubernetes in
            the driver's container; None: the interpreter of this process, in a container python3.
        spark_submit: path of spark-submit; None: the one in SPARK_HOME, or else on the PATH, or else beside `python` or
            this process's interpreter.
        extra: values of the kinds' own settings, by name (`LauncherSetting`).
        environment: environment variables for the driver's process, which may be secrets. Never recorded or logged.
            Only for launchers with `passes_environment`.
    """

    kind: str = "local"
    python: str | None = None
    spark_submit: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def value(self, setting: LauncherSetting) -> str:
        """Return the value of a kind's own setting, or its default."""
        return self.extra.get(setting.name) or setting.default

    def found_spark_submit(self) -> str:
        """Return the path of spark-submit; the bare name when it is not found."""
        if self.spark_submit is not None:
            return self.spark_submit
        home = os.environ.get("SPARK_HOME")
        pythons = (self.python, sys.executable)  # the first may be a path in a container
        beside = [os.path.join(os.path.dirname(python), "spark-submit") for python in pythons if python]
        candidates = ([os.path.join(home, "bin", "spark-submit")] if home else []) + ["spark-submit", *beside]
        return next((found for name in candidates if (found := shutil.which(name))), "spark-submit")


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check: the observation, or the problem and its remedy."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class World:
    """The functions by which a launcher's check observes this host. Tests replace them.

    Attributes:
        run: runs a program.
        connect: connects to host and port; returns None, or why the connection failed.
        environment: environment variables of this process.
    """

    run: Run = run_program
    connect: Callable[[str, int], str | None] = connects
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


class Launcher(Protocol):
    """One way to start drivers. All calls block. Each may be repeated at any time, from any process with the same
    settings.

    Attributes:
        kind: kind in a launch's record. It is durable: the name of a kind never changes.
        settings: settings that it needs besides `python` and `spark_submit`.
        runs_on_this_host: its drivers are processes of the host that launches them. They need Java, slots and ports
            there, and end with the host.

    A launcher may also have `passes_environment: ClassVar[bool] = True`: its drivers get the variables of
    `LauncherSettings.environment`, and nobody else can read them. Without it, secrets of Airflow connections are
    refused for the launcher.
    """

    kind: ClassVar[str]
    settings: ClassVar[tuple[LauncherSetting, ...]]
    runs_on_this_host: ClassVar[bool]

    def __init__(self, settings: LauncherSettings) -> None:
        """Must not block or fail: a launcher is also made only to find the drivers of others."""

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """Record a launch, start a driver for `spec`, and record its process or application.

        Args:
            attempt: record exactly this attempt; None: the next free one.

        Returns:
            The launch, with its process or external id.

        Raises:
            AlreadyExistsError: another launcher has recorded `attempt`; nothing was started.
            OptionError: this launcher cannot launch the submission.
            EnvironmentProblemError: the driver could not be started; the error has the reason.
        """

    def state(self, launch: Launch) -> DriverState:
        """Return the state of a launch of this kind. Raises EnvironmentProblemError when the place cannot be asked."""

    def log(self, launch: Launch) -> str:
        """Return the driver's output so far if this host can read it, or else where to read it."""

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """End the driver. `graceful`: let it stop with a savepoint if the place supports that (`sigterm_timeout`).

        Returns False when the driver has ended already, or cannot be reached.
        """

    def check(self, master: str, spark_conf: Mapping[str, str], world: World) -> list[Check]:
        """Check whether drivers can be launched from this host, for the Test button of a connection.

        Starts no driver; at most it runs an interpreter and opens a connection. Problems are returned, not raised.
        """

    @staticmethod
    def log_place(launch: Launch) -> str:
        """Return the place of a driver and its log in one line, from the launch's record alone."""


def driver_arguments(root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """Return the arguments of a driver's program. They are the same for every launcher."""
    return ("--root", root, "--job", job_id, "--spec", str(launch.spec), "--launch", str(launch.attempt))


def recorded_place(launch: Launch) -> str:
    """Return `Launcher.log_place` of a process, or of a launch with no record after its start."""
    if launch.external_id is not None:
        return f"{launch.external_id} on {launch.host}"
    if launch.pid is None:
        return f"on {launch.host}: its process was never recorded"
    return f"process {launch.pid} on {launch.host}, log {launch.log}"
