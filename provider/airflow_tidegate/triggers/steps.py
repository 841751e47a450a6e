"""Triggers of operators that go through several steps."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_tidegate.waits.step_waits import FirstCheckpointWait, SuperviseWait
from airflow_tidegate.triggers.job_triggers import TRIGGERS, JobWaitTrigger


class TidegateSuperviseTrigger(JobWaitTrigger):
    """Waits until a supervised job is over or stands still (`SuperviseWait`), or its driver is dead."""

    wait_class = SuperviseWait


class TidegateFirstCheckpointTrigger(JobWaitTrigger):
    """Waits for the first snapshot of a submission (`FirstCheckpointWait`)."""

    wait_class = FirstCheckpointWait


STEP_TRIGGERS: Mapping[str, type[JobWaitTrigger]] = {
    **TRIGGERS,
    **{trigger.wait_class.kind: trigger for trigger in (TidegateSuperviseTrigger, TidegateFirstCheckpointTrigger)},
}
"""Kind of a wait -> its trigger class."""
