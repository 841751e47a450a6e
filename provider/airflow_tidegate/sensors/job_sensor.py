"""JobSensor: base class of sensors. Each poke reads the job directory once; or the triggerer waits."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_tidegate.failures import AirflowSensorTimeout, Failure, airflow_failures
from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID, TidegateHook
from airflow_tidegate.links import TidegateJobLink, TidegateSparkUiLink
from airflow_tidegate.triggers.job_triggers import TRIGGERS
from airflow_tidegate.version_compat import TRIGGER_TIMEOUT_MARGIN, deferrable_or_default
from airflow_tidegate.waits.job_waits import Payload, Wait
from airflow_tidegate.waits.watch import WaitRunner
from tidegate.errors import WaitTimeoutError


class JobSensor(BaseSensorOperator):
    """Base class of sensors for one job.

    If the job ends, or its driver dies, before the condition holds, the sensor fails at once, without a timeout.

    Args:
        job_id: the job; templated.
        tidegate_conn_id: connection of type `tidegate`.
        deferrable: wait in the triggerer and release the worker slot; None: as Airflow's setting `[operators]
            default_deferrable` says.
        poke_interval, timeout, mode, soft_fail, ...: Airflow's own; `poke_interval` defaults to 5 s.
    """

    template_fields: Sequence[str] = ("job_id", "tidegate_conn_id")
    operator_extra_links = (TidegateJobLink(), TidegateSparkUiLink())

    def __init__(
        self,
        *,
        job_id: str,
        tidegate_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        poke_interval: timedelta | float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.job_id = job_id
        self.tidegate_conn_id = tidegate_conn_id
        self.deferrable = deferrable_or_default(deferrable)
        self._watch: WaitRunner | None = None

    @abstractmethod
    def job_wait(self) -> Wait:
        """Return what to wait for, from rendered arguments. Raises OptionError."""

    def execute(self, context: Any) -> Any:
        """Poke, or defer."""
        if not self.deferrable:
            return super().execute(context)
        with airflow_failures():
            watch = self._new_watch(time.time() + self.timeout)
            found = watch.poll()
            if found is not None:
                return found
            root = TidegateHook(self.tidegate_conn_id).get_conn()
            self.defer(
                trigger=TRIGGERS[watch.wait.kind](
                    root=root.root,
                    job_id=self.job_id,
                    storage_options=root.storage_options,
                    wait=watch.wait.fields(),
                    deadline_at=watch.deadline_at,
                    timeout_s=float(self.timeout),
                    poll_s=float(self.poke_interval),
                ),
                method_name="execute_complete",
                timeout=timedelta(seconds=float(self.timeout)) + TRIGGER_TIMEOUT_MARGIN,
            )
        return None

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Payload:
        """Continue with the trigger's event."""
        if "failure" in event:
            failure = Failure.from_event(event)
            if failure.code == WaitTimeoutError.code:
                raise AirflowSensorTimeout(failure.message)
            failure.end_task()
        return dict(event["found"])

    def poke(self, context: Any) -> PokeReturnValue:
        """Read the job directory once."""
        with airflow_failures():
            if self._watch is None:
                self._watch = self._new_watch(None)
            found = self._watch.poll()
            if found is None and self.reschedule:
                self._watch.check_liveness_now()
            return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def _new_watch(self, deadline_at: float | None) -> WaitRunner:
        client = TidegateHook(self.tidegate_conn_id).get_client(self.job_id)
        return WaitRunner(client, self.job_wait(), deadline_at=deadline_at, timeout_s=float(self.timeout))
