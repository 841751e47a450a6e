"""Sensor that waits for sources to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import EndOfDataWait, Wait


class TidegateEndOfDataSensor(JobSensor):
    """Wait until bounded sources have been read to their end, or replaying ones have played all their rows.

    XCom: `{"job_id", "status", "sources": {uid: {"records", "end_of_data"}}}`.

    Args:
        sources: uids of sources that must have ended; with neither argument: all sources of the job.
        played_all: uids of replaying sources, which stay open at their end. The status hint reports this, not the
            decision
            log: a job restored from before that point continues to play.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "sources", "played_all")

    def __init__(
        self,
        *,
        sources: Sequence[str] | str | None = None,
        played_all: Sequence[str] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sources = sources
        self.played_all = played_all

    def job_wait(self) -> Wait:
        """Return the wait for the rendered arguments."""
        return EndOfDataWait(sources=names(self.sources), played_all=names(self.played_all))


def names(value: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return uids from a list, or from text with commas."""
    if value is None:
        return ()
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(p.strip() for p in parts if p.strip())
