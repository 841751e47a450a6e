"""Triggers: the same waits as in a worker, run by the triggerer.

A trigger consists only of its arguments, so it survives a restart of the triggerer. The deadline is a wall-clock time
for the same reason. All triggers of a job share one read of the job directory (`waits.shared_reader`), in a thread,
never on the event loop. `cleanup` does not touch the job, because it also runs when a triggerer restarts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_tidegate.failures import Failure
from airflow_tidegate.on_kill import is_still_deferred, send_kill_command
from airflow_tidegate.waits.job_waits import (
    CancelWait,
    CheckpointWait,
    CommandWait,
    CommitWait,
    EndOfDataWait,
    JobStatusWait,
    StagedWait,
    StatusWait,
    StopWait,
    Wait,
)
from airflow_tidegate.waits.shared_reader import shared_job
from airflow_tidegate.waits.snapshot_expiry import SnapshotExpiryWait
from airflow_tidegate.waits.step_waits import FirstCheckpointWait, SuperviseWait
from airflow_tidegate.waits.watch import WaitEvaluator
from airflow_tidegate.waits.watermark_wait import WatermarkWait
from tidegate.errors import TidegateError
from tidegate.jobs.client.job_client import JobClient

CANCEL_GRACE_S = 10.0
"""Least time from a trigger's start to its event, seconds. The scheduler must first learn that the worker has released
the task. Otherwise Airflow (3.3) takes the worker's exit for the exit of the resumed task, which is queued, and fails
it. A worker may notice only after `[workers] min_heartbeat_interval`, 5 s, that the task's process has ended; then
follow a round of the executor and one of the scheduler.
a round of the executor and one of the scheduler."""


class _WaitObserver(WaitEvaluator):
    """A wait, as an observer of shared reads."""

    def __init__(self, wait: Wait, trigger: JobWaitTrigger) -> None:
        super().__init__(wait, deadline_at=trigger.deadline_at, timeout_s=trigger.timeout_s)
        self.poll_s = trigger.poll_s


class JobWaitTrigger(BaseTrigger):
    """Base class of all waiting triggers.

    Fires one event: `{"wait": {...}, "found": {...}}`, or `{"wait": {...}, "failure": {...}}` as created by
    `Failure.to_event`. The event contains the wait, because not every way to resume a deferred task passes arguments.

    Args:
        root: job root.
        job_id: the job.
        storage_options: fsspec options; secrets as references.
        wait: keyword arguments of the wait (`Wait.fields`).
        deadline_at: seconds since the epoch; None: no deadline.
        timeout_s: length of the whole wait, for messages.
        poll_s: seconds between reads after a change; without changes the interval grows.
        kill_command: command to send when a user kills the deferred task (`on_kill.kill_command`), or None.
    """

    wait_class: ClassVar[type[Wait]]

    def __init__(
        self,
        *,
        root: str,
        job_id: str,
        wait: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None = None,
        deadline_at: float | None = None,
        timeout_s: float = 0.0,
        poll_s: float = 5.0,
        kill_command: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.root, self.job_id = root, job_id
        self.storage_options = dict(storage_options or {})
        self.wait = dict(wait)
        self.deadline_at, self.timeout_s, self.poll_s = deadline_at, timeout_s, poll_s
        self.kill_command = dict(kill_command) if kill_command else None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, from which Airflow creates the same trigger again."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "root": self.root,
                "job_id": self.job_id,
                "wait": self.wait,
                "storage_options": self.storage_options,
                "deadline_at": self.deadline_at,
                "timeout_s": self.timeout_s,
                "poll_s": self.poll_s,
                "kill_command": self.kill_command,
            },
        )

    def client(self) -> JobClient:
        """Return a client of the job. Called in a thread, because opening a store may block."""
        return JobClient(self.root, self.job_id, self.storage_options)

    def job_wait(self) -> Wait:
        """Return the wait of this trigger."""
        arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in self.wait.items()}
        return self.wait_class(**arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Read until the condition holds, or can no longer hold."""
        began = time.monotonic()
        try:
            async with shared_job(self.root, self.job_id, self.storage_options) as job:
                event = {"wait": self.wait, "found": await job.first(_WaitObserver(self.job_wait(), self))}
        except TidegateError as error:
            event = {"wait": self.wait, **Failure.of(error).to_event()}
        if self.trigger_id is not None:  # a triggerer runs it, not `dag.test`
            await asyncio.sleep(max(0.0, began + CANCEL_GRACE_S - time.monotonic()))
        yield TriggerEvent(event)

    async def on_kill(self) -> None:
        """Send the command of the operator's kill policy, if any: a user ended the deferred task."""
        if self.kill_command is None:
            return
        if await sync_to_async(is_still_deferred)(self.task_instance):
            self.log.info(
                "job %s: another triggerer has taken over the wait, so the job gets no command, nothing to do",
                self.job_id,
            )
            return
        await asyncio.to_thread(self._send_kill_command, self.kill_command)

    def _send_kill_command(self, command: Mapping[str, Any]) -> None:
        send_kill_command(self.client(), command)


class TidegateStatusTrigger(JobWaitTrigger):
    """Waits for a job status (`StatusWait`)."""

    wait_class = StatusWait


class TidegateCommandTrigger(JobWaitTrigger):
    """Waits for the answer to a command (`CommandWait`)."""

    wait_class = CommandWait


class TidegateStopTrigger(JobWaitTrigger):
    """Waits for a job to stop (`StopWait`)."""

    wait_class = StopWait


class TidegateCancelTrigger(JobWaitTrigger):
    """Waits for a job to be cancelled (`CancelWait`)."""

    wait_class = CancelWait


class TidegateCheckpointTrigger(JobWaitTrigger):
    """Waits for a completed snapshot (`CheckpointWait`)."""

    wait_class = CheckpointWait


class TidegateStagedTrigger(JobWaitTrigger):
    """Waits for a checkpoint that waits for a verdict (`StagedWait`)."""

    wait_class = StagedWait


class TidegateCommitTrigger(JobWaitTrigger):
    """Waits for an approved checkpoint to be committed (`CommitWait`)."""

    wait_class = CommitWait


class TidegateEndOfDataTrigger(JobWaitTrigger):
    """Waits for sources to end, or to have played all (`EndOfDataWait`)."""

    wait_class = EndOfDataWait


class TidegateJobStatusTrigger(JobWaitTrigger):
    """Waits for a status of the job's newest submission (`JobStatusWait`)."""

    wait_class = JobStatusWait


class TidegateWatermarkTrigger(JobWaitTrigger):
    """Waits for event time to pass a point (`WatermarkWait`)."""

    wait_class = WatermarkWait


class TidegateSnapshotExpiryTrigger(JobWaitTrigger):
    """Waits for the newest snapshot to be close to its expiry (`SnapshotExpiryWait`)."""

    wait_class = SnapshotExpiryWait


TRIGGERS: Mapping[str, type[JobWaitTrigger]] = {
    trigger.wait_class.kind: trigger
    for trigger in (
        TidegateStatusTrigger,
        TidegateCommandTrigger,
        TidegateStopTrigger,
        TidegateCancelTrigger,
        TidegateCheckpointTrigger,
        TidegateEndOfDataTrigger,
        TidegateStagedTrigger,
        TidegateCommitTrigger,
        TidegateJobStatusTrigger,
        TidegateWatermarkTrigger,
        TidegateSnapshotExpiryTrigger,
    )
}


class TidegateSuperviseTrigger(JobWaitTrigger):
    """Waits until a supervised job has ended or makes no progress (`SuperviseWait`), or its driver is dead."""

    wait_class = SuperviseWait


class TidegateFirstCheckpointTrigger(JobWaitTrigger):
    """Waits for the first snapshot of a submission (`FirstCheckpointWait`)."""

    wait_class = FirstCheckpointWait


STEP_TRIGGERS: Mapping[str, type[JobWaitTrigger]] = {
    **TRIGGERS,
    **{trigger.wait_class.kind: trigger for trigger in (TidegateSuperviseTrigger, TidegateFirstCheckpointTrigger)},
}
"""Kind of a wait -> its trigger class."""
