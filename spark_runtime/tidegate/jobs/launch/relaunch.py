"""When a driver is launched for somebody else, and launched anew: what an agent decides about one job. Pure.

What is wanted stands in `desired.json`, what has been tried in `launches/`, what became of it in the decision log; an
agent adds what it has itself observed, by a clock of its own. Two agents on one root decide the same at worst, and then
the launch's record, which is created exclusively, is made by one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.jobs.launch.launcher import DriverState
from tidegate.jobs.records import Desired
from tidegate.jobs.status import JobStatus

LAUNCH_GRACE_S = 180.0
"""How long a launch whose place cannot be asked may take until its driver begins, seconds."""

SUBMIT_GRACE_S = 600.0
"""How long whoever launches on a cluster may take to hand the driver over, seconds: until then nothing is to be found
there, and nothing is recorded of what was started. As long as spark-submit may run."""

Life = Literal["none", "starting", "alive", "dead"]
"""Of the newest launch's driver. None: nothing was launched yet."""


@dataclass(frozen=True, slots=True)
class RelaunchBudget:
    """How often a dead driver is launched anew.

    Attributes:
        restarts: so many times,
        within_s: in any so many seconds.
    """

    restarts: int
    within_s: float


@dataclass(frozen=True, slots=True)
class JobObservation:
    """One look at a job.

    Attributes:
        desired: what is wanted; None: nobody has said so.
        spec: newest submission.
        status: under it.
        attempts: newest recorded launch of it; 0: none.
        life: of that launch's driver.
        ended_by: who wants the job to be over (`endings.meant_to_end_by`); "": it is to run. Asked only of a dead one.
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
    """Launch this very attempt, or none. `anew`: in place of one that died."""

    attempt: int
    why: str
    anew: bool = False


@dataclass(frozen=True, slots=True)
class StopRelaunching:
    """The budget is used up: do nothing more until somebody wants it again."""

    why: str


Decision: TypeAlias = NoAction | LaunchDriver | StopRelaunching


def launch_liveness(*, begun: bool, handed_over: bool, place: DriverState, silent: bool, waited_s: float) -> Life:
    """What to hold of the newest launch's driver.

    Args:
        begun: its fence is in the decision log.
        handed_over: what it started is recorded, or it is known to have failed; False: somebody may be at it still.
        place: what its launcher says, at two looks in a row when it says GONE.
        silent: neither heartbeat nor log has moved for `heartbeat_timeout`, as the observer saw it.
        waited_s: for how long nothing at all has been seen of this launch, seconds.
    """
    if place is DriverState.GONE and (begun or handed_over):
        return "dead"
    if begun:
        return "dead" if silent else "alive"
    if place is DriverState.RUNNING:  # it may wait long in a queue
        return "starting"
    grace_s = SUBMIT_GRACE_S if place is DriverState.GONE else LAUNCH_GRACE_S
    return "dead" if waited_s >= grace_s else "starting"


def decide_relaunch(seen: JobObservation, budget: RelaunchBudget, relaunches: int) -> Decision:
    """What to do about a job.

    Args:
        budget: as configured.
        relaunches: how many drivers were launched anew for what is wanted now, in the budget's time.
    """
    desired = seen.desired
    if desired is None or desired.spec != seen.spec:
        return NoAction("nobody wants this submission launched by an agent")
    if desired.state == "stopped":
        return NoAction("it is to be stopped")
    if seen.status.is_terminal and seen.status is not JobStatus.FAILED:
        return NoAction(f"it is {seen.status.value}")
    if seen.attempts < desired.launch:
        return LaunchDriver(seen.attempts + 1, f"wanted by {desired.by}")
    if seen.status is JobStatus.FAILED:
        return NoAction("it failed by itself")
    if seen.life != "dead":
        return NoAction(f"its driver is {seen.life}")
    if seen.ended_by:
        return NoAction(f"{seen.ended_by} wants the job to be over")
    if relaunches >= budget.restarts:
        return StopRelaunching(
            f"its driver is dead, and was launched anew {relaunches} times within {budget.within_s:g} s"
        )
    return LaunchDriver(seen.attempts + 1, "its driver is dead", anew=True)


class RelaunchHistory:
    """Counts launches in place of dead drivers, of one job, as one agent saw them made by whomever: any launch beyond
    the wanted one."""

    def __init__(self, budget: RelaunchBudget) -> None:
        self._budget = budget
        self._wanted: Desired | None = None
        self._attempts = 0
        self._at_s: list[float] = []

    def observe(self, seen: JobObservation, now_s: float) -> int:
        """Take a look; how many fall into the budget's time. What is wanted anew begins at none, and so does an agent
        that has just begun."""
        if seen.desired != self._wanted:
            self._wanted, self._at_s, self._attempts = seen.desired, [], seen.attempts
        first = max(self._attempts, seen.desired.launch if seen.desired is not None else 0)
        self._at_s += [now_s] * max(0, seen.attempts - first)
        self._attempts = max(self._attempts, seen.attempts)
        self._at_s = [at for at in self._at_s if now_s - at < self._budget.within_s]
        return len(self._at_s)
