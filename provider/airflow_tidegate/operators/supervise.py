"""Operator that keeps a job's driver alive within a budget, and fails when this is not enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import duration, optional_duration, whole_number
from airflow_tidegate.failures import AirflowFailException, Failure
from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import ensure_driver
from airflow_tidegate.launchers.connection_secrets import require_secrets
from airflow_tidegate.on_kill import KillPolicy, check_kill_policy, kill_command
from airflow_tidegate.operators.secrets_operator import SecretsOperator
from airflow_tidegate.operators.step_operator import MultiStepOperator, PendingWait
from airflow_tidegate.task_identity import issued_by
from airflow_tidegate.waits.job_waits import Payload, result_summary
from airflow_tidegate.waits.step_waits import SuperviseWait
from airflow_tidegate.waits.supervision_policy import (
    DriverObservation,
    SupervisionDecision,
    SupervisionLimits,
    decide_supervision,
    decide_unlaunched,
)
from airflow_tidegate.waits.watch import LAUNCH_GRACE_S, deadline
from tidegate.clock import parse_iso
from tidegate.errors import DriverLostError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.waiter import failure_error
from tidegate.jobs.launch.desired_state import read_desired, stop_requested_by
from tidegate.jobs.launches import local_driver_death
from tidegate.jobs.records import Launch, read_record
from tidegate.jobs.status import JobStatus, JobView


class TidegateSuperviseJobOperator(SecretsOperator, MultiStepOperator):
    """Watch a job to its end. Relaunch a driver that died, which resumes from the latest recovery point (S9.1).

    Succeeds when the job has ended, was stopped or was cancelled. Fails, without using its retries, when the job has
    failed permanently, when its driver died more often than the budget allows, or when the job makes no progress; a job
    without progress is left running. If another submission takes over (a restore, an upgrade), that one is supervised.
    A job is not relaunched if its driver died during a stop or cancel, or if `desired.json` says that it should stop:
    the task succeeds with a warning.

    The budget is counted from the launches in the job directory, so a retry of this task gets no new budget. XCom:
    `{"job_id", "spec", "generation", "status", "relaunches"}`.

    Args:
        max_relaunches: within `relaunch_window`, per submission; all launches except the first count.
        relaunch_window: period before the driver's death.
        no_progress_timeout: fail when for this long no checkpoint has completed and no source has read a record; or
            when for this long a driver gives no sign of life and cannot be relaunched, because its process exists or an
            agent launches none; None: never.
        on_kill: "keep_running", "savepoint_then_stop" or "cancel".
        timeout: how long to watch between two relaunches; None: as long as the job lives.
        deferrable: True: wait in the triggerer.
        secrets: see `SecretsOperator`; needed if the job was submitted with secrets. Without them the task fails at
            once, and not when the driver dies.
    """

    template_fields: Sequence[str] = (
        *SecretsOperator.template_fields,
        "max_relaunches",
        "relaunch_window",
        "no_progress_timeout",
        "kill_policy",
    )
    now: Callable[[], float] = staticmethod(time.time)
    """Wall clock, seconds since the epoch; replaced in tests."""

    def __init__(
        self,
        *,
        max_relaunches: int | str = 3,
        relaunch_window: timedelta | str = "1 h",
        no_progress_timeout: timedelta | str | None = "30 min",
        on_kill: KillPolicy = "keep_running",
        timeout: timedelta | str | None = None,
        poll_interval: timedelta | str = "5 s",
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, poll_interval=poll_interval, deferrable=deferrable, **kwargs)
        self.max_relaunches = max_relaunches
        self.relaunch_window = relaunch_window
        self.no_progress_timeout = no_progress_timeout
        self.kill_policy = on_kill

    def advance(
        self, client: JobClient, root: JobRoot, context: Any, found: Payload | None, failure: Failure | None
    ) -> PendingWait | Payload:
        """Relaunch, continue to watch, or end."""
        check_kill_policy(self.kill_policy, self.task_id)
        limits = SupervisionLimits(
            whole_number(self.max_relaunches, "max_relaunches", 0),
            duration(self.relaunch_window, "relaunch_window"),
            optional_duration(self.no_progress_timeout, "no_progress_timeout"),
        )
        self._kill_command = kill_command(self.kill_policy, context)
        if found is not None and found["action"] == "fail":
            raise self._page(found["why"], found["remedy"])
        if failure is not None and failure.code != DriverLostError.code:
            failure.end_task()
        view = client.view()
        if view.is_terminal:
            return self._ended(client, view)
        spec = client.spec(view.spec_number)
        # Not only before a relaunch, which may come after days: a missing secret is a mistake in the DAG.
        require_secrets(root, spec.secrets, self.secrets, master=spec.master, spark_conf=spec.spark_conf)
        if failure is not None:
            decision = decide_supervision(self._seen(client, view, failure.message), limits)
            if decision.action == "end":
                self.log.warning("job %s: %s; the driver is not relaunched, nothing to do", self.job_id, decision.why)
                return self._result(client, view)
            if decision.action == "fail":
                raise self._page(f"{decision.why}: {failure.message}", decision.remedy)
            if decision.action == "relaunch" and not self._relaunch(client, root, view, decision):
                stands = decide_unlaunched(self.now(), self._last_sign_s(client, view), limits)
                if stands.action == "fail":
                    raise self._page(f"{stands.why}: {failure.message}", stands.remedy)
        limit_s = limits.no_progress.total_seconds() if limits.no_progress else None
        timeout = self.wait_limit()
        wait = SuperviseWait(no_progress_s=limit_s, owner=issued_by(context))
        return PendingWait(wait, deadline(timeout), timeout.total_seconds() if timeout else 0.0)

    def _relaunch(self, client: JobClient, root: JobRoot, view: JobView, decision: SupervisionDecision) -> bool:
        """Relaunch a driver. Returns whether one was launched: not if its process exists, and not here if an agent
        launches.
        launches."""
        self.log.warning("job %s: the driver is dead, and is relaunched: %s", self.job_id, decision.why)
        before = len(client.launches())
        ensure_driver(client, client.spec(view.spec_number), root, self.secrets)
        return len(client.launches()) > before

    def _last_sign_s(self, client: JobClient, view: JobView) -> float:
        """Return the latest sign of life: a launch, a request to an agent, or a message; seconds since the epoch."""
        hint, desired = client.hint(view.generation), read_desired(client)
        signs = [launch.launched_at for launch in _launches(client, view.spec_number)[-1:]]
        signs += [decision.at for decision in client.decisions()[-1:]]
        signs += [hint.at] if hint is not None else []
        signs += [desired.at] if desired is not None and desired.spec == view.spec_number else []
        return max((parse_iso(at).timestamp() for at in signs), default=0.0)

    def _ended(self, client: JobClient, view: JobView) -> Payload:
        if view.status is JobStatus.FAILED:
            error = failure_error(view)
            raise self._page(str(error), "")
        return self._result(client, view)

    def _result(self, client: JobClient, view: JobView) -> Payload:
        return {**result_summary(view), "relaunches": max(0, len(_launches(client, view.spec_number)) - 1)}

    def _page(self, why: str, remedy: str) -> AirflowFailException:
        """Return the error for a failure that a retry cannot fix, so that a user must act."""
        return AirflowFailException(f"job {self.job_id}: {why}. {remedy}".rstrip(" ."))

    def _seen(self, client: JobClient, view: JobView, lost: str) -> DriverObservation:
        launches = _launches(client, view.spec_number)
        return DriverObservation(
            now_s=self.now(),
            lost=lost,
            is_starting=bool(launches) and self._is_starting(client, view, launches[-1]),
            meant_to_end_by=stop_requested_by(client, view.spec_number),
            launched_s=[parse_iso(launch.launched_at).timestamp() for launch in launches],
        )

    def _is_starting(self, client: JobClient, view: JobView, newest: Launch) -> bool:
        """Return whether the driver is still starting: it has not written its fence, which takes as long as a process
        start."""
        begun = any(
            d.kind == "fence" and (d.data["spec"], d.data["launch"]) == (newest.spec, newest.attempt)
            for d in client.decisions()
        )
        young = self.now() - parse_iso(newest.launched_at).timestamp() < LAUNCH_GRACE_S
        return (
            not begun
            and young
            and local_driver_death(client.store, client.layout, client.spec(view.spec_number).number) is None
        )


def _launches(client: JobClient, spec: int) -> list[Launch]:
    """Return the launches of one submission, oldest first."""
    paths = [client.layout.launch(number, attempt) for number, attempt in client.launches() if number == spec]
    return [read_record(client.store, path, Launch) for path in paths]
