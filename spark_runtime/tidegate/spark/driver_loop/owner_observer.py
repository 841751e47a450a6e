"""Observation of the job's owner by the driver, around `OwnerWatch`.

It reads `owner.json`, and sends the job the command that `on_owner_lost` requires.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from tidegate.clock import steady_clock
from tidegate.coordinator.supervision.owner_watch import OwnerEvent, OwnerRead, OwnerUnreadable, OwnerWatch
from tidegate.errors import NotFoundError, TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Owner, read_record
from tidegate.log_format import context
from tidegate.units import format_duration

logger = logging.getLogger("tidegate.spark")

POLLS_PER_TIMEOUT = 10
"""Polls of the owner within `owner_timeout`."""
MIN_PAUSE_S, MOST_PAUSE_S = 0.25, 30.0
"""Bounds, in seconds, of the pause between two polls."""


class OwnerObserver:
    """Polls the owner on a thread of its own within the context; does nothing with `on_owner_lost="keep_running"`."""

    def __init__(
        self,
        client: JobClient,
        spec: int,
        options: JobOptions,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create without a running thread. Args: client: client of the job, for this thread alone. spec: the driver's
        submission.
        """
        self._client, self._spec, self._timeout = client, spec, options.owner_timeout
        self._policy = options.on_owner_lost
        self._watch = OwnerWatch(spec, options.on_owner_lost, self._timeout // timedelta(milliseconds=1))
        self._now_ms = now_ms if now_ms is not None else steady_clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="owner", daemon=True)

    def __enter__(self) -> OwnerObserver:
        """Start polling."""
        if self._policy != "keep_running":
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop polling."""
        self._over.set()
        # A thread that was never started cannot be joined.
        if self._thread.ident is not None:
            self._thread.join(5.0)

    @property
    def pause_s(self) -> float:
        """Return the seconds between two polls."""
        return min(MOST_PAUSE_S, max(MIN_PAUSE_S, self._timeout.total_seconds() / POLLS_PER_TIMEOUT))

    def poll(self) -> None:
        """Poll once. A command that the store does not accept is sent again after the owner has been silent for as long
        again.
        """
        asked = self._watch.handle(self._event(), self._now_ms())
        if asked is None:
            return
        why = f"the Airflow run that owns the job has shown no sign of life for {format_duration(self._timeout)}"
        place = context(command=asked.command_id)
        logger.warning(
            "%s; the driver sends itself the command %s, attempt %d (on_owner_lost=%s)",
            why,
            asked.verb,
            asked.attempt,
            self._policy,
            extra=place,
        )
        try:
            # A command that has an answer is never executed again (S9.4), so the next attempt needs a new id.
            while self._client.result(asked.command_id) is not None:
                asked = self._watch.request_end()
            self._client.send(
                asked.verb,
                asked.arguments,
                command_id=asked.command_id,
                spec=self._spec,
                issued_by=f"on_owner_lost={self._policy}: {why}",
            )
        except TidegateError as error:
            logger.warning("the command %s could not be sent; it is tried again: %s", asked.verb, error, extra=place)

    def _event(self) -> OwnerEvent:
        path = self._client.layout.owner
        try:
            owner = read_record(self._client.store, path, Owner)
        except NotFoundError:
            return OwnerRead(None)
        except TidegateError as error:
            logger.warning(
                "the sign of life of the Airflow run that owns the job could not be read; it is read again: %s", error
            )
            return OwnerUnreadable()
        return OwnerRead(owner.mark if owner.spec == self._spec else None)

    def _work(self) -> None:
        while not self._over.wait(self.pause_s):
            self.poll()
