"""Sensor that waits for a job's status."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from airflow_tidegate.sensors.end_of_data import names
from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import JobStatusWait, Wait
from tidegate.errors import OptionError
from tidegate.jobs.status import JobStatus


class TidegateJobStatusSensor(JobSensor):
    """Wait until the job has one of some statuses. If the job ends with another status, the sensor fails at once.

    XCom: `{"job_id", "spec", "generation", "status"}`.

    Args:
        statuses: names of `JobStatus`, as a list or as text with commas: `"STOPPED,FINISHED"`.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "statuses")

    def __init__(self, *, statuses: Sequence[str] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.statuses = statuses

    def job_wait(self) -> Wait:
        """Return the wait for the rendered arguments."""
        wanted = tuple(name.upper() for name in names(self.statuses))
        known = [status.value for status in JobStatus]
        wrong = [name for name in wanted if name not in known]
        if wrong or not wanted:
            near = difflib.get_close_matches(wrong[0], known, 1) if wrong else []
            raise OptionError(
                f"the job status {wrong[0]!r} is unknown" if wrong else "the sensor has no status to wait for",
                where="argument statuses",
                remedy=f"Did you mean {near[0]!r}" if near else f"Pass one or more of {', '.join(known)}",
            )
        return JobStatusWait(statuses=wanted)
