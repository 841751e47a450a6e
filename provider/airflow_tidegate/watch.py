"""Asking a `Wait` again and again, with a deadline, and with an eye on whether anybody is left to bring it about.

`Watch.step` is one look; it blocks on the store and nothing else. `run` sleeps between looks in a worker; the triggers
do the same with asyncio. Liveness is judged by the heartbeat counter as this observer sees it move (design, section 4),
and, where the driver was launched on this host, by its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from airflow_tidegate.waits import Payload, Wait
from tidegate.contract.client import JobClient
from tidegate.contract.errors import WaitTimeoutError
from tidegate.contract.launching import local_death
from tidegate.contract.logs import output_tail
from tidegate.contract.options import JobOptions
from tidegate.contract.records import Launch, Spec
from tidegate.contract.status import JobStatus, JobView
from tidegate.contract.waiting import HeartbeatWatch, lost_error

LAUNCH_GRACE_S = 180.0
"""How long a launched driver may take before it says its first word: starting Python and reading the store, seconds."""


class Watch:
    """One observer's view of one wait. Not thread-safe; `step` is called by one caller at a time.

    Args:
        client: the job's client.
        wait: what is waited for.
        deadline_at: wall-clock seconds since the epoch after which the wait is over; None: never. Wall clock, because
            it is handed from a worker to a triggerer.
        timeout_s: length of the whole wait, for messages.
        now: wall clock.
        monotonic: clock for liveness.
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
        self.client, self.wait = client, wait
        self.deadline_at, self._timeout_s = deadline_at, timeout_s
        self._now, self._monotonic = now, monotonic
        self._death: Launch | None = None
        self._observed: tuple[Spec, HeartbeatWatch] | None = None

    def step(self) -> Payload | None:
        """One look. Raises what the wait raises, WaitTimeoutError after the deadline, and DriverLostError when the
        driver is gone."""
        view = self.client.view()
        found = self.wait.look(self.client, view)
        if found is not None:
            return found
        if self.deadline_at is not None and self._now() >= self.deadline_at:
            raise WaitTimeoutError(
                f"{self.wait.what} did not come within {self._timeout_s:g} s",
                where=f"job {view.job_id}",
                cause=f"the job is {view.status.value}{_slots(view)}",
                remedy="Look at the job's status and log, or raise the timeout",
            )
        if not view.is_terminal:
            self._notice_lost_driver(view)
        return None

    def run(self, poll_s: float, sleep: Callable[[float], None]) -> Payload:
        """Look until found, sleeping `poll_s` seconds between looks."""
        while (found := self.step()) is None:
            sleep(poll_s)
        return found

    def notice_silence_now(self) -> None:
        """Observe the driver within this call, for callers that forget what they saw at their last look. Takes some
        heartbeats when it is dead. Raises DriverLostError."""
        view = self.client.view()
        if view.is_active and not self.client.is_alive():
            raise lost_error(view, "its heartbeat stands still", "")

    # ------------------------------------------------------------ liveness

    def _notice_lost_driver(self, view: JobView) -> None:
        spec, heartbeat = self._observing(view)
        death = local_death(self.client, spec)
        if death is not None and death == self._death:
            raise lost_error(view, f"its process {death.pid} on {death.host} is gone", output_tail(death))
        # A process found gone for the first time may have said its last words after this look's view.
        self._death = death
        if heartbeat.is_silent(view):
            raise lost_error(view, f"no heartbeat for {heartbeat.silence_s:g} s", "")
        if view.status is JobStatus.CREATED and heartbeat.silent_s(view) >= LAUNCH_GRACE_S:
            raise lost_error(view, f"it has not begun within {LAUNCH_GRACE_S:g} s", "")

    def _observing(self, view: JobView) -> tuple[Spec, HeartbeatWatch]:
        if self._observed is None or self._observed[0].number != view.spec_number:
            spec = self.client.spec(view.spec_number)
            silence_s = JobOptions.from_mapping(spec.options).heartbeat_timeout.total_seconds()
            self._observed = (spec, HeartbeatWatch(silence_s, self._monotonic))
        return self._observed


def deadline(timeout: timedelta | None, now: Callable[[], float] = time.time) -> float | None:
    """Wall-clock seconds since the epoch at which a wait of `timeout` that begins now is over."""
    return None if timeout is None else now() + timeout.total_seconds()


def _slots(view: JobView) -> str:
    """How far a job that waits for slots is."""
    if view.status is not JobStatus.WAITING_FOR_SLOTS or view.slots_needed is None:
        return ""
    return f", {view.slots_registered or 0} of {view.slots_needed} slots"
