"""The kinds of launchers, and a search for the running driver of a submission, whoever launched it.

A built-in kind is a line of `BUILT_IN`. Another package registers a kind by an entry point of the group
`tidegate.launchers`, whose name is the kind and whose value is "module:Class":

    [project.entry-points."tidegate.launchers"]
    nomad = "nomad_launcher:NomadLauncher"

A kind is imported when it is first needed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from tidegate.errors import EnvironmentProblemError, OptionError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.launcher import Check, DriverState, Launcher, LauncherSetting, LauncherSettings, World
from tidegate.jobs.launches import read_launch
from tidegate.jobs.records import Launch, Spec

GROUP = "tidegate.launchers"
"""Group of the entry points of other packages' launchers."""
BUILT_IN: Mapping[str, str] = {
    "local": "tidegate.jobs.launch.local:LocalLauncher",
    "spark-submit": "tidegate.jobs.launch.spark_submit:SparkSubmitLauncher",
    "yarn": "tidegate.jobs.launch.yarn:YarnLauncher",
    "kubernetes": "tidegate.jobs.launch.kubernetes:KubernetesLauncher",
}
"""Built-in kinds, as "module:Class". The first is the default of a connection."""
AGENT = "agent"
"""Value in a connection when an agent beside the cluster launches drivers (`tidegate agent`). It is not a launcher."""

logger = logging.getLogger("tidegate.jobs")


@dataclass(frozen=True, slots=True)
class RunningDriver:
    """A driver that is running, according to its launcher."""

    launch: Launch
    launcher: Launcher


@functools.cache  # reads the metadata of every installed package, and packages do not change while a process runs
def from_other_packages() -> Mapping[str, EntryPoint]:
    """Return the entry points of other packages, by kind. A built-in kind cannot be replaced."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in (*BUILT_IN, AGENT)}


def kinds() -> tuple[str, ...]:
    """Return all kinds that launch drivers themselves, the built-in ones first."""
    return (*BUILT_IN, *from_other_packages())


def connection_kinds() -> tuple[str, ...]:
    """Return all values that a connection may have as its launcher."""
    return (*kinds(), AGENT)


def check_launcher_kind(kind: str, where: str) -> str:
    """Return `kind` if a connection may name it. Raises OptionError with the known kinds otherwise."""
    if kind not in connection_kinds():
        remedy = f"Use one of {', '.join(connection_kinds())}"
        raise OptionError(f"there is no launcher {kind!r}", where=where, remedy=remedy)
    return kind


def launcher_class(kind: str) -> type[Launcher]:
    """Return the launcher class of a kind.

    Raises:
        OptionError: the kind is not known here.
        EnvironmentProblemError: the kind belongs to another package, and cannot be imported.
    """
    if kind in BUILT_IN:
        return cast(type[Launcher], EntryPoint(kind, BUILT_IN[kind], GROUP).load())
    point = from_other_packages().get(check_launcher_kind(kind, "launcher"))
    if point is None:
        raise OptionError(
            f"the launcher {kind} cannot launch a driver itself: an agent beside the cluster does it",
            where="launcher",
            remedy=f"Use one of {', '.join(kinds())}",
        )
    try:
        return cast(type[Launcher], point.load())
    except Exception as error:  # the module of another package may raise anything when it is imported
        raise EnvironmentProblemError(
            f"the launcher {kind} cannot be loaded",
            where=f"entry point {point.value} of the group {GROUP}",
            cause=f"{type(error).__name__}: {error}",
            remedy="Correct or uninstall the package that registers it",
        ) from error


def settings() -> tuple[LauncherSetting, ...]:
    """Return the settings of all kinds, each name once."""
    found: dict[str, LauncherSetting] = {}
    for made in _classes().values():
        for setting in made.settings:
            found.setdefault(setting.name, setting)
    return tuple(found.values())


def make_launchers(settings: LauncherSettings) -> Mapping[str, Launcher]:
    """Make a launcher of each kind that launches drivers itself, by kind."""
    return {kind: made(settings) for kind, made in _classes().items()}


def runs_on_this_host(kind: str) -> bool:
    """Return whether this kind's drivers are processes of the launching host. Raises as `launcher_class`."""
    return kind != AGENT and launcher_class(kind).runs_on_this_host


def check_launcher(
    settings: LauncherSettings, master: str, spark_conf: Mapping[str, str], world: World | None = None
) -> list[Check]:
    """Check whether the launcher of these settings can launch from this host: see `Launcher.check`. Raises as
    `launcher_class`."""
    if settings.kind == AGENT:
        return [
            Check(
                True,
                "launcher agent: `tidegate agent` beside the cluster launches drivers; this host needs no launcher",
            )
        ]
    return launcher_class(settings.kind)(settings).check(master, spark_conf, world or World())


def find_running_driver(job: JobDirectory, spec: Spec, by_kind: Mapping[str, Launcher]) -> RunningDriver | None:
    """Return the newest driver of `spec` that is running, according to the place where it was launched.

    The launcher is the one in the launch's record, because the connection may have changed since. None: there is no
    such driver, or this host cannot see it; then the heartbeat decides (`JobDirectory.is_alive`). Raises
    EnvironmentProblemError when a cluster does not answer.
    """
    for number, attempt in reversed(job.launches()):
        if number != spec.number:
            continue
        launch = read_launch(job.store, job.layout, number, attempt)
        launcher = by_kind.get(launch.launcher)
        if launcher is not None and launcher.state(launch) is DriverState.RUNNING:
            return RunningDriver(launch, launcher)
    return None


def _classes() -> dict[str, type[Launcher]]:
    """Return all classes that can be loaded. A broken package must not block the other launchers."""
    found = {}
    for kind in kinds():
        try:
            found[kind] = launcher_class(kind)
        except EnvironmentProblemError as error:
            logger.warning("%s", error)
    return found
