"""Wait for event time to pass a point."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_tidegate.arguments import flag
from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import Wait
from airflow_tidegate.waits.watermark_wait import WatermarkWait, event_time_us
from tidegate.errors import OptionError


class TidegateWatermarkSensor(JobSensor):
    """Waits until the job's watermark has reached a point in event time: by then everything before it has come (S4.4).

    A job that has finished is past every point. XCom: `{"job_id", "status", "at", "watermark", "checkpoint_id"}`;
    `watermark` is None when the job has finished, `checkpoint_id` unless `durable`.

    Args:
        at: the point, with zone; usually `"{{ data_interval_end }}"`.
        source: uid of one source, whose own watermark it is then; None: the whole job.
        durable: ask for a completed checkpoint that has passed the point and whose output is committed, where the job
            has sinks that commit. False: for what the driver tells of itself, which is newer, and which a restart may
            take back.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "at", "source", "durable")

    def __init__(
        self, *, at: datetime | str, source: str | None = None, durable: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.at = at
        self.source = source
        self.durable = durable

    def job_wait(self) -> Wait:
        """The wait, from rendered arguments."""
        durable = flag(self.durable, "durable")
        source = None if self.source in (None, "", "None") else str(self.source)
        if durable and source is not None:
            raise OptionError(
                "a checkpoint tells the watermark of the whole job, not that of one source",
                where="arguments source and durable",
                remedy="leave one of them out",
            )
        return WatermarkWait(at_us=event_time_us(self.at, "at"), source=source, durable=durable)
