"""Sensor that waits for a completed snapshot."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_tidegate.sensors.job_sensor import JobSensor
from airflow_tidegate.waits.job_waits import CheckpointWait, Wait
from airflow_tidegate.waits.watermark_wait import event_time_us, point_text
from tidegate.errors import OptionError

_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class TidegateCheckpointSensor(JobSensor):
    """Wait until a snapshot is completed: a named one, one newer than another, or a number of them.

    With none of the three arguments: any one of the current submission. XCom:
    `{"checkpoint_id", "kind", "path", "duration_ms", "completed_at", "count"}` of the newest that fits.

    Args:
        checkpoint_id: this one, by id or as the XCom of a checkpoint task; if it is aborted, the sensor fails.
        newer_than: a checkpoint id, or the XCom of a checkpoint, savepoint or stop task; or a time with zone,
            such as `"{{ data_interval_end }}"`: one that was triggered after it, by the driver's clock.
        count: this many completed under the current submission.
    """

    template_fields: Sequence[str] = (*JobSensor.template_fields, "checkpoint_id", "newer_than", "count")

    def __init__(
        self,
        *,
        checkpoint_id: int | str | Mapping[str, Any] | None = None,
        newer_than: int | str | datetime | Mapping[str, Any] | None = None,
        count: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_id = checkpoint_id
        self.newer_than = newer_than
        self.count = count

    def job_wait(self) -> Wait:
        """Return the wait for the rendered arguments."""
        checkpoint_id = checkpoint_number(self.checkpoint_id, "checkpoint_id")
        newer, after = newer_than(self.newer_than)
        count = whole_number(self.count, "count")
        if checkpoint_id is None and newer is None and after is None and count is None:
            count = 1
        return CheckpointWait(checkpoint_id=checkpoint_id, newer_than=newer, count=count, triggered_after=after)


def newer_than(value: Any) -> tuple[int | None, str | None]:
    """Return a checkpoint's id, or a time as ISO 8601; at least one of them is None. Raises OptionError."""
    is_time = isinstance(value, datetime) or (isinstance(value, str) and _DATE.match(value.strip()) is not None)
    if is_time:
        return None, point_text(event_time_us(value, "newer_than"))
    return checkpoint_number(value, "newer_than"), None


def checkpoint_number(value: Any, name: str) -> int | None:
    """Return a checkpoint's id, from a number or the XCom of a task that names one. Raises OptionError."""
    return whole_number(value.get("checkpoint_id") if isinstance(value, Mapping) else value, name)


def whole_number(value: Any, name: str) -> int | None:
    """Return `value`, possibly rendered to text, as a number. Raises OptionError that names the argument."""
    if value is None or value in ("", "None"):
        return None
    text = str(value).strip()
    if not text.isdecimal():
        raise OptionError(
            f"the checkpoint id must be an integer, but is {value!r}",
            where=f"argument {name}",
            remedy="Use a number such as 12",
        )
    return int(text)
