"""Errors that tidegate raises for its users, each with the place, the likely cause and the next action.

A `TidegateError` is an error that the user can fix. Any other exception that reaches the user is a bug in tidegate. The
exit code of the command line is an attribute of the error's class.
"""

from __future__ import annotations


class TidegateError(Exception):
    """An error with four parts: what failed, where, why, and the next action.

    Args:
        what: what failed, as one sentence without a full stop.
        where: the job, checkpoint, operator uid, subtask or path concerned; may be empty.
        cause: the likely cause; may be empty.
        remedy: the next action, in the imperative; may be empty.
    """

    exit_code = 1
    code = "error"

    def __init__(self, what: str, *, where: str = "", cause: str = "", remedy: str = "") -> None:
        self.what, self.where, self.cause, self.remedy = what, where, cause, remedy
        text = what if not where else f"{what} [{where}]"
        if cause:
            text += f": {cause}"
        if remedy:
            text += f"{' ' if text.endswith(('.', '?', '!')) else '. '}{remedy}"
        super().__init__(text)

    @property
    def what_and_why(self) -> str:
        """Return what failed and why, for a text that names the place and the next action itself."""
        return f"{self.what}: {self.cause}" if self.cause else self.what


class OptionError(TidegateError):
    """An option has an unknown name or a wrong value. The message names the nearest valid one."""

    exit_code = 2
    code = "option"


class PipelineError(TidegateError):
    """The user's pipeline cannot be built or planned: missing column, wrong type, duplicate uid, missing file."""

    exit_code = 3
    code = "pipeline"


class JobExistsError(TidegateError):
    """A job with this id exists, and the request conflicts with it or would lose its state."""

    exit_code = 4
    code = "job_exists"


class JobNotFoundError(TidegateError):
    """There is no job with this id under this root."""

    exit_code = 5
    code = "job_not_found"


class JobFailedError(TidegateError):
    """The job failed; the message is its root cause."""

    exit_code = 6
    code = "job_failed"


class DriverLostError(JobFailedError):
    """The job's driver died or stopped responding. The job can be restored from its durable snapshots."""

    code = "driver_lost"


class CommandRefusedError(TidegateError):
    """The driver answered a command with a refusal."""

    exit_code = 7
    code = "refused"


class WaitTimeoutError(TidegateError):
    """The expected change did not happen within the timeout. The wait ends, and the job continues."""

    exit_code = 8
    code = "timeout"


class SlotsUnavailableError(TidegateError):
    """The cluster did not offer as many slots as the job needs."""

    exit_code = 9
    code = "slots"


class SnapshotError(TidegateError):
    """A snapshot is missing, partial, corrupt or does not fit the pipeline."""

    exit_code = 10
    code = "snapshot"


class StoreError(TidegateError):
    """The job directory's store fails, or does not provide an operation that the job directory needs."""

    exit_code = 11
    code = "store"


class EnvironmentProblemError(TidegateError):
    """Java, Python or a package is missing or has a wrong version."""

    exit_code = 12
    code = "environment"


class MissingExtraError(EnvironmentProblemError, ImportError):
    """An extra of the distribution is not installed. Also an ImportError, so that `try: import` handles it as usual."""


class FencedError(TidegateError):
    """A newer generation of this job exists. The process must stop, and must not write anything more."""

    exit_code = 13
    code = "fenced"


class DataError(TidegateError):
    """An operator or sink cannot process some rows. A retry fails with the same rows in the same way."""

    exit_code = 6
    code = "data"


class SinkConflictError(TidegateError):
    """A sink's target holds something that the job did not write, or is a place that the job cannot write to."""

    exit_code = 6
    code = "sink_conflict"


class OutageError(TidegateError):
    """An external service did not carry out a request. A later attempt may succeed."""

    exit_code = 6
    code = "outage"


def exit_code_of(code: str) -> int | None:
    """Return the exit code of the error class with this `code`; None when there is no such class."""
    waiting = [TidegateError]
    while waiting:
        kind = waiting.pop()
        if kind.code == code:
            return kind.exit_code
        waiting += kind.__subclasses__()
    return None


class AlreadyExistsError(StoreError):
    """A create-only write found that the object exists already."""

    code = "exists"


class NotFoundError(StoreError):
    """There is no object at this path."""

    code = "not_found"


class RecordError(StoreError):
    """A durable record cannot be read: it is damaged, has a newer version, or contradicts another record."""

    code = "record"


class SparkLostError(TidegateError):
    """The JVM of the driver has ended. The driver's process ends, too, and a new driver continues the job."""

    exit_code = 15
    code = "spark_lost"


class UnclearAnswerError(StoreError):
    """The store did not report whether it wrote an entry of the decision log. The generation that wrote it ends."""

    exit_code = 14
    code = "unclear_answer"
