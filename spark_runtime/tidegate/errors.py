"""Every error a user of tidegate can meet, each with the place, the likely cause and the next action.

An error that is the user's to mend is a `TidegateError`; anything else that escapes is a bug of ours and says so by
not being one. The exit code of the command line is a property of the error's class.
"""

from __future__ import annotations


class TidegateError(Exception):
    """What happened, where, why, and what to do next.

    Args:
        what: one sentence, no full stop.
        where: job, checkpoint, operator uid, subtask or path concerned.
        cause: the likely cause.
        remedy: the next action, in the imperative.
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


class OptionError(TidegateError):
    """A wrong option name or value; names the nearest right one."""

    exit_code = 2
    code = "option"


class PipelineError(TidegateError):
    """The user's pipeline cannot be built or planned: missing column, wrong type, duplicate uid, missing file."""

    exit_code = 3
    code = "pipeline"


class JobExistsError(TidegateError):
    """A running job has this id."""

    exit_code = 4
    code = "job_exists"


class JobNotFoundError(TidegateError):
    """No job of this id under this root."""

    exit_code = 5
    code = "job_not_found"


class JobFailedError(TidegateError):
    """The job failed; the message is its root cause."""

    exit_code = 6
    code = "job_failed"


class DriverLostError(JobFailedError):
    """The job's driver died or fell silent; what it had made durable can be restored."""

    code = "driver_lost"


class CommandRefusedError(TidegateError):
    """The driver answered a command with a refusal."""

    exit_code = 7
    code = "refused"


class WaitTimeoutError(TidegateError):
    """What was waited for did not come in time; nothing was undone."""

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
    """The job directory's store misbehaves or lacks what the contract needs."""

    exit_code = 11
    code = "store"


class EnvironmentProblemError(TidegateError):
    """Java, Python or a package is missing or of the wrong version."""

    exit_code = 12
    code = "environment"


class MissingExtraError(EnvironmentProblemError, ImportError):
    """An extra of the distribution is not installed. An ImportError too, so that `try: import` works as usual."""


class FencedError(TidegateError):
    """A newer generation reigns over this job; this process must stop and touch nothing more."""

    exit_code = 13
    code = "fenced"


class DataError(TidegateError):
    """Rows that an operator or sink cannot process; the same rows fail in the same way again."""

    exit_code = 6
    code = "data"


class SinkConflictError(TidegateError):
    """A sink finds something at its target that is not what its job left there, or that its job cannot write to."""

    exit_code = 6
    code = "sink_conflict"


class OutageError(TidegateError):
    """A service outside did not do what was requested of it; a later attempt may succeed."""

    exit_code = 6
    code = "outage"


def exit_code_of(code: str) -> int | None:
    """Exit code of the error class with this `code`; None when there is no such class."""
    waiting = [TidegateError]
    while waiting:
        kind = waiting.pop()
        if kind.code == code:
            return kind.exit_code
        waiting += kind.__subclasses__()
    return None


class AlreadyExistsError(StoreError):
    """Create-only found an object there already."""

    code = "exists"


class NotFoundError(StoreError):
    """No object at this path."""

    code = "not_found"


class RecordError(StoreError):
    """A durable record cannot be read: damaged, of a newer version, or contradicting another."""

    code = "record"


class UnclearAnswerError(StoreError):
    """The store left open whether an entry of the decision log was written; the reign that wanted it is over."""

    exit_code = 14
    code = "unclear_answer"
