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
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from tidegate.entry_points import broken_extension, load_entry_point
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
RESERVED_SETTINGS = frozenset(
    ("root", "storage_options", "storage_option", "spark_conf", "master", "launcher", "python", "spark_submit")
    + ("json", "restarts", "within", "run", "help")
)
"""Extras of a connection and options of `tidegate agent`, which a launcher must not use as names of settings."""
_MEMBERS = ("kind", "settings", "runs_on_this_host", "launch", "state", "log", "kill", "check", "log_place")

logger = logging.getLogger("tidegate.jobs")


@dataclass(frozen=True, slots=True)
class RunningDriver:
    """A driver that is running, according to its launcher."""

    launch: Launch
    launcher: Launcher


@functools.cache  # reads the metadata of every installed package, and packages do not change while a process runs
def from_other_packages() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return the entry points of other packages, by kind and then by "module:Class". A built-in kind cannot be
    replaced."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name not in (*BUILT_IN, AGENT):
            found.setdefault(point.name, {})[point.value] = point
    return found


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
        OptionError: the kind is not known here, or several packages register it.
        EnvironmentProblemError: the kind belongs to another package, and cannot be imported or does not fit.
    """
    if kind in BUILT_IN:
        return cast(type[Launcher], EntryPoint(kind, BUILT_IN[kind], GROUP).load())
    point = _entry_point(kind)
    found = load_entry_point(point, _named(kind))
    misfit = _misfit(found, kind)
    if misfit is not None:
        raise broken_extension(point, _named(kind), "does not fit", misfit)
    return cast(type[Launcher], found)


def settings() -> tuple[LauncherSetting, ...]:
    """Return the settings of all kinds, each name once."""
    found: dict[str, LauncherSetting] = {}
    for made in _classes().values():
        for setting in made.settings:
            found.setdefault(setting.name, setting)
    return tuple(found.values())


def make_launcher(settings: LauncherSettings) -> Launcher:
    """Make the launcher of the settings' kind.

    Raises:
        OptionError: as `launcher_class`.
        EnvironmentProblemError: as `launcher_class`, or the constructor of another package's class fails.
    """
    return _made(settings.kind, launcher_class(settings.kind), settings)


def make_launchers(settings: LauncherSettings) -> Mapping[str, Launcher]:
    """Make a launcher of each kind that launches drivers itself, by kind. A kind of another package that does not work
    is left out, with a warning in the log."""
    found = {}
    for kind, made in _classes().items():
        try:
            found[kind] = _made(kind, made, settings)
        except EnvironmentProblemError as error:
            logger.warning("%s", error)
    return found


def runs_on_this_host(kind: str) -> bool:
    """Return whether this kind's drivers are processes of the launching host. Raises as `launcher_class`."""
    return kind != AGENT and launcher_class(kind).runs_on_this_host


def passes_environment(kind: str) -> bool:
    """Return whether this kind passes `LauncherSettings.environment` to its drivers. Raises as `launcher_class`."""
    return kind != AGENT and bool(getattr(launcher_class(kind), "passes_environment", False))


def check_launcher(
    settings: LauncherSettings, master: str, spark_conf: Mapping[str, str], world: World | None = None
) -> list[Check]:
    """Check whether the launcher of these settings can launch from this host: see `Launcher.check`. Raises as
    `make_launcher`, also if the check of another package's launcher fails."""
    if settings.kind == AGENT:
        return [
            Check(
                True,
                "launcher agent: `tidegate agent` beside the cluster launches drivers; this host needs no launcher",
            )
        ]
    launcher = make_launcher(settings)
    try:
        return launcher.check(master, spark_conf, world or World())
    except Exception as error:
        if settings.kind in BUILT_IN:
            raise
        raise broken_extension(
            _entry_point(settings.kind), _named(settings.kind), "cannot be checked", error
        ) from error


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


@functools.cache  # so that a broken package causes one warning in a process
def _classes() -> Mapping[str, type[Launcher]]:
    """Return all classes that can be loaded. A broken package must not block the other launchers."""
    found = {}
    for kind in kinds():
        try:
            found[kind] = launcher_class(kind)
        except (EnvironmentProblemError, OptionError) as error:
            logger.warning("%s", error)
    return found


def forget_packages() -> None:
    """Search for other packages again, for tests that install one while the process runs."""
    from_other_packages.cache_clear()
    _classes.cache_clear()


def _entry_point(kind: str) -> EntryPoint:
    points = from_other_packages().get(check_launcher_kind(kind, "launcher"))
    if points is None:
        raise OptionError(
            f"the launcher {kind} cannot launch a driver itself: an agent beside the cluster does it",
            where="launcher",
            remedy=f"Use one of {', '.join(kinds())}",
        )
    if len(points) > 1:
        raise OptionError(
            f"several packages register a launcher {kind!r}",
            where=f"entry points of the group {GROUP}",
            cause=", ".join(sorted(points)),
            remedy="Uninstall all of these packages but one",
        )
    (point,) = points.values()
    return point


def _made(kind: str, made: type[Launcher], settings: LauncherSettings) -> Launcher:
    if kind in BUILT_IN:
        return made(settings)
    try:
        return made(settings)
    except Exception as error:  # the code of another package may raise anything
        cause = f"its constructor must accept a LauncherSettings, and raised {type(error).__name__}: {error}"
        raise broken_extension(_entry_point(kind), _named(kind), "cannot be created", cause) from error


def _misfit(found: Any, kind: str) -> str | None:
    """Return how the registered object of another package differs from a class with the interface of Launcher."""
    if not isinstance(found, type):
        return f"it is a {type(found).__name__}, not a class"
    missing = [name for name in _MEMBERS if not hasattr(found, name)]
    if missing:
        return f"the class {found.__name__} lacks {', '.join(missing)}"
    launcher = cast(type[Launcher], found)
    if launcher.kind != kind:
        return f"the class has the kind {launcher.kind!r}, and its entry point the name {kind!r}"
    if not isinstance(launcher.settings, tuple) or not all(
        isinstance(one, LauncherSetting) for one in launcher.settings
    ):
        return "its settings are not a tuple of LauncherSetting"
    wrong = [one.name for one in launcher.settings if not _is_setting_name(one.name)]
    if wrong:
        return f"it has settings with names that are reserved or not lower case: {', '.join(wrong)}"
    return None


def _is_setting_name(name: str) -> bool:
    return name not in RESERVED_SETTINGS and re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None


def _named(kind: str) -> str:
    return f"launcher {kind!r}"
