"""Sensor that waits for a checkpoint that needs a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tidegate.sensors.checkpoint import checkpoint_number
from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import StagedWait, Wait


class TidegateStagedCheckpointSensor(JobSensor):
    """Wait until a checkpoint of a job with `commit="on_request"` waits for a verdict (S7.8).

    Its rows are then written and can be read for an audit, but readers of the table do not see them. With neither
    argument: any checkpoint. XCom: `{"checkpoint_id", "kind", "path", "duration_ms", "completed_at", "verdict",
    "waiting"}` of the newest that fits; `waiting`: ids of all that wait, oldest first.

    Args:
        checkpoint_id: this one, by id or as the XCom of a checkpoint task. It is also found if it was approved since,
            as `verdict` shows; if it is rejected or aborted, the sensor fails.
        newer_than: any that waits and is newer than this id, or the XCom of a checkpoint, savepoint or sensor task.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "checkpoint_id", "newer_than")

    def __init__(
        self,
        *,
        checkpoint_id: int | str | Mapping[str, Any] | None = None,
        newer_than: int | str | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_id = checkpoint_id
        self.newer_than = newer_than

    def job_wait(self) -> Wait:
        """Return the wait for the rendered arguments."""
        return StagedWait(
            checkpoint_id=checkpoint_number(self.checkpoint_id, "checkpoint_id"),
            newer_than=checkpoint_number(self.newer_than, "newer_than"),
        )
