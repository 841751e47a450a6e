"""End drivers that a newer driver has fenced off, but that still hold the cores of a cluster (S9.2).

A living driver notices the fence at its next append and ends itself. A frozen one (SIGSTOP, a stuck host) does not, and
its Spark application keeps its cores, so that the newer driver would wait for slots without end. After the fence the
old driver can decide nothing more, and to kill it is safe at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.launcher import DriverState, Launcher
from tidegate.jobs.launches import LocalDriver, is_on_this_host, read_launch
from tidegate.jobs.records import Decision, Launch

REPLACED_GRACE_S = 5.0
"""Time from a fence to the end of the older drivers by force, in seconds. A living driver that appends often ends
itself in this time, and removes its temporary files."""


def replaced_launches(job: JobDirectory, decisions: Sequence[Decision]) -> list[Launch]:
    """Return the launches that the newest fence has replaced, oldest first.

    Launches before the fence before it are left out: the driver of that fence was responsible for them.

    Args:
        decisions: the whole decision log.

    Raises:
        StoreError: the records of the launches cannot be read.
    """
    fences = [(entry.data["spec"], entry.data["launch"]) for entry in decisions if entry.kind == "fence"]
    if len(fences) < 2:
        return []
    before, newest = fences[-2], fences[-1]
    return [read_launch(job.store, job.layout, *numbers) for numbers in job.launches() if before <= numbers < newest]


def end_on_this_host(launches: Sequence[Launch]) -> list[Launch]:
    """Kill the drivers whose processes run on this host, with their JVM. Return their launches."""
    return [launch for launch in launches if is_on_this_host(launch) and launch.pid and LocalDriver(launch).destroy()]


def end_by_launchers(launches: Sequence[Launch], by_kind: Mapping[str, Launcher]) -> list[Launch]:
    """Kill the drivers that run according to the place where they were launched. Return their launches.

    Args:
        by_kind: launchers by kind. A driver of another kind is left alone.

    Raises:
        EnvironmentProblemError: a cluster does not answer.
    """
    killed = []
    for launch in launches:
        launcher = by_kind.get(launch.launcher)
        if launcher is None or launcher.state(launch) is not DriverState.RUNNING:
            continue
        if launcher.kill(launch, graceful=False):
            killed.append(launch)
    return killed


class FenceWatch:
    """When an agent ends the replaced drivers of one job: once for each fence, REPLACED_GRACE_S after it was seen."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._fence = 0
        self._since_s = 0.0
        self._is_done = True

    def is_due(self, fence: Decision | None) -> bool:
        """Observe the newest fence, and return whether to end the drivers before it now."""
        number = 0 if fence is None else fence.number
        if number != self._fence:
            self._fence, self._since_s, self._is_done = number, self._monotonic(), False
        return not self._is_done and self._monotonic() - self._since_s >= REPLACED_GRACE_S

    def done(self) -> None:
        """The drivers before the fence have ended."""
        self._is_done = True
