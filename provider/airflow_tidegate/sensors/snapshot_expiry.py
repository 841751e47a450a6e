"""Sensor that warns before the newest snapshot of a job expires."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import duration
from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import Wait
from airflow_tidegate.waits.snapshot_expiry import SnapshotExpiryWait


class TidegateSnapshotExpirySensor(JobSensor):
    """Wait until the newest snapshot from which the job can be restored expires within a time (S4.2).

    A snapshot expires when a system deletes the input after it, such as a topic with a retention. `tidegate
    checkpoints` shows the time as "restorable until". The job may run, be stopped, or have failed; a dead driver does
    not end the wait. A running job moves the time with each checkpoint, so the sensor succeeds only if its checkpoints
    cease or its sources read too slowly. If the job has ended with a snapshot without a known limit, the sensor fails
    at once. XCom: `{"job_id", "status", "checkpoint_id", "kind", "path", "duration_ms", "completed_at",
    "readable_until", "expired", "seconds_left"}`; `expired`: the time has passed already.

    Args:
        before: how long before the expiry to succeed, as timedelta or text such as "12 h"; "0 s": at the expiry.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "before")

    def __init__(self, *, before: timedelta | str = "12 h", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.before = before

    def job_wait(self) -> Wait:
        """Return the wait for the rendered arguments."""
        return SnapshotExpiryWait(before_s=duration(self.before, "before").total_seconds())
