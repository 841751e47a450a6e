"""Waiting for a job: one loop, which ends with an error when the driver dies or the job ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from tidegate.errors import (
    CommandRefusedError,
    DriverLostError,
    JobFailedError,
    TidegateError,
    WaitTimeoutError,
    exit_code_of,
)
from tidegate.jobs.records import Launch
from tidegate.jobs.status import JobStatus, JobView
from tidegate.jobs.status_text import waiting_text

T = TypeVar("T")


@dataclass(slots=True)
class HeartbeatObserver:
    """Detects a dead driver by its heartbeat counter, which must advance. It never compares clocks of two machines.

    Attributes:
        silence_s: how long the counter may stay unchanged, in seconds.
        monotonic: returns seconds of this process's monotonic clock.
    """

    silence_s: float
    monotonic: Callable[[], float]
    _seen: tuple[int | None, int | None, int] | None = None
    _since: float = 0.0

    def advanced(self, view: JobView) -> bool:
        """Return whether counter, generation or log have changed since the last call; False at the first call."""
        seen = (view.hint_generation, view.heartbeat, view.last_decision)
        if seen == self._seen:
            return False
        first = self._seen is None
        self._seen, self._since = seen, self.monotonic()
        return not first

    def interrupt(self) -> None:
        """Start again, because the job could not be read: in an outage of the store, a living driver cannot write."""
        self._seen = None

    def silent_s(self, view: JobView) -> float:
        """Observe the view, and return for how many seconds nothing has changed."""
        self.advanced(view)
        return self.monotonic() - self._since

    def is_silent(self, view: JobView) -> bool:
        """Observe the view, and return whether an active driver has shown no sign of life for too long."""
        return self.silent_s(view) >= self.silence_s and view.is_active


@dataclass(frozen=True, slots=True)
class JobWaiter:
    """Waits for a change of a job. The functions connect it to the job directory and this process.

    Attributes:
        look: returns the current view of the job.
        dead_here: returns a launch on this machine whose process has ended; None: the driver is not known to be dead.
        watch: observes drivers on other machines.
        tail: returns the last lines of a launch's output.
        sleep: pauses for a number of seconds.
        monotonic: returns seconds of the monotonic clock.
    """

    look: Callable[[], JobView]
    dead_here: Callable[[], Launch | None]
    watch: HeartbeatObserver
    tail: Callable[[Launch], str]
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]

    def until(
        self,
        check: Callable[[JobView], T | None],
        *,
        spec: int,
        what: str,
        timeout: timedelta | None,
        poll_s: float,
        end_grace_s: float = 0.0,
        on_poll: Callable[[JobView], None] | None = None,
    ) -> T:
        """Read the job every `poll_s` seconds until `check` returns something other than None, and return that.

        Args:
            check: called with every view.
            spec: submission concerned.
            what: name of the expected change, for errors.
            timeout: None: as long as the driver lives.
            end_grace_s: how long to continue after the job has ended, in seconds.
            on_poll: called with every view, before `check`.

        Raises:
            WaitTimeoutError: the timeout has passed.
            JobFailedError: the job failed; the error has the root cause.
            DriverLostError: the driver died or stopped responding.
            CommandRefusedError: the job ended in another way, or a newer submission replaced it.
        """
        began = self.monotonic()
        ended_at: float | None = None
        dead_before: Launch | None = None
        while True:
            view = self.look()
            if on_poll is not None:
                on_poll(view)
            answer = check(view)
            if answer is not None:
                return answer
            now = self.monotonic()
            if view.is_terminal or view.spec_number != spec:
                ended_at = now if ended_at is None else ended_at
                if now - ended_at >= end_grace_s:
                    raise ended_error(view, spec, what)
            else:
                dead = self.dead_here()
                # twice in a row: between the two reads the process may have written its last entries and ended
                if dead is not None and dead == dead_before:
                    raise driver_lost_error(view, "its process has ended", self.tail(dead))
                dead_before = dead
                if self.watch.is_silent(view):
                    raise driver_lost_error(view, f"no heartbeat for {self.watch.silence_s:g} s", "")
            if timeout is not None and now - began >= timeout.total_seconds():
                raise WaitTimeoutError(
                    f"{what} did not arrive within {timeout.total_seconds():g} s",
                    where=f"job {view.job_id}",
                    cause=f"the job is {view.status}{_slots_text(view)}",
                    remedy="Only the wait has ended: the job continues. Wait again, or see `tidegate status` and "
                    "`tidegate logs`",
                )
            self.sleep(poll_s)


def failure_error(view: JobView) -> JobFailedError:
    """Return the error with the root cause of a failed job, with operator, subtask and the user's traceback."""
    failure = view.failure
    if failure is None:
        return JobFailedError(
            view.reason or "the job failed", where=f"job {view.job_id}", remedy="Read the error in `tidegate logs`"
        )
    where = [f"job {view.job_id}"]
    if failure.operator is not None:
        where.append(f"operator {failure.operator}")
    if failure.subtask is not None:
        where.append(f"subtask {failure.subtask}")
    trace = f"\n{failure.traceback.rstrip()}\n" if failure.traceback else ""
    error = JobFailedError(failure.message, where=", ".join(where), cause=trace)
    exit_code = exit_code_of(failure.code)
    if exit_code is not None:
        error.code, error.exit_code = failure.code, exit_code
    return error


def ended_error(view: JobView, spec: int, what: str) -> TidegateError:
    """Return the error of a wait for something that can no longer happen."""
    if view.spec_number != spec:
        return CommandRefusedError(
            f"submission {spec} has ended, so {what} will not arrive",
            where=f"job {view.job_id}",
            cause=f"the newer submission {view.spec_number} has replaced it",
            remedy=f"Wait for submission {view.spec_number} instead",
        )
    if view.status is JobStatus.FAILED:
        return failure_error(view)
    return CommandRefusedError(
        f"the job is {view.status}, so {what} will not arrive",
        where=f"job {view.job_id}",
        cause=view.reason,
        remedy="Restore the job to resume it, or start it again",
    )


def driver_lost_error(view: JobView, cause: str, tail: str) -> DriverLostError:
    """Return the error for a driver that has died."""
    point = view.latest_recovery_point
    return DriverLostError(
        "the driver is lost",
        where=f"job {view.job_id}, submission {view.spec_number}",
        cause=f"{cause}; its last output:\n{tail}\n" if tail else cause,
        remedy=f"Restore the job from its latest recovery point, {point.path}"
        if point is not None
        else "Start the job again: it has completed no checkpoint",
    )


def _slots_text(view: JobView) -> str:
    words = waiting_text(view)
    return f", {words}" if words else ""
