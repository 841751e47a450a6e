"""Waits of operators with several steps: to supervise a job, and to upgrade one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from airflow_tidegate.waits.job_waits import Payload, Wait, checkpoint_facts, result_summary
from airflow_tidegate.waits.supervision_policy import DriverObservation, SupervisionLimits, decide_supervision
from tidegate.clock import parse_iso
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.waiter import ended_error
from tidegate.jobs.status import JobStatus, JobView
from tidegate.jobs.status_text import records_read


@dataclass
class _Progress:
    """The number of records that sources had read, and when it last changed, as one observer saw it."""

    records: int | None = None
    at_s: float = 0.0

    def update(self, records: int, now_s: float) -> float:
        """Return when the number last changed, seconds since the epoch; the first call counts as a change."""
        if records != self.records:
            self.records, self.at_s = records, now_s
        return self.at_s


@dataclass(frozen=True, kw_only=True)
class SuperviseWait(Wait):
    """Wait until a supervised job has ended, or makes no progress. Progress of sources is observed by this object: a
    trigger that is created again starts to observe it again.

    Attributes:
        no_progress_s: how long the job may make no progress, seconds; None: no limit.
        owner: the supervisor, which owns the newest submission (`on_owner_lost`); "": none.
        owner: who supervises, and owns whatever submission is the newest (`on_owner_lost`); "": nobody.
    """

    kind: ClassVar[str] = "supervise"
    what: ClassVar[str] = "the end of the job"
    no_progress_s: float | None = None
    owner: str = ""
    now: Callable[[], float] = field(default=time.time, compare=False, repr=False)
    _progress: _Progress = field(default_factory=_Progress, init=False, compare=False, repr=False)

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return `{"action": "end", ...summary}`, or `{"action": "fail", "why", "remedy"}`."""
        if view.is_terminal:
            return {"action": "end", **result_summary(view)}
        now_s = self.now()
        seen = DriverObservation(
            now_s, progressed_s=self._progressed_s(view, now_s), waits_for_verdict=view.sources_paused
        )
        limit = None if self.no_progress_s is None else timedelta(seconds=self.no_progress_s)
        decision = decide_supervision(seen, SupervisionLimits(0, timedelta(0), limit))
        if decision.action == "watch":
            return None
        return {"action": decision.action, "why": decision.why, "remedy": decision.remedy}

    def fields(self) -> dict[str, Any]:
        """See `Wait.fields`."""
        return {"no_progress_s": self.no_progress_s, "owner": self.owner}

    def _progressed_s(self, view: JobView, now_s: float) -> float:
        read_s = self._progress.update(records_read(view) or 0, now_s)
        completed_at = view.completed[-1].completed_at if view.completed else None
        try:
            return max(read_s, parse_iso(completed_at).timestamp()) if completed_at else read_s
        except ValueError:
            return read_s


@dataclass(frozen=True, kw_only=True)
class FirstCheckpointWait(Wait):
    """Wait until submission `spec` has completed a snapshot, or has ended by itself.

    Attributes:
        spec: number of the submission.
        after_generation: reports of drivers up to this generation are ignored: they belong to an earlier try.
    """

    kind: ClassVar[str] = "first_checkpoint"
    what: ClassVar[str] = "the first completed checkpoint"
    spec: int
    after_generation: int = 0

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the snapshot with the job's summary; `checkpoint_id` is None if the job ended well without one."""
        if view.spec_number != self.spec:
            raise ended_error(view, self.spec, self.what)
        first = first_snapshot(view, self.spec)
        if first is not None:
            return {**result_summary(view), **first}
        if self.after_generation and view.generation <= self.after_generation:
            return None
        if view.status in (JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING):
            return {**result_summary(view), "checkpoint_id": None, "path": None}
        self.raise_if_over(view)
        return None


def first_snapshot(view: JobView, spec: int) -> Payload | None:
    """Return the first snapshot that submission `spec` completed, as `checkpoint_facts`."""
    return next((checkpoint_facts(c) for c in view.completed if c.spec == spec), None)
