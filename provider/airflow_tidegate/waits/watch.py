"""Checks a `Wait` repeatedly, with a deadline, and detects a dead driver.

`WaitRunner.poll` checks once; it blocks only on the store. `run` sleeps between checks in a worker. In the triggerer,
`shared_reader` reads the job, once for all waits on it, and a `WaitEvaluator` per wait evaluates each read. Liveness is
judged by changes of the heartbeat counter that this observer sees and, if the driver was launched on this host, by
its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from airflow_tidegate.waits.job_reader import JobObservation, JobReader
from airflow_tidegate.waits.job_waits import Payload, Wait
from airflow_tidegate.waits.ownership import OwnerRenewal
from tidegate.errors import DriverLostError, WaitTimeoutError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.waiter import HeartbeatObserver, driver_lost_error
from tidegate.jobs.launch.lost_driver import lost_driver_report
from tidegate.jobs.launches import may_be_queued
from tidegate.jobs.options import JobOptions
from tidegate.jobs.process_output import output_tail
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.status import JobStatus, JobView
from tidegate.jobs.status_text import waiting_text

LAUNCH_GRACE_S = 180.0
"""How long a launched driver may take before its first message, seconds. It must start Python and read the store."""


class WaitEvaluator:
    """Evaluates one wait on each read of the job: the condition holds, not yet, or never. Blocks on the store only if
    the wait does. Not thread-safe; one call at a time.

    Args:
        wait: the wait.
        deadline_at: wall-clock seconds since the epoch at which the wait fails; None: no deadline. Wall clock, because
            a worker passes it to a triggerer.
        timeout_s: length of the whole wait, for messages.
        now: wall clock.
        monotonic: clock for liveness.
    """

    def __init__(
        self,
        wait: Wait,
        *,
        deadline_at: float | None,
        timeout_s: float,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wait, self.deadline_at, self._timeout_s = wait, deadline_at, timeout_s
        self._now, self._monotonic = now, monotonic
        self._death: Launch | None = None
        self._observed: tuple[int, HeartbeatObserver] | None = None
        self._owning = OwnerRenewal.of(wait, monotonic)

    def evaluate(self, client: JobClient, observed: JobObservation) -> Payload | None:
        """Return the result of the wait, or None: not yet.

        Raises what the wait raises, WaitTimeoutError after the deadline, and DriverLostError if the driver is dead.
        """
        if self._owning is not None:
            self._owning.renew(client, observed.spec)
        view = observed.view
        found = self.wait.check(client, view)
        if found is not None:
            return found
        if self.deadline_at is not None and self._now() >= self.deadline_at:
            raise WaitTimeoutError(
                f"the task waited {self._timeout_s:g} s for {self.wait.what}, without success",
                where=f"job {view.job_id}",
                cause=f"the job is {view.status.value}{_slots(view)}",
                remedy="Check the job's status and log, or raise the timeout of the task",
            )
        if not view.is_terminal and self.wait.needs_driver:
            self._notice_lost_driver(client, observed)
        return None

    def _notice_lost_driver(self, client: JobClient, observed: JobObservation) -> None:
        view, death, heartbeat = observed.view, observed.death, self._observing(observed)
        if death is not None and death == self._death:
            raise driver_lost_error(
                view, f"the driver's process {death.pid} on {death.host} does not exist any more", output_tail(death)
            )
        # A process that is seen dead for the first time may have written its last entries after this read.
        self._death = death
        silent_s = heartbeat.silent_s(view)
        if heartbeat.is_silent(view):
            raise _lost(client, view, observed.spec, f"the driver wrote no heartbeat for {silent_s:.3g} s")
        is_late = view.status is JobStatus.CREATED and silent_s >= LAUNCH_GRACE_S
        if is_late and not may_be_queued(client.store, client.layout, observed.spec.number):
            raise _lost(client, view, observed.spec, f"the driver has not started within {silent_s:.3g} s")

    def _observing(self, observed: JobObservation) -> HeartbeatObserver:
        number = observed.view.spec_number
        if self._observed is None or self._observed[0] != number:
            silence_s = observed.options.heartbeat_timeout.total_seconds()
            self._observed = (number, HeartbeatObserver(silence_s, self._monotonic))
        return self._observed[1]


class WaitRunner:
    """Runs one wait with a reader of its own. Not thread-safe; one call of `poll` at a time.

    Arguments besides `client`, the job's client: see `WaitEvaluator`.
    """

    def __init__(
        self,
        client: JobClient,
        wait: Wait,
        *,
        deadline_at: float | None,
        timeout_s: float,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client, self.wait, self.deadline_at = client, wait, deadline_at
        self._reader = JobReader(client)
        self._judge = WaitEvaluator(wait, deadline_at=deadline_at, timeout_s=timeout_s, now=now, monotonic=monotonic)

    def poll(self) -> Payload | None:
        """Check once. Raises what `WaitEvaluator.evaluate` raises."""
        return self._judge.evaluate(self.client, self._reader.read())

    def run(self, poll_s: float, sleep: Callable[[float], None]) -> Payload:
        """Check until the condition holds, and sleep `poll_s` seconds between checks."""
        while (found := self.poll()) is None:
            sleep(poll_s)
        return found

    def check_liveness_now(self) -> None:
        """Check within this call whether the driver lives, for callers that keep nothing between checks.

        Takes several heartbeats if the driver is dead. Raises DriverLostError. Does nothing for a wait that needs no
        driver.
        """
        if not self.wait.needs_driver:
            return
        view = self.client.view()
        if view.is_active and not self.client.is_alive():
            raise _lost(self.client, view, self.client.spec(view.spec_number), "the driver's heartbeat does not change")


def _lost(client: JobClient, view: JobView, spec: Spec, cause: str) -> DriverLostError:
    """Return the error, with the place of the launch, and the driver's last output if it can be read from here."""
    place, tail = lost_driver_report(client, spec)
    return driver_lost_error(view, f"{cause}; {place}", tail)


def read_within_s(options: JobOptions) -> float:
    """Return the time within which a job must be read more than once, seconds. After it, the driver counts as dead, or
    the driver counts its owner as lost."""
    owned = options.on_owner_lost != "keep_running"
    limits = [options.heartbeat_timeout, *([options.owner_timeout] if owned else [])]
    return min(limit.total_seconds() for limit in limits)


def deadline(timeout: timedelta | None, now: Callable[[], float] = time.time) -> float | None:
    """Return the wall-clock time at which a wait of `timeout` that starts now ends, seconds since the epoch."""
    return None if timeout is None else now() + timeout.total_seconds()


def _slots(view: JobView) -> str:
    """Return how many slots a job that waits for slots has."""
    words = waiting_text(view)
    return f", {words}" if words else ""
