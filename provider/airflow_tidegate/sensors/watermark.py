"""Sensor that waits for event time to pass a point."""

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
    """Wait until the job's watermark has reached a point in event time: all earlier rows have arrived by then (S4.4).

    A job that has finished is past every point. XCom: `{"job_id", "status", "at", "watermark", "checkpoint_id"}`;
    `watermark` is None if the job has finished, `checkpoint_id` is None unless `durable`.

    Args:
        at: the point, with zone; usually `"{{ data_interval_end }}"`.
        source: uid of one source, to use its own watermark; None: the whole job's.
        durable: True: wait for a completed checkpoint that has passed the point and whose output is committed, if the
            job has sinks that commit. False: use the driver's current report, which is newer, but which a restart may
            set back.
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
        """Return the wait for the rendered arguments."""
        durable = flag(self.durable, "durable")
        source = None if self.source in (None, "", "None") else str(self.source)
        if durable and source is not None:
            raise OptionError(
                "source and durable exclude each other",
                where="arguments source and durable",
                cause="a checkpoint records the watermark of the whole job, not of one source",
                remedy="Remove source or durable",
            )
        return WatermarkWait(at_us=event_time_us(self.at, "at"), source=source, durable=durable)
