"""Waiting for a job: one loop that notices the driver's death and the job's end instead of hanging."""

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
    """Judges a driver by whether its counter advances between two looks, never by comparing clocks.

    Attributes:
        silence_s: how long the counter may stand still, seconds.
        monotonic: seconds, for this observer alone.
    """

    silence_s: float
    monotonic: Callable[[], float]
    _seen: tuple[int | None, int | None, int] | None = None
    _since: float = 0.0

    def advanced(self, view: JobView) -> bool:
        """Whether counter, reign or log have moved since the last look; False at the first."""
        seen = (view.hint_generation, view.heartbeat, view.last_decision)
        if seen == self._seen:
            return False
        first = self._seen is None
        self._seen, self._since = seen, self.monotonic()
        return not first

    def silent_s(self, view: JobView) -> float:
        """Take a look; for how long nothing has moved, seconds."""
        self.advanced(view)
        return self.monotonic() - self._since

    def is_silent(self, view: JobView) -> bool:
        """Take a look; whether a driver that has begun shows no sign of life for longer than it may."""
        return self.silent_s(view) >= self.silence_s and view.is_active


@dataclass(frozen=True, slots=True)
class JobWaiter:
    """What a wait needs of its surroundings.

    Attributes:
        look: the job now.
        dead_here: a launch of this machine whose process is gone; None: not known to be dead.
        watch: for drivers elsewhere.
        tail: last lines of a launch's output.
        sleep: pause, seconds.
        monotonic: seconds.
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
        """Look every `poll_s` seconds until `check` gives something.

        Args:
            check: asked after each look; what is not None ends the wait.
            spec: submission waited for.
            what: what is waited for, for errors.
            timeout: None: as long as the driver lives.
            end_grace_s: how long `check` is still asked after the job has ended, seconds.
            on_poll: told of every look.

        Raises:
            WaitTimeoutError: it did not come in time.
            JobFailedError: the job failed; root cause.
            DriverLostError: the driver died or fell silent.
            CommandRefusedError: the job ended otherwise, or a newer submission took over.
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
                if dead is not None and dead == dead_before:
                    raise driver_lost_error(view, "its process is gone", self.tail(dead))
                dead_before = dead
                if self.watch.is_silent(view):
                    raise driver_lost_error(view, f"no heartbeat for {self.watch.silence_s:g} s", "")
            if timeout is not None and now - began >= timeout.total_seconds():
                raise WaitTimeoutError(
                    f"{what} did not come within {timeout.total_seconds():g} s",
                    where=f"job {view.job_id}",
                    cause=f"the job is {view.status}{_slots_text(view)}",
                    remedy="Nothing was undone; wait again, or look at `tidegate status` and `tidegate logs`",
                )
            self.sleep(poll_s)


def failure_error(view: JobView) -> JobFailedError:
    """The root cause of a failed job, with operator, subtask and the user's traceback."""
    failure = view.failure
    if failure is None:
        return JobFailedError(
            view.reason or "the job failed", where=f"job {view.job_id}", remedy="Read `tidegate logs`"
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
    """The error of a wait for something that can no longer come."""
    if view.spec_number != spec:
        return CommandRefusedError(
            f"submission {spec} is over; {what} will not come",
            where=f"job {view.job_id}",
            cause=f"submission {view.spec_number} took over",
            remedy="Look at the newer submission",
        )
    if view.status is JobStatus.FAILED:
        return failure_error(view)
    return CommandRefusedError(
        f"the job is {view.status}; {what} will not come",
        where=f"job {view.job_id}",
        cause=view.reason,
        remedy="Restore it or start it anew to go on",
    )


def driver_lost_error(view: JobView, cause: str, tail: str) -> DriverLostError:
    """The error for a driver that is no more."""
    point = view.latest_recovery_point
    return DriverLostError(
        "the driver is lost",
        where=f"job {view.job_id}, submission {view.spec_number}",
        cause=f"{cause}; its last output:\n{tail}\n" if tail else cause,
        remedy=f"Restore from the latest recovery point, {point.path}"
        if point is not None
        else "Start it anew: it had completed no checkpoint",
    )


def _slots_text(view: JobView) -> str:
    words = waiting_text(view)
    return f", {words}" if words else ""
