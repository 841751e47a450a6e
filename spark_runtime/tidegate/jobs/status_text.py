"""Text about a job's status that the CLI, Airflow's logs and the page in Airflow share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tidegate.jobs.history.submissions import LogEntry
from tidegate.jobs.status import FailureView, JobStatus, JobView

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
IN_THIS_RUN = "in this run"
"""Period of record and operator counts. Each run starts them at 0, so they are lower after a restart."""
OF_ALL_RUNS = "since the job's first start"
"""Period of a source's counters, which are part of its snapshots."""


def slots_available(view: JobView) -> int | None:
    """Return how many of the needed slots are available; None: unknown. Spark may offer more slots than needed."""
    if view.slots_needed is None:
        return view.slots_registered
    return min(view.slots_registered or 0, view.slots_needed)


def waiting_text(view: JobView) -> str:
    """Return the progress of a job that waits for slots, "1 of 2 slots"; "" for any other job."""
    if view.status is not JobStatus.WAITING_FOR_SLOTS or view.slots_needed is None:
        return ""
    return f"{slots_available(view)} of {view.slots_needed} slots"


def records_read(view: JobView) -> int | None:
    """Return the number of records that all sources have read in this run; None: it is not counted."""
    counted = [source.records for source in view.sources if source.records is not None]
    return sum(counted) if counted or not view.sources else None


def records_text(records: int) -> str:
    """Return a number of records as text."""
    return f"{records:,} records {IN_THIS_RUN}"


def counters_period(uid: str, view: JobView) -> str:
    """Return the period that the counters of an operator or source cover. A source's counters are part of snapshots,
    and continue after a restart and a restore."""
    return OF_ALL_RUNS if any(source.uid == uid for source in view.sources) else IN_THIS_RUN


def deletions_words(view: JobView) -> str:
    """Return why no checkpoint starts while the store deletes retired ones too slowly (S2.3); "" when they start."""
    if not view.waits_for_deletions:
        return ""
    return (
        f"no new checkpoint starts: the store has not deleted {view.waits_for_deletions} retired checkpoints yet. See "
        "the driver's log, and increase checkpoint_interval if the store stays this slow"
    )


def refusal_text(view: JobView) -> str:
    """Return why the newest submission was refused, if that left an ended job as it was; else ""."""
    if view.before_refusal is None:
        return ""
    why = view.failure.message if view.failure is not None else view.reason
    verb = "was cancelled before it ran" if view.status is JobStatus.CANCELED else "was refused"
    return f"submission {view.spec_number} {verb}, and changed nothing" + (f": {why}" if why else "")


def failure_text(failure: FailureView, status: JobStatus) -> str:
    """Return a heading for a failure. A job has recovered only if it has run again since."""
    if failure.recovered:
        return "last failure, since recovered"
    if status is JobStatus.FAILED:
        return "failure"
    return "last failure" if status.is_terminal else "last failure, not recovered from yet"


def was_restored(entries: Sequence[LogEntry], spec_number: int) -> bool:
    """Return whether a run of the submission started from a snapshot. A requested restore may not have happened."""
    return any(e.spec == spec_number and e.kind == "status" and e.data.get("restored_from") for e in entries)


def event_time_text(time_us: int | None) -> str | None:
    """Microseconds since the epoch as ISO 8601 in UTC; None stays None."""
    if time_us is None:
        return None
    try:
        moment = EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        # A watermark may be any int64. The largest ones are beyond year 9999, the end of `datetime`.
        return f"{time_us} us"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
