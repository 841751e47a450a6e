"""Points in event time: parsing them, and waiting until a job's watermark has reached them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow_tidegate.waits.job_waits import Payload, Wait, refuse_unknown_sources
from tidegate.clock import iso
from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.status import CheckpointView, JobStatus, JobView

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class WatermarkWait(Wait):
    """Wait until the watermark has reached a point: all earlier rows have arrived (S4.4).

    Attributes:
        at_us: the point, microseconds since the epoch.
        source: uid of one source; None: the whole job.
        durable: True: a published checkpoint has reached it, which a failure does not revert; False: use the driver's
            current report.
    """

    kind: ClassVar[str] = "watermark"
    what: ClassVar[str] = "the requested watermark"
    at_us: int
    source: str | None = None
    durable: bool = False

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the watermark once it has reached the point, and the checkpoint if `durable`."""
        if self.source is not None:
            refuse_unknown_sources(view, (self.source,))
        if self._all_is_over(view):
            return self._found(view, None, None)
        if self.durable:
            point = durable_watermark_point(view)
            if point is not None and _watermark(point) >= self.at_us:
                return self._found(view, point.watermark_us, point.checkpoint_id)
        else:
            watermark_us = self._current(view)
            if watermark_us is not None and watermark_us >= self.at_us:
                return self._found(view, watermark_us, None)
        self.raise_if_over(view)
        return None

    def _current(self, view: JobView) -> int | None:
        if self.source is None:
            return view.watermark_us
        source = view.source(self.source)
        return source.watermark_us if source is not None else None

    def _all_is_over(self, view: JobView) -> bool:
        """Return whether the job, or the source, has read everything: then it is past every point."""
        if self.source is not None and not self.durable:
            source = view.source(self.source)
            if source is not None and source.end_of_data:
                return True
        status = view.settled.status
        return status is JobStatus.FINISHED or (status is JobStatus.FINISHED_COMMIT_PENDING and not self.durable)

    def _found(self, view: JobView, watermark_us: int | None, checkpoint_id: int | None) -> Payload:
        return {
            "job_id": view.job_id,
            "status": view.settled.status.value,
            "at": point_text(self.at_us),
            "watermark": None if watermark_us is None else point_text(watermark_us),
            "checkpoint_id": checkpoint_id,
        }


def durable_watermark_point(view: JobView) -> CheckpointView | None:
    """Return the published checkpoint with the latest watermark, of the current submission's lineage; None if no
    checkpoint records a watermark."""
    line = [c for c in view.completed if c.spec == view.spec_number]
    if view.restored is not None:
        line.append(view.restored)
    candidates = [c for c in line if c.is_published and c.watermark_us is not None]
    return max(candidates, key=_watermark, default=None)


def _watermark(point: CheckpointView) -> int:
    assert point.watermark_us is not None, "the checkpoint records no watermark"
    return point.watermark_us


def event_time_us(value: Any, name: str) -> int:
    """Return a time as microseconds since the epoch.

    Args:
        value: datetime with zone, or ISO 8601 text with zone, as templates render it.
        name: of the argument, for errors.

    Raises:
        OptionError: it is not a time, or has no zone.
    """
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise OptionError(
            f"the value must be a time with a time zone, but is {value!r}",
            where=f"argument {name}",
            remedy='Use "{{ data_interval_end }}", or a text such as "2026-01-31T06:00:00Z"',
        )
    return (moment - EPOCH) // timedelta(microseconds=1)


def point_text(time_us: int) -> str:
    """Return a text such as `2026-01-31T06:00:00.000Z`; the number itself outside the years 1 to 9999."""
    try:
        return iso(EPOCH + timedelta(microseconds=time_us))
    except OverflowError:
        return str(time_us)
