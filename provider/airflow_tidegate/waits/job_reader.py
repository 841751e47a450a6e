"""Looking at one job again and again, at little cost.

What does not change is read once: submissions, and the entries of the decision log. A look at a living job costs three
requests to the store; one at a job whose driver gives no sign of life costs `LIVENESS_REQUESTS` more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launches import local_driver_death
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.status import JobStatus, JobView

REQUESTS_PER_READ = 3
"""Requests of one look when nothing is new: the next submission, the next entry of the log, the status hint. An entry
that is there costs one more, once."""
LIVENESS_REQUESTS = 2
"""Requests more at the first look, and while the driver gives no sign of life: the list of launches, and the newest."""


SILENT_INTERVALS = 3
"""Heartbeat intervals without a sign of life after which a look asks whether the driver's process is there."""


@dataclass(frozen=True, slots=True)
class JobObservation:
    """A job at one moment.

    Attributes:
        view: the job.
        spec: its current submission.
        options: of that.
        death: the launch of this host whose process is gone: a certain death. None: not known to be dead.
        moved: log or submissions have grown since this reader's look before, or the driver is suspiciously silent: the
            next look is worth taking soon.
    """

    view: JobView
    spec: Spec
    options: JobOptions
    death: Launch | None
    moved: bool


class JobReader:
    """Looks at one job. Blocks on the store; not thread-safe, but may be used by one thread after another.

    Args:
        client: the job's client; this reader's alone.
        monotonic: seconds.
    """

    def __init__(self, client: JobClient, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self._monotonic = monotonic
        self._durable: tuple[int, int] | None = None
        self._beat: tuple[int | None, int | None] | None = None
        self._beaten_at = 0.0
        self._suspected = True
        self._submission: tuple[Spec, JobOptions] | None = None

    def read(self) -> JobObservation:
        """The job now. Raises JobNotFoundError and StoreError."""
        view = self.client.view()
        spec, options = self._submitted(view.spec_number)
        durable, beat = (view.spec_number, view.last_decision), (view.hint_generation, view.heartbeat)
        grown = durable != self._durable
        if beat != self._beat:
            self._beaten_at = self._monotonic()
        self._durable, self._beat = durable, beat
        if view.is_terminal:
            return JobObservation(view, spec, options, None, grown)
        silent_s = self._monotonic() - self._beaten_at
        silent = silent_s >= SILENT_INTERVALS * options.heartbeat_interval.total_seconds() and view.is_active
        # At the first look, too: one that looks now and then, each time with a reader of its own, has no other.
        death = (
            local_driver_death(self.client.store, self.client.layout, spec.number)
            if silent or self._suspected
            else None
        )
        self._suspected = death is not None or view.status is JobStatus.CREATED
        return JobObservation(view, spec, options, death, grown or silent or death is not None)

    def _submitted(self, number: int) -> tuple[Spec, JobOptions]:
        if self._submission is None or self._submission[0].number != number:
            spec = self.client.spec(number)
            self._submission = (spec, JobOptions.from_mapping(spec.options))
        return self._submission
