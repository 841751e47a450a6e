"""Decides when a supervised job's driver is relaunched, and when a user must act. Pure: no clock, no store.

All memory is in the job directory: launches with their times. So neither a retry nor a restart of worker or triggerer
gives a job a new budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from tidegate.units import format_duration


@dataclass(frozen=True)
class SupervisionLimits:
    """Limits of a supervisor.

    Attributes:
        max_relaunches: within `window`; 0: a dead driver is never relaunched.
        window: period before now.
        no_progress: how long a job may show no progress; None: no limit.
    """

    max_relaunches: int
    window: timedelta
    no_progress: timedelta | None


@dataclass(frozen=True)
class DriverObservation:
    """State of a job and its driver at one moment.

    Attributes:
        now_s: seconds since the epoch.
        is_over: its status is terminal.
        lost: why its driver counts as dead; "": it does not.
        is_starting: its newest launch has reported nothing yet, but still may.
        meant_to_end_by: who requested the end of the job; "": nobody.
        launched_s: when drivers of its submission were launched, seconds since the epoch, oldest first.
        progressed_s: when a checkpoint last completed or a source last read a record, seconds since the epoch.
        waits_for_verdict: its sources pause because checkpoints wait for a verdict (S7.8).
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
    """The next action.

    Attributes:
        action: continue to "watch"; "relaunch" a driver; "end": the job has ended, or its end was requested; "fail": a
            user must act.
        why: text for users; "" for "watch".
        remedy: with "fail".
    """

    action: Literal["watch", "relaunch", "end", "fail"]
    why: str = ""
    remedy: str = ""


WATCH = SupervisionDecision("watch")


def decide_supervision(seen: DriverObservation, limits: SupervisionLimits) -> SupervisionDecision:
    """Apply the rules in order: a job that has ended needs nothing; a dead driver of a job that should run is
    relaunched while the budget lasts; a job that lives without progress needs a user."""
    if seen.is_over:
        return SupervisionDecision("end", "the job has ended")
    if seen.lost:
        return _of_dead_driver(seen, limits)
    stood_s = seen.now_s - seen.progressed_s
    if limits.no_progress is None or stood_s < limits.no_progress.total_seconds():
        return WATCH
    return SupervisionDecision(
        "fail",
        f"no checkpoint has completed and no source has read a record for {_words(stood_s)}",
        "Approve or reject the waiting checkpoints: until then the job reads no records"
        if seen.waits_for_verdict
        else "Check the job's status and log. The job was left running: retry the task to supervise it again",
    )


def _of_dead_driver(seen: DriverObservation, limits: SupervisionLimits) -> SupervisionDecision:
    if seen.is_starting:
        return WATCH
    if seen.meant_to_end_by:
        return SupervisionDecision(
            "end", f"the driver died, and {seen.meant_to_end_by} has requested the end of the job"
        )
    since_s = seen.now_s - limits.window.total_seconds()
    again = [at for at in seen.launched_s[1:] if at > since_s]  # the first one started the job
    if len(again) < limits.max_relaunches:
        return SupervisionDecision("relaunch", seen.lost)
    window, most = format_duration(limits.window), limits.max_relaunches
    return SupervisionDecision(
        "fail",
        f"the driver is dead, and was relaunched {len(again)} times within {window}; at most {most} are allowed",
        "Fix what kills the driver. Then restore the job from its latest snapshot, or retry the task with a larger "
        "max_relaunches",
    )


def decide_unlaunched(now_s: float, last_sign_s: float, limits: SupervisionLimits) -> SupervisionDecision:
    """Decide about a dead driver that was not relaunched, because its process exists or an agent must launch it.

    It may continue or be launched later, but the supervisor does not wait forever.

    Args:
        now_s: seconds since the epoch.
        last_sign_s: last launch, launch request or sign of life, seconds since the epoch.
    """
    silent_s = now_s - last_sign_s
    if limits.no_progress is None or silent_s < limits.no_progress.total_seconds():
        return WATCH
    return SupervisionDecision(
        "fail",
        f"the driver has given no sign of life for {_words(silent_s)}, and no other driver was launched",
        "If the driver's process still exists, find out why it hangs, and end it. If an agent launches drivers, "
        "check that the agent runs. Then retry the task",
    )


def _words(seconds: float) -> str:
    return format_duration(timedelta(seconds=int(seconds)))
