"""An agent's decisions about one job: when to launch a driver, and when to relaunch it. Pure.

The request is in `desired.json`, the attempts are in `launches/`, and their results are in the decision log. The agent
adds its own observations, by its own clock. Two agents on one root may decide the same; then only one of them can
create the launch's record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.jobs.launch.launcher import DriverState
from tidegate.jobs.records import Desired
from tidegate.jobs.status import JobStatus

LAUNCH_GRACE_S = 180.0
"""How long a driver may take to begin if the place of its launch cannot be asked, in seconds."""

SUBMIT_GRACE_S = 600.0
"""How long a launching process may take to hand a driver over to a cluster, in seconds. Until then the driver is not on
the cluster, and no application is recorded. Equal to the timeout of spark-submit."""

Life = Literal["none", "starting", "alive", "dead"]
"""State of the newest launch's driver. "none": nothing was launched yet."""


@dataclass(frozen=True, slots=True)
class RelaunchBudget:
    """Limit of the relaunches of a dead driver.

    Attributes:
        restarts: most relaunches within `within_s`.
        within_s: length of the period, in seconds.
    """

    restarts: int
    within_s: float


@dataclass(frozen=True, slots=True)
class RelaunchInput:
    """Facts about a job from which `decide_relaunch` decides.

    Attributes:
        desired: requested state; None: there is no request.
        spec: newest submission.
        status: status of this submission.
        attempts: newest recorded launch of it; 0: none.
        life: state of that launch's driver.
        ended_by: who requested the end of the job (`desired_state.stop_requested_by`); "": it should run. Only known
            for a dead driver.
    """

    desired: Desired | None
    spec: int
    status: JobStatus
    attempts: int
    life: Life
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class NoAction:
    """Do nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class LaunchDriver:
    """Launch exactly this attempt. `anew`: it replaces a driver that died."""

    attempt: int
    why: str
    anew: bool = False


@dataclass(frozen=True, slots=True)
class StopRelaunching:
    """The relaunch budget is used up. Do nothing until there is a new request."""

    why: str


Decision: TypeAlias = NoAction | LaunchDriver | StopRelaunching


def launch_liveness(*, begun: bool, handed_over: bool, place: DriverState, silent: bool, waited_s: float) -> Life:
    """Return the state of the newest launch's driver.

    Args:
        begun: its fence is in the decision log.
        handed_over: its process or application is recorded, or the launch failed; False: the launch may be under way.
        place: state that its launcher reports; GONE only after two observations in a row.
        silent: neither heartbeat nor log has advanced for `heartbeat_timeout`, by this process's clock.
        waited_s: time without any sign of this launch, in seconds.
    """
    if place is DriverState.GONE and (begun or handed_over):
        return "dead"
    if begun:
        return "dead" if silent else "alive"
    if place is DriverState.RUNNING:  # it may be in a queue for any time
        return "starting"
    grace_s = SUBMIT_GRACE_S if place is DriverState.GONE else LAUNCH_GRACE_S
    return "dead" if waited_s >= grace_s else "starting"


def decide_relaunch(seen: RelaunchInput, budget: RelaunchBudget, relaunches: int) -> Decision:
    """Decide what to do about a job.

    Args:
        budget: configured budget.
        relaunches: relaunches for the current request in the budget's period.
    """
    desired = seen.desired
    if desired is None or desired.spec != seen.spec:
        return NoAction("no launch by an agent is requested for this submission")
    if desired.state == "stopped":
        return NoAction("a stop of the job is requested")
    if seen.status.is_terminal and seen.status is not JobStatus.FAILED:
        return NoAction(f"the job is {seen.status.value}")
    # Before the check for FAILED, because a new request may launch a failed job again.
    if seen.attempts < desired.launch:
        return LaunchDriver(seen.attempts + 1, f"requested by {desired.by}")
    if seen.status is JobStatus.FAILED:
        return NoAction("the job failed with an error")
    if seen.life != "dead":
        return NoAction(f"the driver is {seen.life}")
    if seen.ended_by:
        return NoAction(f"{seen.ended_by} requested the end of the job")
    if relaunches >= budget.restarts:
        return StopRelaunching(
            f"the driver is dead, and was relaunched {relaunches} times within {budget.within_s:g} s"
        )
    return LaunchDriver(seen.attempts + 1, "the driver is dead", anew=True)


class RelaunchHistory:
    """Counts the relaunches of one job that an agent observed, its own and others': each launch beyond the requested
    one."""

    def __init__(self, budget: RelaunchBudget) -> None:
        self._budget = budget
        self._wanted: Desired | None = None
        self._attempts = 0
        self._at_s: list[float] = []

    def observe(self, seen: RelaunchInput, now_s: float) -> int:
        """Observe a job, and return the relaunches in the budget's period. The count starts at 0 for a new request, and
        for an agent that has just started."""
        if seen.desired != self._wanted:
            self._wanted, self._at_s, self._attempts = seen.desired, [], seen.attempts
        # The launch that the request names is no relaunch, and does not count.
        first = max(self._attempts, seen.desired.launch if seen.desired is not None else 0)
        self._at_s += [now_s] * max(0, seen.attempts - first)
        self._attempts = max(self._attempts, seen.attempts)
        self._at_s = [at for at in self._at_s if now_s - at < self._budget.within_s]
        return len(self._at_s)
