"""Which launcher is meant, and which driver of a submission is there, whoever launched it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import OptionError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.cluster import KubernetesLauncher, YarnLauncher
from tidegate.jobs.launch.launcher import KINDS, DriverState, Launcher, LauncherSettings
from tidegate.jobs.launch.local import LocalLauncher, SparkSubmitLauncher
from tidegate.jobs.launches import launch_of
from tidegate.jobs.records import Launch, Spec


@dataclass(frozen=True, slots=True)
class FoundDriver:
    """A driver that its launcher says is there."""

    launch: Launch
    launcher: Launcher


def launchers(settings: LauncherSettings) -> Mapping[str, Launcher]:
    """Those that start something themselves, by kind."""
    made: tuple[Launcher, ...] = (
        LocalLauncher(settings),
        SparkSubmitLauncher(settings),
        YarnLauncher(settings),
        KubernetesLauncher(settings),
    )
    return {launcher.kind: launcher for launcher in made}


def check_kind(kind: str, where: str) -> str:
    """`kind` when it is a launcher's. Raises OptionError naming the kinds."""
    if kind not in KINDS:
        raise OptionError(f"there is no launcher {kind!r}", where=where, remedy=f"Use one of {', '.join(KINDS)}")
    return kind


def find_driver(job: JobDirectory, spec: Spec, by_kind: Mapping[str, Launcher]) -> FoundDriver | None:
    """The newest driver of `spec` that the place where it was launched says is there. By the launcher that its record
    names, not by today's settings: a connection may have changed since.

    None: none is there, or none can be asked from here; then the heartbeat tells (`JobDirectory.is_alive`). Raises
    EnvironmentProblemError when a cluster does not answer.
    """
    for number, attempt in reversed(job.launches()):
        if number != spec.number:
            continue
        launch = launch_of(job.store, job.layout, number, attempt)
        launcher = by_kind.get(launch.launcher)
        if launcher is not None and launcher.state(launch) is DriverState.RUNNING:
            return FoundDriver(launch, launcher)
    return None
