"""Operators with several steps and a wait between them, in a worker or in the triggerer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tidegate.arguments import duration
from airflow_tidegate.failures import Failure, airflow_failures
from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.operators.job_operator import JobOperator
from airflow_tidegate.waits.job_waits import Payload, Wait
from airflow_tidegate.waits.watch import WaitRunner
from tidegate.errors import TidegateError, WaitTimeoutError
from tidegate.jobs.client.job_client import JobClient


@dataclass(frozen=True)
class PendingWait:
    """A wait between two steps.

    Attributes:
        wait: the wait.
        deadline_at: seconds since the epoch; None: no deadline.
        limit_s: length of the whole wait, for messages.
    """

    wait: Wait
    deadline_at: float | None = None
    limit_s: float = 0.0


class MultiStepOperator(JobOperator):
    """Base class: runs one step after the other.

    Before every step, the current position is derived from the job directory. So a retry, or a worker that a trigger
    resumes the task in, continues where another one stopped.
    """

    @abstractmethod
    def advance(
        self, client: JobClient, root: JobRoot, context: Any, found: Payload | None, failure: Failure | None
    ) -> PendingWait | Payload:
        """Do the next step, idempotently. Returns what to wait for, or the XCom at the end.

        Args:
            found: result of the last wait; None: there was no wait, or it failed.
            failure: why the wait failed; if no step can handle it, end the task with it (`Failure.end_task`).
        """

    def execute(self, context: Any) -> Payload:
        """Start from the current position."""
        return self._resume(context, None, None)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Payload:
        """Continue with the trigger's event."""
        failure = Failure.from_event(event) if "failure" in event else None
        if failure is not None and failure.code == WaitTimeoutError.code:
            with airflow_failures():
                self.on_wait_timeout(self.job_root().client(self.job_id), event["wait"])
        return self._resume(context, None if failure is not None else dict(event["found"]), failure)

    def _resume(self, context: Any, found: Payload | None, failure: Failure | None) -> Payload:
        with airflow_failures():
            root, poll_s = self.job_root(), duration(self.poll_interval, "poll_interval").total_seconds()
            client = root.client(self.job_id)
            while True:
                step = self.advance(client, root, context, found, failure)
                if not isinstance(step, PendingWait):
                    return self._done(client, step)
                watch = WaitRunner(client, step.wait, deadline_at=step.deadline_at, timeout_s=step.limit_s)
                found = failure = None
                try:
                    found = watch.poll()
                    if found is None and self.deferrable:
                        limit_s = step.limit_s if step.deadline_at is not None else None
                        self._defer(context, root, watch, limit_s, poll_s)
                    if found is None:
                        self.sleep(poll_s)
                        found = watch.run(poll_s, self.sleep)
                except TidegateError as error:
                    if error.code == WaitTimeoutError.code:
                        self.on_wait_timeout(client, step.wait.fields())
                    failure = Failure.of(error)
