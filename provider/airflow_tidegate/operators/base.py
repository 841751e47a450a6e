"""What all operators share: ask, wait in the worker or in the triggerer, give an XCom."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from airflow_tidegate.failures import Failure, airflow_failures
from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID, JobRoot, TidegateHook
from airflow_tidegate.triggers.waits import TRIGGERS
from airflow_tidegate.waits import Payload, Wait
from airflow_tidegate.watch import Watch, deadline
from tidegate.contract.client import JobClient
from tidegate.contract.errors import OptionError, WaitTimeoutError
from tidegate.contract.options import parse_duration

TRIGGER_SLACK = timedelta(minutes=2)
"""Airflow's own timeout of a deferral lies this much behind ours, so that ours, with its message, comes first."""


class JobOperator(BaseOperator):
    """One job, one question, one wait. Not used by itself.

    Args:
        job_id: the job; templated.
        tidegate_conn_id: connection of type `tidegate`.
        timeout: how long to wait in all, as timedelta or text such as "10 min"; None: for ever.
        poll_interval: between two looks at the job directory.
        deferrable: wait in the triggerer and give the worker slot back.
    """

    template_fields: Sequence[str] = ("job_id", "tidegate_conn_id", "timeout")
    ui_color: str = "#dbe9ee"
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    """Between two looks in a worker; replaced in tests."""

    def __init__(
        self,
        *,
        job_id: str,
        tidegate_conn_id: str = DEFAULT_CONN_ID,
        timeout: timedelta | str | None = "30 min",
        poll_interval: timedelta | str = "1 s",
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.tidegate_conn_id = tidegate_conn_id
        self.timeout = timeout
        self.poll_interval = poll_interval
        self.deferrable = deferrable
        self._kill_command: dict[str, Any] | None = None

    # ------------------------------------------------------------ what a verb fills in

    @abstractmethod
    def begin(self, client: JobClient, context: Any) -> Wait:
        """Ask, idempotently, and say what to wait for. May set `_kill_command` for `on_kill`."""

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """The XCom, from what was found."""
        return found

    def gave_up(self, client: JobClient, wait: Mapping[str, Any]) -> None:
        """The wait, given by its fields, took too long: take back what can be taken back."""

    # ------------------------------------------------------------ Airflow's entry points

    def execute(self, context: Any) -> Payload:
        """Ask and wait. Raises AirflowFailException for what no retry can mend."""
        with airflow_failures():
            timeout, poll_s = self.wait_limit(), duration(self.poll_interval, "poll_interval").total_seconds()
            root = self.job_root()
            client = root.client(self.job_id)
            wait = self.begin(client, context)
            watch = Watch(
                client,
                wait,
                deadline_at=deadline(timeout),
                timeout_s=timeout.total_seconds() if timeout else 0.0,
            )
            try:
                found = watch.step()
                if found is None and self.deferrable:
                    self._defer(root, watch, timeout, poll_s)
                if found is None:
                    self.sleep(poll_s)
                    found = watch.run(poll_s, self.sleep)
            except WaitTimeoutError:
                self.gave_up(client, wait.fields())
                raise
            return self._done(client, found)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Payload:
        """Called with the trigger's event."""
        with airflow_failures():
            client = self.job_root().client(self.job_id)
            if "failure" in event:
                failure = Failure.from_event(event)
                if failure.code == WaitTimeoutError.code:
                    self.gave_up(client, event["wait"])
                failure.end_task()
            return self._done(client, dict(event["found"]))

    def on_kill(self) -> None:
        """The Airflow task was killed in a worker: send the command its policy asks for, if any."""
        command = self._kill_command
        if command is None:
            return
        client = self.job_root().client(self.job_id)
        if command["verb"] == "withdraw":
            client.withdraw(command["command_id"], by=command["issued_by"])
        else:
            client.send(command["verb"], command_id=command["command_id"], issued_by=command["issued_by"])

    def job_root(self) -> JobRoot:
        """What the connection says."""
        return TidegateHook(self.tidegate_conn_id).get_conn()

    # ------------------------------------------------------------ inside

    def wait_limit(self) -> timedelta | None:
        """`timeout`, parsed. Raises OptionError."""
        return None if self.timeout in (None, "", "None") else duration(self.timeout, "timeout")

    def _defer(self, root: JobRoot, watch: Watch, timeout: timedelta | None, poll_s: float) -> None:
        trigger = TRIGGERS[watch.wait.kind](
            root=root.root,
            job_id=self.job_id,
            storage_options=root.storage_options,
            wait=watch.wait.fields(),
            deadline_at=watch.deadline_at,
            timeout_s=timeout.total_seconds() if timeout else 0.0,
            poll_s=poll_s,
            kill_command=self._kill_command,
        )
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=None if timeout is None else timeout + TRIGGER_SLACK,
        )

    def _done(self, client: JobClient, found: Payload) -> Payload:
        result = self.finish(client, found)
        self.log.info("job %s: %s", self.job_id, ", ".join(f"{k} {v}" for k, v in result.items() if v is not None))
        return result


def duration(value: Any, name: str) -> timedelta:
    """`value` as a timedelta. Raises OptionError naming the argument; bare numbers are refused."""
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except OptionError as error:
        raise OptionError(error.what, where=f"argument {name}", cause=error.cause, remedy=error.remedy) from None
