"""Triggers: the same waits as in a worker, held by the triggerer.

A trigger is its arguments and nothing more, so it survives a restart of the triggerer; the deadline is a point on the
wall clock for the same reason. Store reads run in threads, never on the event loop. `cleanup` leaves the job alone:
it also runs when a triggerer restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tidegate.failures import Failure
from airflow_tidegate.waits import (
    CancelWait,
    CheckpointWait,
    CommandWait,
    CommitWait,
    EndOfDataWait,
    StagedWait,
    StatusWait,
    StopWait,
    Wait,
)
from airflow_tidegate.watch import Watch
from tidegate.contract.client import JobClient
from tidegate.contract.errors import TidegateError

STORE_RETRIES = 5
"""Looks in a row that may fail on the store before the trigger gives up."""


class JobWaitTrigger(BaseTrigger):
    """What all waiting triggers share.

    Fires one event: `{"wait": {...}, "found": {...}}`, or `{"wait": {...}, "failure": {...}}` as `Failure.to_event`
    makes it. The wait comes back with it, because not every way to resume a deferred task passes arguments of its own.

    Args:
        root: job root.
        job_id: the job.
        storage_options: fsspec options; secrets as references.
        wait: keyword arguments of the wait (`Wait.fields`).
        deadline_at: seconds since the epoch; None: wait for ever.
        timeout_s: length of the whole wait, for messages.
        poll_s: seconds between looks.
        kill_command: what to send when a user kills the deferred task (`{"verb", "command_id", "issued_by"}`), or None.
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
        """Class path and the arguments that make the same trigger again."""
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
        """A client of the job; made in a thread, because opening a store may block."""
        return JobClient(self.root, self.job_id, self.storage_options)

    def question(self) -> Wait:
        """The wait this trigger asks."""
        arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in self.wait.items()}
        return self.wait_class(**arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until found, or until it cannot come any more."""
        try:
            client = await asyncio.to_thread(self.client)
            watch = Watch(client, self.question(), deadline_at=self.deadline_at, timeout_s=self.timeout_s)
            found = None
            store_failures = 0
            while found is None:
                try:
                    found = await asyncio.to_thread(watch.step)
                    store_failures = 0
                except TidegateError as error:
                    store_failures += 1
                    if error.code != "store" or store_failures > STORE_RETRIES:
                        raise
                if found is None:
                    await asyncio.sleep(self.poll_s)
        except TidegateError as error:
            yield TriggerEvent({"wait": self.wait, **Failure.of(error).to_event()})
        else:
            yield TriggerEvent({"wait": self.wait, "found": found})

    async def on_kill(self) -> None:
        """A user ended the deferred task: send the command that the operator's policy asks for, if any."""
        if self.kill_command is not None:
            await asyncio.to_thread(self._send_kill_command, self.kill_command)

    def _send_kill_command(self, command: Mapping[str, Any]) -> None:
        client = self.client()
        if command["verb"] == "withdraw":
            client.withdraw(command["command_id"], by=command["issued_by"])
        else:
            client.send(command["verb"], command_id=command["command_id"], issued_by=command["issued_by"])


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
    )
}
