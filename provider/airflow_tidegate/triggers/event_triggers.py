"""Event triggers for `AssetWatcher`s: DAGs start when a checkpoint completes, the watermark passes an hour, data ends,
or the newest snapshot is about to expire.

Airflow runs such a trigger as long as a DAG is scheduled on its asset. Each event is delivered at least once: the
cursor in the job directory is written `DELIVERY_GRACE_S` later. If a triggerer dies before it has passed on an event,
the event is delivered again, with the same `dedupe_key`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID, TidegateHook
from airflow_tidegate.triggers.event_kinds import (
    CheckpointEvents,
    Cursor,
    EndOfDataEvents,
    JobEvent,
    JobEvents,
    SnapshotExpiringEvents,
    WatermarkEvents,
)
from airflow_tidegate.waits.job_reader import JobObservation
from airflow_tidegate.waits.shared_reader import shared_job
from airflow_tidegate.waits.watermark_wait import event_time_us
from tidegate.clock import now_iso, parse_iso
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.layout import stable_id
from tidegate.jobs.options import parse_duration
from tidegate.jobs.records import WatchCursor
from tidegate.jobs.watch_cursors import read_cursor, write_cursor

DELIVERY_GRACE_S = 15.0
"""Time that Airflow may need to write a fired event to its database, seconds."""
RETRY_S = 30.0
"""Pause after an error, seconds: no job has this id yet, or the store or the connection fails."""


class JobEventTrigger(BaseEventTrigger):
    """Base class of all event triggers.

    Args:
        job_id: the job; it need not exist yet.
        conn_id: connection of type `tidegate`; resolved in the triggerer.
        watcher: distinguishes watchers of the same kind on one job: two Airflow installations that watch one job need
            two names, since each watcher has its own cursor.
        min_interval: least time between two events, as text ("10 min"); events in between are merged into one
            event. None: one event each.
        poll_interval: between reads of the job directory after a change; grows while nothing changes.
    """

    def __init__(
        self,
        *,
        job_id: str,
        conn_id: str = DEFAULT_CONN_ID,
        watcher: str = "airflow",
        min_interval: str | None = None,
        poll_interval: str = "5 s",
    ) -> None:
        super().__init__()
        self.job_id, self.conn_id, self.watcher = job_id, conn_id, watcher
        self.min_interval, self.poll_interval = min_interval, poll_interval
        self.least_s = parse_duration(min_interval, where="min_interval").total_seconds() if min_interval else 0.0
        self.poll_s = parse_duration(poll_interval, where="poll_interval").total_seconds()

    @abstractmethod
    def job_events(self) -> JobEvents:
        """Return the kind of events to fire."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return the trigger's own arguments, JSON-able."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, from which Airflow creates the same trigger again."""
        shared = ("job_id", "conn_id", "watcher", "min_interval", "poll_interval")
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {**{name: getattr(self, name) for name in shared}, **self.arguments()},
        )

    @property
    def cursor_id(self) -> str:
        """Return the name of the cursor. A trigger with other arguments fires other events, so it has its own
        cursor."""
        arguments = sorted(f"{name}={value}" for name, value in self.arguments().items())
        pace = [f"min_interval={self.min_interval}"] if self.min_interval else []
        return stable_id(self.watcher, self.job_events().kind, *arguments, *pace)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire events forever. Every error leads to another try, because nothing else watches this job for the
        asset."""
        sender = EventSender(self.job_events(), self.cursor_id, least_s=self.least_s, poll_s=self.poll_s)
        while True:
            try:
                root = await sync_to_async(TidegateHook(self.conn_id).get_conn)()
                async with shared_job(root.root, self.job_id, root.storage_options) as job:
                    while True:
                        for event in await job.first(sender):
                            yield TriggerEvent(event.payload)
                            sender.on_delivered(event)
            except Exception as error:
                unexpected = None if isinstance(error, TidegateError) else error
                self.log.warning(
                    "job %s cannot be read, and is read again in %g s: %s",
                    self.job_id,
                    RETRY_S,
                    error,
                    exc_info=unexpected,
                )
            await asyncio.sleep(RETRY_S)


class EventSender:
    """An observer that tracks its delivered events. `evaluate` runs in a thread, `on_delivered` on the event loop,
    never both at once."""

    deadline_at: float | None = None

    def __init__(self, events: JobEvents, cursor_id: str, *, least_s: float, poll_s: float) -> None:
        self._events, self._cursor_id = events, cursor_id
        self._least_s, self.poll_s = least_s, poll_s
        self._cursor: Cursor | None = None
        self._sent_at: float | None = None
        self._unsaved: deque[tuple[float, WatchCursor]] = deque()

    def evaluate(self, client: JobClient, observed: JobObservation) -> list[JobEvent] | None:
        """Return the new events; None: there are none, or it is too early."""
        if self._cursor is None and not self._begin(client, observed):
            return None
        assert self._cursor is not None, "the cursor is not initialised"
        self._go_on(client, observed)
        self._save(client)
        if self._sent_at is not None and time.time() - self._sent_at < self._least_s:
            return None
        return self._events.events_since(observed, self._cursor, as_one=self._least_s > 0) or None

    def on_delivered(self, event: JobEvent) -> None:
        """Record that Airflow has accepted the event."""
        self._cursor, self._sent_at = event.cursor, time.time()
        self._unsaved.append((time.monotonic(), self._watch_cursor()))

    def _begin(self, client: JobClient, observed: JobObservation) -> bool:
        """Continue from the stored cursor; else start now and store that cursor, so that later events are not lost."""
        found = read_cursor(client.store, client.layout, self._cursor_id)
        if found is not None:
            self._cursor, self._sent_at = found.data, parse_iso(found.at).timestamp()
            return True
        self._cursor = self._events.initial_cursor(observed)
        if self._cursor is None:
            return False
        write_cursor(client.store, client.layout, self._watch_cursor())
        return True

    def _go_on(self, client: JobClient, observed: JobObservation) -> None:
        """Store a cursor that has started again, after cursors of events that Airflow may still be writing."""
        assert self._cursor is not None, "the cursor is not initialised"
        current = self._events.current(observed, self._cursor)
        if current == self._cursor:
            return
        self._cursor = current
        if self._unsaved:
            self._unsaved.append((time.monotonic(), self._watch_cursor()))
        else:
            write_cursor(client.store, client.layout, self._watch_cursor())

    def _save(self, client: JobClient) -> None:
        """Store the cursor of the newest event that Airflow accepted at least `DELIVERY_GRACE_S` ago."""
        settled = 0
        for handed_over, _ in self._unsaved:
            settled += time.monotonic() - handed_over >= DELIVERY_GRACE_S
        if settled:
            write_cursor(client.store, client.layout, self._unsaved[settled - 1][1])
            for _ in range(settled):
                self._unsaved.popleft()

    def _watch_cursor(self) -> WatchCursor:
        assert self._cursor is not None, "the cursor is not initialised"
        return WatchCursor(self._cursor_id, now_iso(), self._cursor)


class TidegateCheckpointEventTrigger(JobEventTrigger):
    """Fires when a snapshot of the job is completed.

    Args:
        published: only snapshots whose output is committed, if the job has sinks that commit: for readers of the
            output.
        other arguments: see `JobEventTrigger`.
    """

    def __init__(self, *, published: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.published = published

    def job_events(self) -> JobEvents:
        """Checkpoints."""
        return CheckpointEvents(published=self.published)

    def arguments(self) -> dict[str, Any]:
        """Own arguments."""
        return {"published": self.published}


class TidegateWatermarkEventTrigger(JobEventTrigger):
    """Fires each time the job's watermark has passed the end of an interval.

    Args:
        every: length of an interval, as text: "1 h"; intervals are counted from 1970, UTC.
        start: begin of the first interval, a time with zone as text; None: the first interval that begins
            after the watcher starts.
        durable: use the watermark of published checkpoints, so that the rows of the interval are committed.
        other arguments: see `JobEventTrigger`.
    """

    def __init__(self, *, every: str, start: str | None = None, durable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.every, self.start, self.durable = every, start, durable
        self._every_us = parse_duration(every, where="every") // timedelta(microseconds=1)
        self._start_us = None if start is None else event_time_us(start, "start")
        if not self._every_us:
            raise OptionError(
                "the interval `every` must be longer than 0",
                where="argument every",
                remedy='Use an interval such as "1 h"',
            )

    def job_events(self) -> JobEvents:
        """Return the events of the watermark."""
        return WatermarkEvents(every_us=self._every_us, start_us=self._start_us, durable=self.durable)

    def arguments(self) -> dict[str, Any]:
        """Return the trigger's own arguments."""
        return {"every": self.every, "start": self.start, "durable": self.durable}


class TidegateEndOfDataEventTrigger(JobEventTrigger):
    """Fires when sources have reached the end of their input, once for each submission of the job.

    Args:
        sources: uids, separated by commas; with neither argument: all sources of the job.
        played_all: uids, separated by commas, of replaying sources that have played all their rows.
        other arguments: see `JobEventTrigger`.
    """

    def __init__(self, *, sources: str = "", played_all: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sources, self.played_all = sources, played_all

    def job_events(self) -> JobEvents:
        """Return the events of the end of data."""
        named = [tuple(u.strip() for u in text.split(",") if u.strip()) for text in (self.sources, self.played_all)]
        return EndOfDataEvents(sources=named[0], played_all=named[1])

    def arguments(self) -> dict[str, Any]:
        """Return the trigger's own arguments."""
        return {"sources": self.sources, "played_all": self.played_all}


class TidegateSnapshotExpiringEventTrigger(JobEventTrigger):
    """Fires when the newest snapshot from which the job can be restored expires within a time.

    Args:
        before: how long before the expiry, as text: "12 h".
        other arguments: see `JobEventTrigger`.
    """

    def __init__(self, *, before: str = "12 h", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.before = before
        self._before_s = parse_duration(before, where="before").total_seconds()

    def job_events(self) -> JobEvents:
        """Return the events of expiring snapshots."""
        return SnapshotExpiringEvents(before_s=self._before_s)

    def arguments(self) -> dict[str, Any]:
        """Return the trigger's own arguments."""
        return {"before": self.before}
