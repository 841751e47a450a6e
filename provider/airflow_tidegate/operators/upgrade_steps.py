"""Where an upgrade is, derived from the job directory. Pure: no clock, no store.

The submissions that the upgrade makes have ids of their own, the stop and the cancel as well. Whoever looks - the first
try, a retry, a worker resumed by a trigger - finds the same step and does it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.jobs.status import JobStatus


class UpgradeStep(StrEnum):
    """What is to be done next."""

    SUSPEND = "suspend the job"
    START_NEW = "start the new version from the savepoint"
    AWAIT_NEW = "wait for the new version's first checkpoint"
    END_NEW = "end the new version"
    RESUME_NEW = "go on with the new version: it had completed a checkpoint before it was ended"
    RESTORE_OLD = "restore the savepoint with the old version"
    AWAIT_OLD = "wait until the old version runs"
    UPGRADED = "nothing: the job is upgraded"
    ROLLED_BACK = "nothing: the old version runs"
    OVER = "nothing: there is no job to upgrade"
    DRAINED = "nothing: the job was drained"
    TAKEN_OVER = "nothing: another submission took over"


@dataclass(frozen=True)
class UpgradeFacts:
    """The job directory, as far as an upgrade is concerned.

    Attributes:
        newest: number of the newest submission.
        status: its status.
        before: number of the submission that is upgraded.
        new: newest number of the new version's submissions; None: not submitted.
        resumed: `new` is the one that went on with the new version after it had been ended.
        old: number of the submission that goes back to the old version; None: not submitted.
        savepoint: path of what the job was suspended with; "": it is not stopped, or with no savepoint.
        drained: that is of a drain.
        has_checkpoint: the new version has completed a snapshot.
        given_up: its end was asked for; or it has completed none, and its time is up or its driver lost.
        refused: the new version was not taken as a submission.
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


ENDED_WELL = (JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING)
RUNS_OR_RAN = (JobStatus.RUNNING, JobStatus.STOPPING, JobStatus.STOPPED, *ENDED_WELL)


def next_step(facts: UpgradeFacts) -> UpgradeStep:
    """The rules. A version counts as working once it has completed a snapshot: until then it has committed nothing, and
    going back to the savepoint loses and repeats no row (S7.4, S9.3); from then on there is no way back."""
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
