"""Wait for a checkpoint that waits for a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tidegate.sensors.checkpoint import checkpoint_number
from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import StagedWait, Wait


class TidegateStagedCheckpointSensor(JobSensor):
    """Waits until a checkpoint of a job with `commit="on_request"` waits for a verdict: its rows are written and can be
    read, and no reader of the table sees them (S7.8).

    With neither argument: any one. XCom: `{"checkpoint_id", "kind", "path", "duration_ms", "completed_at", "verdict",
    "waiting"}` of the newest that satisfies it; `waiting`: ids of all that wait, oldest first.

    Args:
        checkpoint_id: this one, by id or as the XCom of a checkpoint task. Also found when it was approved since, as
            `verdict` says; its rejection or abortion is a failure.
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
        """The wait, from rendered arguments."""
        return StagedWait(
            checkpoint_id=checkpoint_number(self.checkpoint_id, "checkpoint_id"),
            newer_than=checkpoint_number(self.newer_than, "newer_than"),
        )
