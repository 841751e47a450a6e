"""The words for a job's status that the CLI, Airflow's logs and the page in Airflow have in common. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tidegate.jobs.history.submissions import LogEntry
from tidegate.jobs.status import FailureView, JobStatus, JobView

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
IN_THIS_RUN = "in this run"
"""Counts of records and of operators begin anew with each run: after a restart they are lower than before."""
OF_ALL_RUNS = "since the job's first start"


def slots_available(view: JobView) -> int | None:
    """Of the slots that the job needs, those that are there; None: not known. Spark may offer more than are needed."""
    if view.slots_needed is None:
        return view.slots_registered
    return min(view.slots_registered or 0, view.slots_needed)


def waiting_text(view: JobView) -> str:
    """How far a job that waits for slots is, "1 of 2 slots"; "" for any other."""
    if view.status is not JobStatus.WAITING_FOR_SLOTS or view.slots_needed is None:
        return ""
    return f"{slots_available(view)} of {view.slots_needed} slots"


def records_read(view: JobView) -> int | None:
    """How much all sources have read in this run; None: nobody counts."""
    counted = [source.records for source in view.sources if source.records is not None]
    return sum(counted) if counted or not view.sources else None


def records_text(records: int) -> str:
    """How much a source has read."""
    return f"{records:,} records {IN_THIS_RUN}"


def counters_period(uid: str, view: JobView) -> str:
    """What the counters of an operator or a source cover. Those of a source are part of its position in snapshots, so
    they go on after a restart and a restore."""
    return OF_ALL_RUNS if any(source.uid == uid for source in view.sources) else IN_THIS_RUN


def deletions_words(view: JobView) -> str:
    """Why no new checkpoint starts while the store deletes retired ones too slowly (S2.3); "" when they start."""
    if not view.waits_for_deletions:
        return ""
    return (
        f"no new checkpoint starts: the store has not deleted {view.waits_for_deletions} retired checkpoints yet; see "
        "the driver's log, and lengthen checkpoint_interval if the store stays this slow"
    )


def failure_text(failure: FailureView, status: JobStatus) -> str:
    """What has come of a failure: only a job that has run since has recovered from it."""
    if failure.recovered:
        return "last failure, since recovered"
    if status is JobStatus.FAILED:
        return "failure"
    return "last failure" if status.is_terminal else "last failure, not recovered from yet"


def was_restored(entries: Sequence[LogEntry], spec_number: int) -> bool:
    """Whether some run of a submission began from a snapshot: what a submission asks for may not have happened."""
    return any(e.spec == spec_number and e.kind == "status" and e.data.get("restored_from") for e in entries)


def event_time_text(time_us: int | None) -> str | None:
    """Microseconds since the epoch as ISO 8601 in UTC; None stays None."""
    if time_us is None:
        return None
    try:
        moment = EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return f"{time_us} us"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
