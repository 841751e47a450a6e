"""The next step of an upgrade, derived from the job directory. Pure: no clock, no store.

The submissions, the stop and the cancel of an upgrade have ids of their own. So the first try, a retry, and a worker
that a trigger resumes all find the same step, and it is done once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.jobs.status import JobStatus

ENDED_WELL = (JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING)
RUNS_OR_RAN = (JobStatus.RUNNING, JobStatus.STOPPING, JobStatus.STOPPED, *ENDED_WELL)


class UpgradeStep(StrEnum):
    """The next step."""

    SUSPEND = "suspend the job"
    START_NEW = "start the new version from the savepoint"
    AWAIT_NEW = "wait for the new version's first checkpoint"
    END_NEW = "end the new version"
    RESUME_NEW = "continue with the new version: it had completed a checkpoint before it was ended"
    RESTORE_OLD = "restore the savepoint with the old version"
    AWAIT_OLD = "wait until the old version runs"
    UPGRADED = "done: the job is upgraded"
    ROLLED_BACK = "done: the old version runs"
    OVER = "done: there is no job to upgrade"
    DRAINED = "done: the job was drained"
    TAKEN_OVER = "done: another submission took over"


@dataclass(frozen=True)
class UpgradeFacts:
    """Facts of the job directory about an upgrade.

    Attributes:
        newest: number of the newest submission.
        status: its status.
        before: number of the submission that is upgraded.
        new: newest number of the new version's submissions; None: not submitted.
        resumed: `new` resumed the new version after it had been ended.
        old: number of the submission that restores the old version; None: not submitted.
        savepoint: path of the savepoint with which the job was suspended; "": it was not stopped, or has no savepoint.
        drained: the savepoint was made by a drain.
        has_checkpoint: the new version has completed a snapshot.
        given_up: the end of the new version was requested; or it completed no snapshot, and its time is over or its
            driver is lost.
        refused: the submission of the new version was refused.
    """

    newest: int
    status: JobStatus
    before: int
    new: int | None = None
    resumed: bool = False
    old: int | None = None
    savepoint: str = ""
    drained: bool = False
    has_checkpoint: bool = False
    given_up: bool = False
    refused: bool = False


def next_step(facts: UpgradeFacts) -> UpgradeStep:
    """Return the next step.

    A version counts as working when it has completed a snapshot. Until then it has committed nothing, so restoring the
    savepoint loses and repeats no row (S7.4, S9.3). After that, the old version is no longer restored.
    """
    if facts.newest not in (facts.before, facts.new, facts.old):
        return UpgradeStep.TAKEN_OVER
    if facts.old is not None:
        return UpgradeStep.ROLLED_BACK if facts.status in RUNS_OR_RAN else UpgradeStep.AWAIT_OLD
    if facts.new is not None:
        return _of_new(facts)
    if facts.status is JobStatus.STOPPED and facts.savepoint:
        if facts.drained:
            return UpgradeStep.DRAINED
        return UpgradeStep.RESTORE_OLD if facts.refused else UpgradeStep.START_NEW
    return UpgradeStep.OVER if facts.status.is_terminal else UpgradeStep.SUSPEND


def _of_new(facts: UpgradeFacts) -> UpgradeStep:
    if facts.resumed:
        return UpgradeStep.UPGRADED if facts.status in RUNS_OR_RAN else UpgradeStep.AWAIT_NEW
    if facts.has_checkpoint and not facts.given_up:
        return UpgradeStep.UPGRADED
    if facts.status in ENDED_WELL:
        return UpgradeStep.UPGRADED
    if facts.status.is_terminal:
        return UpgradeStep.RESUME_NEW if facts.has_checkpoint else UpgradeStep.RESTORE_OLD
    return UpgradeStep.END_NEW if facts.given_up else UpgradeStep.AWAIT_NEW
