"""Reads one job repeatedly, with few requests.

Submissions and entries of the decision log never change, so they are read once. A read of a living job costs three
requests to the store. If the driver gives no sign of life, it costs `LIVENESS_REQUESTS` more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.snapshot_presence import with_latest_checked
from tidegate.jobs.launches import local_driver_death
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.status import JobStatus, JobView

REQUESTS_PER_READ = 3
"""Requests of one read without news: the next submission, the next entry of the log, the status hint. A new entry costs
one more request, once."""
LIVENESS_REQUESTS = 2
"""Additional requests at the first read, and while the driver gives no sign of life: list of launches, newest
launch."""


SILENT_INTERVALS = 3
"""Heartbeat intervals without a sign of life after which a read checks whether the driver's process exists."""


@dataclass(frozen=True, slots=True)
class JobObservation:
    """A job at one moment.

    Attributes:
        view: the job.
        spec: its current submission.
        options: of that submission.
        death: the launch on this host whose process is dead. None: not known to be dead.
        moved: log or submissions have grown since this reader's last read, or the driver is suspiciously silent: read
            again soon.
    """

    view: JobView
    spec: Spec
    options: JobOptions
    death: Launch | None
    moved: bool


class JobReader:
    """Reads one job. Blocks on the store; not thread-safe, but several threads may use it one after the other.

    Args:
        client: the job's client, used by this reader only.
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
        """Read the job. Raises JobNotFoundError and StoreError."""
        view = self.client.view()
        if view.latest_recovery_point is not None and view.latest_recovery_point.readable_until is not None:
            # Only for such a snapshot, because the request costs as much as the read of a hint.
            view = with_latest_checked(self.client, view)
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
        # Also at the first read: a caller with a new reader for each read has no second one.
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
