"""The time until which a job can be restored, and a wait for its approach."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_tidegate.waits.job_waits import Payload, Wait, checkpoint_facts
from tidegate.clock import parse_iso
from tidegate.errors import CommandRefusedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.snapshot_presence import with_latest_checked
from tidegate.jobs.records import Spec
from tidegate.jobs.restore.snapshot_lookup import has_deleted_checkpoints
from tidegate.jobs.status import CheckpointView, JobView


@dataclass(frozen=True, slots=True)
class RestorableUntil:
    """The snapshot that a restore of "latest" starts from, and until when its sources can continue from it (S4.2).

    Attributes:
        snapshot: the newest recovery point of the job.
        until: `readable_until` of the snapshot, as its driver recorded it.
        left_s: seconds until then; negative: it has passed.
    """

    snapshot: CheckpointView
    until: str
    left_s: float

    def is_within(self, before_s: float) -> bool:
        """Return whether the time is over in `before_s` seconds or less."""
        return self.left_s <= before_s

    def facts(self) -> Payload:
        """Return the snapshot and the time, JSON-able."""
        return {**checkpoint_facts(self.snapshot), "readable_until": self.until, "expired": self.left_s <= 0}


def restorable_until(view: JobView, last: Spec, now_s: float) -> RestorableUntil | None:
    """Return until when the job can be restored; None: it has no snapshot, or its snapshot has no known limit.

    Args:
        view: of `snapshot_presence.with_latest_checked`, so that a snapshot that was deleted does not count.
        last: newest submission of the job.
        now_s: seconds since the epoch. The limit comes from the clocks of the systems that hold the input.
    """
    point = view.latest_recovery_point
    if point is None or point.deleted or point.readable_until is None:
        return None
    if has_deleted_checkpoints(last, view) and "savepoint" not in point.kind:
        return None
    left_s = parse_iso(point.readable_until).timestamp() - now_s
    return RestorableUntil(point, point.readable_until, left_s)


@dataclass(frozen=True, kw_only=True)
class SnapshotExpiryWait(Wait):
    """Wait until the newest snapshot from which the job can be restored expires within a time.

    Not ended by a dead driver: the snapshot of a job that nobody restores is the one that expires.

    Attributes:
        before_s: how long before the expiry the wait ends, seconds.
    """

    kind: ClassVar[str] = "snapshot_expiry"
    what: ClassVar[str] = "the newest snapshot to be close to its expiry"
    needs_driver: ClassVar[bool] = False
    before_s: float
    now: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the snapshot and its time. Raises CommandRefusedError if the job has ended, and no snapshot of it
        expires."""
        view = with_latest_checked(client, view)
        found = restorable_until(view, client.spec(view.spec_number), self.now())
        if found is not None:
            if not found.is_within(self.before_s):
                return None
            left = {"seconds_left": round(found.left_s)}
            return {"job_id": view.job_id, "status": view.settled.status.value, **found.facts(), **left}
        if view.is_terminal:
            raise CommandRefusedError(
                "no snapshot of the job will expire",
                where=f"job {view.job_id}, {view.settled.status.value}",
                cause=_why_no_limit(view),
                remedy="Remove the sensor, or let it start while the job runs",
            )
        return None

    def fields(self) -> dict[str, Any]:
        """See `Wait.fields`."""
        return {"before_s": self.before_s}


def _why_no_limit(view: JobView) -> str:
    point = view.latest_recovery_point
    if point is None or point.deleted or point.readable_until is not None:  # or it is deleted as the job has ended
        return "the job has no snapshot to restore"
    return f"the sources of {point.kind} {point.checkpoint_id} reported no time until which they can continue"
