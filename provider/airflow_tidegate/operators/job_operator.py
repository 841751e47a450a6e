"""Base classes of operators: JobOperator for one job; WaitingOperator sends a command, waits for it and returns an
XCom."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from airflow_tidegate.arguments import duration, optional_duration
from airflow_tidegate.failures import Failure, airflow_failures
from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID, JobRoot, TidegateHook
from airflow_tidegate.lineage import lineage_of
from airflow_tidegate.links import TidegateJobLink, TidegateSparkUiLink
from airflow_tidegate.on_kill import send_kill_command, trigger_supports_on_kill
from airflow_tidegate.triggers.job_triggers import STEP_TRIGGERS
from airflow_tidegate.version_compat import TRIGGER_TIMEOUT_MARGIN, TRIGGERS_SUPPORT_ON_KILL, deferrable_or_default
from airflow_tidegate.waits.job_waits import Payload, Wait
from airflow_tidegate.waits.watch import WaitRunner, deadline
from tidegate.errors import TidegateError, WaitTimeoutError
from tidegate.jobs.client.job_client import JobClient

NOT_KEPT_WHILE_DEFERRED = (
    "this task now waits in the triggerer. If a user ends the task there, the job does not get the command of on_kill "
    "(%s), because this version of Airflow does not notify triggers. If on_kill must work, use Airflow 3.3 or "
    "deferrable=False"
)
"""Message for the task log of an Airflow before 3.3. Its argument is the verb of the command that is not sent."""


class JobOperator(BaseOperator):
    """Base class of operators for one job.

    Args:
        job_id: the job; templated.
        tidegate_conn_id: connection of type `tidegate`.
        timeout: time limit of the whole wait, as timedelta or text such as "10 min"; None: no limit.
        poll_interval: between two reads of the job directory; for a deferred wait the first interval, which then grows.
        deferrable: wait in the triggerer and release the worker slot; None: as Airflow's setting `[operators]
            default_deferrable` says.
    """

    template_fields: Sequence[str] = ("job_id", "tidegate_conn_id", "timeout", "poll_interval")
    ui_color: str = "#dbe9ee"
    operator_extra_links = (TidegateJobLink(), TidegateSparkUiLink())
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    """Pause between two reads in a worker; replaced in tests."""

    def __init__(
        self,
        *,
        job_id: str,
        tidegate_conn_id: str = DEFAULT_CONN_ID,
        timeout: timedelta | str | None = "30 min",
        poll_interval: timedelta | str = "1 s",
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.tidegate_conn_id = tidegate_conn_id
        self.timeout = timeout
        self.poll_interval = poll_interval
        self.deferrable = deferrable_or_default(deferrable)
        self._kill_command: dict[str, Any] | None = None

    # ------------------------------------------------------------ methods for subclasses

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the XCom for the result of the wait."""
        return found

    def on_wait_timeout(self, client: JobClient, wait: Mapping[str, Any]) -> None:
        """Clean up after a wait that took too long; `wait` holds the fields of the wait."""

    # ------------------------------------------------------------ Airflow's entry points

    def on_kill(self) -> None:
        """Send the command of the kill policy, if any: the Airflow task was killed in a worker."""
        if self._kill_command is not None:
            send_kill_command(self.job_root().client(self.job_id), self._kill_command)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return for OpenLineage's provider where the job writes, and its newest snapshot; None if the job cannot be
        read."""
        try:
            return lineage_of(self.job_root().client(self.job_id))
        except (TidegateError, ImportError) as error:
            self.log.info(
                "job %s: its data sets are not reported to OpenLineage; the job is not affected: %s", self.job_id, error
            )
            return None

    def job_root(self) -> JobRoot:
        """Return the content of the connection."""
        return TidegateHook(self.tidegate_conn_id).get_conn()

    # ------------------------------------------------------------ internal

    def wait_limit(self) -> timedelta | None:
        """Return `timeout`, parsed. Raises OptionError."""
        return optional_duration(self.timeout, "timeout")

    def _defer(self, context: Any, root: JobRoot, watch: WaitRunner, limit_s: float | None, poll_s: float) -> None:
        kill_command = self._kill_command if trigger_supports_on_kill(context) else None
        trigger = STEP_TRIGGERS[watch.wait.kind](
            root=root.root,
            job_id=self.job_id,
            storage_options=root.storage_options,
            wait=watch.wait.fields(),
            deadline_at=watch.deadline_at,
            timeout_s=limit_s or 0.0,
            poll_s=poll_s,
            kill_command=kill_command,
        )
        if kill_command is not None and not TRIGGERS_SUPPORT_ON_KILL:
            self.log.warning(NOT_KEPT_WHILE_DEFERRED, kill_command["verb"])
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=None if limit_s is None else timedelta(seconds=limit_s) + TRIGGER_TIMEOUT_MARGIN,
        )

    def _done(self, client: JobClient, found: Payload) -> Payload:
        result = self.finish(client, found)
        self.log.info("job %s: %s", self.job_id, ", ".join(f"{k} {v}" for k, v in result.items() if v is not None))
        return result


class WaitingOperator(JobOperator):
    """Base class of operators that send one command to a job and wait once."""

    @abstractmethod
    def begin(self, client: JobClient, context: Any) -> Wait:
        """Send the command, idempotently, and return what to wait for. May set `_kill_command` for `on_kill`."""

    def execute(self, context: Any) -> Payload:
        """Send and wait. Raises AirflowFailException for failures that a retry cannot fix."""
        with airflow_failures():
            timeout, poll_s = self.wait_limit(), duration(self.poll_interval, "poll_interval").total_seconds()
            root = self.job_root()
            client = root.client(self.job_id)
            wait = self.begin(client, context)
            watch = WaitRunner(
                client,
                wait,
                deadline_at=deadline(timeout),
                timeout_s=timeout.total_seconds() if timeout else 0.0,
            )
            try:
                found = watch.poll()
                if found is None and self.deferrable:
                    self._defer(context, root, watch, timeout.total_seconds() if timeout else None, poll_s)
                if found is None:
                    self.sleep(poll_s)
                    found = watch.run(poll_s, self.sleep)
            except WaitTimeoutError:
                self.on_wait_timeout(client, wait.fields())
                raise
            return self._done(client, found)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Payload:
        """Continue with the trigger's event."""
        with airflow_failures():
            client = self.job_root().client(self.job_id)
            if "failure" in event:
                failure = Failure.from_event(event)
                if failure.code == WaitTimeoutError.code:
                    self.on_wait_timeout(client, event["wait"])
                failure.end_task()
            return self._done(client, dict(event["found"]))
