"""Wait for a job's status."""

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
    """Waits until the job has one of some statuses. A job that ended with another one is a failure at once.

    XCom: `{"job_id", "spec", "generation", "status"}`.

    Args:
        statuses: names of `JobStatus`, as a list or as text with commas: `"STOPPED,FINISHED"`.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "statuses")

    def __init__(self, *, statuses: Sequence[str] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.statuses = statuses

    def job_wait(self) -> Wait:
        """The wait, from rendered arguments."""
        wanted = tuple(name.upper() for name in names(self.statuses))
        known = [status.value for status in JobStatus]
        wrong = [name for name in wanted if name not in known]
        if wrong or not wanted:
            near = difflib.get_close_matches(wrong[0], known, 1) if wrong else []
            raise OptionError(
                f"{wrong[0]!r} is no status of a job" if wrong else "no status is named",
                where="argument statuses",
                remedy=f"did you mean {near[0]!r}" if near else f"name some of {', '.join(known)}",
            )
        return JobStatusWait(statuses=wanted)
