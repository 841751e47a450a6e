"""Kinds of job events that start DAGs. Each is a pure function of a snapshot of the job directory and a cursor; the
events of expiring snapshots also depend on the time.

A cursor is small JSON that records which events were delivered. Events depend only on the observation and the cursor,
so a watcher that restarts with an older cursor delivers the same events again, with the same dedupe keys.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_tidegate.waits.job_reader import JobObservation
from airflow_tidegate.waits.job_waits import EndOfDataWait, checkpoint_facts, refuse_unknown_sources
from airflow_tidegate.waits.snapshot_expiry import RestorableUntil, restorable_until
from airflow_tidegate.waits.watermark_wait import durable_watermark_point, point_text
from tidegate.jobs.status import CheckpointView, JobView

Cursor = Mapping[str, Any]
Payload = dict[str, Any]

EVENTS_AT_ONCE = 24
"""Most events of one observation; the rest follows with the next observations."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event, and the cursor after its delivery."""

    payload: Payload
    cursor: Cursor


@dataclass(frozen=True, kw_only=True)
class JobEvents(ABC):
    """One kind of event."""

    kind: ClassVar[str]

    @abstractmethod
    def initial_cursor(self, observed: JobObservation) -> Cursor | None:
        """Return the cursor of a watcher that starts now; None: it cannot start yet."""

    def current(self, observed: JobObservation, cursor: Cursor) -> Cursor:
        """Return the cursor to continue from: `cursor`, unless its lineage has ended since."""
        return cursor

    @abstractmethod
    def events_since(self, observed: JobObservation, cursor: Cursor, *, as_one: bool) -> list[JobEvent]:
        """Return the events since the cursor, oldest first, at most EVENTS_AT_ONCE. `as_one`: all of them as one
        event."""


@dataclass(frozen=True, kw_only=True)
class CheckpointEvents(JobEvents):
    """Events for completed snapshots; with `published`, only when their output is committed, if the job has sinks that
    commit.

    One event for several snapshots has the data of the newest, and their number.
    """

    kind: ClassVar[str] = "checkpoint"
    published: bool = False

    def initial_cursor(self, observed: JobObservation) -> Cursor | None:
        """Start after the current end of the log."""
        return {"entry": observed.view.last_decision}

    def events_since(self, observed: JobObservation, cursor: Cursor, *, as_one: bool) -> list[JobEvent]:
        """Return events in the order of the log's entries, so that no snapshot is missed if a later one completes
        first."""
        fresh = sorted((c for c in observed.view.completed if self._entry(c) > cursor["entry"]), key=self._entry)
        chosen = [(fresh[-1], len(fresh))] if as_one and fresh else [(c, 1) for c in fresh[:EVENTS_AT_ONCE]]
        return [JobEvent(self._payload(observed.view, c, count), {"entry": self._entry(c)}) for c, count in chosen]

    def _entry(self, checkpoint: CheckpointView) -> int:
        """Return the log entry that makes the event happen; 0: it has not happened."""
        if not self.published:
            return checkpoint.settled_by
        return (checkpoint.committed_by or checkpoint.settled_by) if checkpoint.is_published else 0

    def _payload(self, view: JobView, checkpoint: CheckpointView, count: int) -> Payload:
        watermark_us = checkpoint.watermark_us
        return {
            "event": "published_checkpoint" if self.published else "checkpoint",
            "job_id": view.job_id,
            "dedupe_key": f"{view.job_id}/{self.kind}/{checkpoint.checkpoint_id}",
            **checkpoint_facts(checkpoint),
            "watermark": None if watermark_us is None else point_text(watermark_us),
            "count": count,
        }


@dataclass(frozen=True, kw_only=True)
class WatermarkEvents(JobEvents):
    """Events for each multiple of `every_us`, counted from 1970, UTC, that the watermark passes: the interval is
    complete.

    Attributes:
        every_us: length of an interval, microseconds.
        start_us: begin of the first interval; None: the first that begins after the watcher starts.
        durable: use the watermark of published checkpoints.
    """

    kind: ClassVar[str] = "watermark"
    every_us: int
    start_us: int | None = None
    durable: bool = False

    def initial_cursor(self, observed: JobObservation) -> Cursor | None:
        """Start at `start_us`, else at the newest boundary that was passed; a job without watermark has none yet."""
        from_us = self.start_us if self.start_us is not None else self._watermark_us(observed.view)
        if from_us is None:
            return None
        return {"lineage": observed.spec.lineage, "boundary_us": from_us // self.every_us * self.every_us}

    def current(self, observed: JobObservation, cursor: Cursor) -> Cursor:
        """Return a new cursor if the job was started fresh, as soon as it has a watermark."""
        if observed.spec.lineage == cursor["lineage"]:
            return cursor
        return self.initial_cursor(observed) or cursor

    def events_since(self, observed: JobObservation, cursor: Cursor, *, as_one: bool) -> list[JobEvent]:
        """Return one event per interval; none for a lineage without a watermark."""
        if observed.spec.lineage != cursor["lineage"]:
            return []
        watermark_us, boundary_us = self._watermark_us(observed.view), int(cursor["boundary_us"])
        steps = 0 if watermark_us is None else max(0, (watermark_us - boundary_us) // self.every_us)
        ends = [boundary_us + n * self.every_us for n in range(1, min(steps, EVENTS_AT_ONCE) + 1)]
        if as_one and steps:
            ends = [boundary_us + steps * self.every_us]
        found = []
        for end_us in ends:
            found.append(self._event(observed, boundary_us, end_us))
            boundary_us = end_us
        return found

    def _event(self, observed: JobObservation, start_us: int, end_us: int) -> JobEvent:
        view, lineage, end = observed.view, observed.spec.lineage, point_text(end_us)
        payload = {
            "event": "watermark",
            "job_id": view.job_id,
            "dedupe_key": f"{view.job_id}/{self.kind}/{lineage}/{end}",
            "interval_start": point_text(start_us),
            "interval_end": end,
            "intervals": (end_us - start_us) // self.every_us,
            "watermark": point_text(self._watermark_us(view) or end_us),
        }
        return JobEvent(payload, {"lineage": lineage, "boundary_us": end_us})

    def _watermark_us(self, view: JobView) -> int | None:
        if not self.durable:
            return view.watermark_us
        point = durable_watermark_point(view)
        return point.watermark_us if point is not None else None


@dataclass(frozen=True, kw_only=True)
class EndOfDataEvents(JobEvents):
    """Events for the end of sources, once a submission; see `EndOfDataWait`."""

    kind: ClassVar[str] = "end_of_data"
    sources: tuple[str, ...] = ()
    played_all: tuple[str, ...] = ()

    def initial_cursor(self, observed: JobObservation) -> Cursor | None:
        """Start before the first submission: an end that already happened is delivered."""
        return {"spec": 0}

    def events_since(self, observed: JobObservation, cursor: Cursor, *, as_one: bool) -> list[JobEvent]:
        """Return at most one event."""
        view = observed.view
        refuse_unknown_sources(view, (*self.sources, *self.played_all))
        found = EndOfDataWait(sources=self.sources, played_all=self.played_all).found(view)
        if found is None or view.spec_number <= cursor["spec"]:
            return []
        key = f"{view.job_id}/{self.kind}/{view.spec_number}"
        payload = {"event": self.kind, "dedupe_key": key, "spec": view.spec_number, **found}
        return [JobEvent(payload, {"spec": view.spec_number})]


@dataclass(frozen=True, kw_only=True)
class SnapshotExpiringEvents(JobEvents):
    """Events for a newest snapshot that expires within a time: the job cannot be restored after it (S4.2).

    One event, until a newer snapshot that expires later has come: a running job whose snapshots are all close to their
    expiry would send one with each checkpoint.

    Attributes:
        before_s: how long before the expiry, seconds.
        now: wall clock, seconds since the epoch.
    """

    kind: ClassVar[str] = "snapshot_expiring"
    before_s: float
    now: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def initial_cursor(self, observed: JobObservation) -> Cursor | None:
        """Start with no snapshot reported: a snapshot that is already close to its expiry is reported."""
        return {"checkpoint_id": None}

    def current(self, observed: JobObservation, cursor: Cursor) -> Cursor:
        """Return the cursor; without the reported snapshot, if the newest one is not close to its expiry any more."""
        is_over = cursor["checkpoint_id"] is not None and self._expiring(observed) is None
        return {"checkpoint_id": None} if is_over else cursor

    def events_since(self, observed: JobObservation, cursor: Cursor, *, as_one: bool) -> list[JobEvent]:
        """Return at most one event."""
        found = self._expiring(observed)
        if found is None or cursor["checkpoint_id"] is not None:
            return []
        view, checkpoint_id = observed.view, found.snapshot.checkpoint_id
        key = f"{view.job_id}/{self.kind}/{checkpoint_id}"
        facts = {"event": self.kind, "job_id": view.job_id, "dedupe_key": key, "status": view.status.value}
        return [JobEvent({**facts, **found.facts()}, {"checkpoint_id": checkpoint_id})]

    def _expiring(self, observed: JobObservation) -> RestorableUntil | None:
        found = restorable_until(observed.view, observed.spec, self.now())
        return found if found is not None and found.is_within(self.before_s) else None
