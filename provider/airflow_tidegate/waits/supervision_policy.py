"""When a supervised job's driver is launched again, and when somebody has to be woken. Pure: no clock, no store.

What is remembered lies in the job directory: launches with their times. So neither a retry nor a restart of worker or
triggerer gives a job a fresh budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from tidegate.units import format_duration


@dataclass(frozen=True)
class SupervisionLimits:
    """What a supervisor puts up with.

    Attributes:
        max_relaunches: within `window`; 0: a dead driver is never relaunched.
        window: looked back from now.
        no_progress: how long a job may show no progress; None: for ever.
    """

    max_relaunches: int
    window: timedelta
    no_progress: timedelta | None


@dataclass(frozen=True)
class DriverObservation:
    """A job at one moment.

    Attributes:
        now_s: seconds since the epoch.
        is_over: its status is terminal.
        lost: why its driver counts as dead; "": it is not known to be.
        is_starting: its newest launch has said nothing yet, and may still.
        meant_to_end_by: who wants it to be over; "": it is to run.
        launched_s: when drivers of its submission were launched, seconds since the epoch, oldest first.
        progressed_s: when a checkpoint last completed or a source last read a record, seconds since the epoch.
        waits_for_verdict: it reads nothing because checkpoints wait for a verdict (S7.8).
    """

    now_s: float
    is_over: bool = False
    lost: str = ""
    is_starting: bool = False
    meant_to_end_by: str = ""
    launched_s: Sequence[float] = ()
    progressed_s: float = 0.0
    waits_for_verdict: bool = False


@dataclass(frozen=True)
class SupervisionDecision:
    """What to do.

    Attributes:
        action: "watch" on; "relaunch" a driver; "end": the job is over, or is meant to be; "fail": wake somebody.
        why: for people; "" for "watch".
        remedy: with "fail".
    """

    action: Literal["watch", "relaunch", "end", "fail"]
    why: str = ""
    remedy: str = ""


WATCH = SupervisionDecision("watch")


def decide_supervision(seen: DriverObservation, limits: SupervisionLimits) -> SupervisionDecision:
    """The rules, in order: the end of a job is its own; a dead driver of a job that is to run is relaunched while the
    budget lasts; a job that lives and does not move is somebody's."""
    if seen.is_over:
        return SupervisionDecision("end", "the job is over")
    if seen.lost:
        return _of_dead_driver(seen, limits)
    stood_s = seen.now_s - seen.progressed_s
    if limits.no_progress is None or stood_s < limits.no_progress.total_seconds():
        return WATCH
    return SupervisionDecision(
        "fail",
        f"no checkpoint has completed and no source has read a record for {_words(stood_s)}",
        "Approve or reject what waits for a verdict: until then the job reads nothing"
        if seen.waits_for_verdict
        else "Look at the job's status and log; it was left running. Retry the task to go on supervising it",
    )


def _of_dead_driver(seen: DriverObservation, limits: SupervisionLimits) -> SupervisionDecision:
    if seen.is_starting:
        return WATCH
    if seen.meant_to_end_by:
        return SupervisionDecision("end", f"its driver died, and {seen.meant_to_end_by} wants the job to be over")
    since_s = seen.now_s - limits.window.total_seconds()
    again = [at for at in seen.launched_s[1:] if at > since_s]  # the first one started the job
    if len(again) < limits.max_relaunches:
        return SupervisionDecision("relaunch", seen.lost)
    window, most = format_duration(limits.window), limits.max_relaunches
    return SupervisionDecision(
        "fail",
        f"the driver is dead, and was relaunched {len(again)} times within {window} already, of {most}",
        "Mend what kills it; then restore the job from its latest snapshot, or retry the task with a greater budget",
    )


def decide_unlaunched(now_s: float, last_sign_s: float, limits: SupervisionLimits) -> SupervisionDecision:
    """Of a driver that counts as dead and was not launched again, because its process is there or an agent is to do it:
    it may come back, or come; but not for ever.

    Args:
        now_s: seconds since the epoch.
        last_sign_s: when one was last launched, asked for, or heard of, seconds since the epoch.
    """
    silent_s = now_s - last_sign_s
    if limits.no_progress is None or silent_s < limits.no_progress.total_seconds():
        return WATCH
    return SupervisionDecision(
        "fail",
        f"its driver has given no sign of life for {_words(silent_s)}, and none was launched in its place",
        "Where its process is there still, find out why it stands and end it; where an agent launches drivers, see "
        "that one runs. Then retry the task",
    )


def _words(seconds: float) -> str:
    return format_duration(timedelta(seconds=int(seconds)))
