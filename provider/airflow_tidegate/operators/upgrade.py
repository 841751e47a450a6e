"""Operator that gives a running job new code or options, and restores the old version if the new one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import duration, flag, optional_duration
from airflow_tidegate.failures import AirflowFailException, Failure
from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import check_machine, ensure_driver
from airflow_tidegate.launchers.connection_secrets import require_secrets
from airflow_tidegate.on_kill import check_kill_policy, kill_command
from airflow_tidegate.operators.start import STARTED, SubmittingOperator
from airflow_tidegate.operators.step_operator import MultiStepOperator, PendingWait
from airflow_tidegate.operators.task_commands import send_command
from airflow_tidegate.operators.upgrade_steps import UpgradeFacts, UpgradeStep, next_step
from airflow_tidegate.task_identity import issued_by, make_command_id
from airflow_tidegate.waits.job_waits import CancelWait, Payload, StatusWait, StopWait, Wait, result_summary
from airflow_tidegate.waits.step_waits import FirstCheckpointWait, first_snapshot
from airflow_tidegate.waits.watch import deadline
from tidegate.clock import parse_iso
from tidegate.errors import CommandRefusedError, DriverLostError, OptionError, TidegateError
from tidegate.jobs.artifacts.artifact import pack, resolve_pipeline
from tidegate.jobs.client import submission
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.stop_outcomes import answer_timeout, stop_arguments

END_LIMIT_S = 600.0
"""Time limit for ending the new version, seconds."""
WORTH_A_RETRY = ("store", "driver_lost", "timeout")
"""Error codes of a submission that do not show a fault of the new version."""


class TidegateUpgradeJobOperator(MultiStepOperator, SubmittingOperator):
    """Suspend a job, start its new version from that savepoint, and succeed at the new version's first completed
    checkpoint.

    If the new version completes none, the operator ends it, restores the savepoint with the old code, arguments and
    options, and fails with the reason.

    The new version is checked, as far as possible without running it, before the job is stopped. Until its first
    checkpoint has completed it has committed nothing, so the restore loses and repeats no row. For a job that was
    already suspended, the newest savepoint of that stop is used.

    Every step has an id of its own, and the job directory shows how far the upgrade is. A retry continues there, also
    with a rollback, and fails with the same message when the rollback is done. A clear upgrades the job as it is then.
    XCom: `{"job_id", "spec", "generation", "status", "upgraded_from", "savepoint", "checkpoint_id", "path"}`.

    Args:
        pipeline, arguments, options, master, spark_conf: of the new version; each replaces the old value as a whole;
            None: unchanged. At least one is required.
        first_checkpoint_timeout: time limit for the new version's first completed checkpoint, from its submission.
        stop_timeout: time limit for the suspend; None: the job's option `stop_timeout`. If the suspend fails, the job
            continues, and the task fails.
        allow_non_restored_state: the new version drops state that no operator restores (S5.5). A rollback does not.
        on_kill: "keep_running" by default: the job stays as the upgrade left it.
        timeout: time limit for the old version to run again after a rollback.
    """

    template_fields: Sequence[str] = (
        *SubmittingOperator.template_fields,
        "first_checkpoint_timeout",
        "stop_timeout",
        "allow_non_restored_state",
    )
    now: Callable[[], float] = staticmethod(time.time)
    """Wall clock, seconds since the epoch; replaced in tests."""

    def __init__(
        self,
        *,
        first_checkpoint_timeout: timedelta | str = "15 min",
        stop_timeout: timedelta | str | None = None,
        allow_non_restored_state: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.first_checkpoint_timeout = first_checkpoint_timeout
        self.stop_timeout = stop_timeout
        self.allow_non_restored_state = allow_non_restored_state

    def advance(
        self, client: JobClient, root: JobRoot, context: Any, found: Payload | None, failure: Failure | None
    ) -> PendingWait | Payload:
        """Do the next step. Raises AirflowFailException when the upgrade has ended without success."""
        check_kill_policy(self.kill_policy, self.task_id)
        lost = failure is not None and failure.code == DriverLostError.code
        facts = self._facts(client, context, lost=lost)
        step = next_step(facts)
        if failure is not None and not self._can_resume(client, context, step, lost=lost):
            failure.end_task()
        self.log.info("job %s: %s", self.job_id, step.value)
        self._kill_command = kill_command(self.kill_policy, context, facts.newest)
        match step:
            case UpgradeStep.SUSPEND:
                return self._suspend_old(client, context)
            case UpgradeStep.START_NEW:
                return self._start_new(client, root, context, facts)
            case UpgradeStep.AWAIT_NEW | UpgradeStep.AWAIT_OLD:
                return self._await_new(client, root, facts, step)
            case UpgradeStep.END_NEW:
                return self._end_new(client, context, facts)
            case UpgradeStep.RESUME_NEW:
                assert facts.new is not None
                self._submit_like(client, context, "again", facts.new, RestoreFrom("latest"))
            case UpgradeStep.RESTORE_OLD:
                back = RestoreFrom("savepoint", path=facts.savepoint)
                self._submit_like(client, context, "back", facts.before, back)
            case UpgradeStep.UPGRADED:
                return self._upgraded(client, facts)
            case UpgradeStep.ROLLED_BACK | UpgradeStep.OVER | UpgradeStep.DRAINED | UpgradeStep.TAKEN_OVER:
                raise self._failed(client, facts, step)
        return self.advance(client, root, context, None, None)

    def submit(self, client: JobClient, root: JobRoot, context: Any) -> Spec:
        """Submit the new version from the savepoint, or find its submission."""
        facts = self._facts(client, context, lost=False)
        allow = flag(self.allow_non_restored_state, "allow_non_restored_state")
        restore = RestoreFrom("savepoint", path=facts.savepoint, allow_non_restored_state=allow)
        return submission.submit(client, self._request(context, "new", client.spec(facts.before), restore))

    def check_arguments(self, like: Spec) -> None:
        """Check that the arguments differ from `like`. Raises OptionError."""
        given = (self.pipeline, self.arguments, self.options, self.master, self.spark_conf)
        if all(value is None for value in given):
            raise OptionError(
                "the new version of the job equals the old version",
                where=f"Airflow task {self.task_id}",
                remedy="Pass at least one of pipeline, arguments, options, master and spark_conf",
            )

    def new_options(self, like: Spec) -> JobOptions | None:
        """Return the new version's options; None: keep the options of `like`."""
        return None if self.options is None else JobOptions.from_mapping(self.options)

    # ------------------------------------------------------------ facts

    def _ids(self, context: Any) -> dict[str, str]:
        return {step: make_command_id(context, f"upgrade-{step}") for step in ("new", "again", "back", "end")}

    def _facts(self, client: JobClient, context: Any, *, lost: bool) -> UpgradeFacts:
        view, specs, ids = client.view(), client.specs(), self._ids(context)
        number = {spec.submission_id: spec.number for spec in specs}
        new, again, old = (number.get(ids[step]) for step in ("new", "again", "back"))
        own = [n for n in (new, again, old) if n is not None]
        facts = UpgradeFacts(view.spec_number, view.status, min(own) - 1 if own else view.spec_number)
        if new is None:
            stop = view.stop or {}
            path = stop.get("path") if old is None else _start_of(specs[old - 1])
            return replace(facts, old=old, savepoint=str(path or ""), drained=stop.get("mode") == "drain")
        has_checkpoint = first_snapshot(view, new) is not None
        late = lost or self.now() >= self._deadline_of(specs[new - 1])
        return replace(
            facts,
            new=again if again is not None else new,
            resumed=again is not None,
            old=old,
            savepoint=_start_of(specs[new - 1]) or "",
            has_checkpoint=has_checkpoint,
            given_up=client.command(ids["end"]) is not None or (late and not has_checkpoint),
        )

    def _deadline_of(self, spec: Spec) -> float:
        """Return the deadline of the new version's first checkpoint, seconds since the epoch."""
        limit = duration(self.first_checkpoint_timeout, "first_checkpoint_timeout")
        return parse_iso(spec.submitted_at).timestamp() + limit.total_seconds()

    # ------------------------------------------------------------ steps

    def _suspend_old(self, client: JobClient, context: Any) -> PendingWait:
        self._check_new(client, context)
        limit = optional_duration(self.stop_timeout, "stop_timeout")
        arguments = stop_arguments({"mode": "suspend", "timeout": limit})
        if limit is None:
            limit = JobOptions.from_mapping(client.spec(client.view().spec_number).options).stop_timeout
        wait_s = answer_timeout(limit)
        command_id = send_command(client, context, "stop", arguments, wait_s)
        return _pending(StopWait(command_id=command_id), wait_s)

    def _check_new(self, client: JobClient, context: Any) -> None:
        """Check everything that would be refused after the stop, before the job is stopped. Raises OptionError,
        PipelineError."""
        like = client.spec(client.view().spec_number)
        self.check_arguments(like)
        flag(self.allow_non_restored_state, "allow_non_restored_state")
        duration(self.first_checkpoint_timeout, "first_checkpoint_timeout")
        request = self._request(context, "new", like, RestoreFrom("latest"))
        submission.check_settings(client, request)
        conf = like.spark_conf if self.spark_conf is None else self.spark_conf
        options = request.options or JobOptions.from_mapping(like.options)
        check_machine(self.job_root(), self.master or like.master, conf, options, replaces=True)
        root = self.job_root()
        self.check_secrets(root, like.secrets, self.master or like.master, conf)
        # A rollback starts the old version, which needs its own secrets.
        require_secrets(root, like.secrets, self.secrets, master=like.master, spark_conf=like.spark_conf)
        if request.pipeline is not None:
            pack(resolve_pipeline(request.pipeline, self.code_root)[0])

    def _start_new(self, client: JobClient, root: JobRoot, context: Any, facts: UpgradeFacts) -> PendingWait | Payload:
        try:
            self.submit(client, root, context)
        except TidegateError as error:
            if error.code in WORTH_A_RETRY:
                raise
            self.log.error(
                "job %s: the new version cannot be started, so the old version is restored: %s", self.job_id, error
            )
            assert next_step(replace(facts, refused=True)) is UpgradeStep.RESTORE_OLD
            back = RestoreFrom("savepoint", path=facts.savepoint)
            self._submit_like(client, context, "back", facts.before, back)
        return self.advance(client, root, context, None, None)

    def _await_new(self, client: JobClient, root: JobRoot, facts: UpgradeFacts, step: UpgradeStep) -> PendingWait:
        number = facts.old if facts.old is not None else facts.new
        assert number is not None
        spec = client.spec(number)
        after = ensure_driver(client, spec, root, self.secrets)
        if step is UpgradeStep.AWAIT_OLD or facts.resumed:
            limit = self.wait_limit()
            return _pending(StatusWait(spec=number, statuses=STARTED, after_generation=after), limit)
        limit_s = duration(self.first_checkpoint_timeout, "first_checkpoint_timeout").total_seconds()
        return PendingWait(FirstCheckpointWait(spec=number, after_generation=after), self._deadline_of(spec), limit_s)

    def _end_new(self, client: JobClient, context: Any, facts: UpgradeFacts) -> PendingWait:
        """Cancel the new version through its driver, also if the driver is silent but its process exists. Fence a dead
        driver."""
        assert facts.new is not None
        command_id, is_fenced_off = self._ids(context)["end"], False
        if not client.is_alive():
            with suppress(CommandRefusedError):
                client.cancel_dead(by=issued_by(context))
                is_fenced_off = True
        if not is_fenced_off:
            client.send("cancel", {}, command_id=command_id, spec=facts.new, issued_by=issued_by(context))
        return _pending(CancelWait(command_id=command_id), timedelta(seconds=END_LIMIT_S))

    def _can_resume(self, client: JobClient, context: Any, step: UpgradeStep, *, lost: bool) -> bool:
        """Return whether the next step handles a failed wait: the new version's time is over, it failed, or a driver
        died that was to be ended.

        A user must handle all other failures: the job cannot be suspended or ended, or the old version does not run.
        """
        if step in (UpgradeStep.SUSPEND, UpgradeStep.AWAIT_NEW, UpgradeStep.AWAIT_OLD, UpgradeStep.OVER):
            return False
        return step is not UpgradeStep.END_NEW or lost or client.command(self._ids(context)["end"]) is None

    def on_wait_timeout(self, client: JobClient, wait: Mapping[str, Any]) -> None:
        """Withdraw a stop that was not answered in time: if the driver has not begun it, it never will (S9.4)."""
        command = client.command(str(wait["command_id"])) if "command_id" in wait else None
        if command is not None and command.verb == "stop":
            client.withdraw(command.command_id)

    def _request(self, context: Any, step: str, like: Spec, restore: RestoreFrom) -> submission.SubmissionRequest:
        """Return a request for the new version; values that are not set are copied from `like`."""
        return submission.SubmissionRequest(
            pipeline=self.pipeline_of(context),
            arguments=self.arguments,
            options=self.new_options(like),
            submission_id=self._ids(context)[step],
            master=self.master,
            spark_conf=self.spark_conf,
            restore=restore,
            owner_dag=context["ti"].dag_id,
            submitted_by=issued_by(context),
            code_root=self.code_root,
            relative_paths=self.relative_paths_of(context),
            like=like,
            secrets=self.secrets,
        )

    def _submit_like(self, client: JobClient, context: Any, step: str, number: int, restore: RestoreFrom) -> Spec:
        """Submit submission `number` again, unchanged."""
        request = self._request(context, step, client.spec(number), restore)
        as_it_was = replace(
            request, pipeline=None, arguments=None, options=None, master=None, spark_conf=None, secrets=None
        )
        return submission.submit(client, as_it_was)

    # ------------------------------------------------------------ outcomes

    def _upgraded(self, client: JobClient, facts: UpgradeFacts) -> Payload:
        view = client.view()
        assert facts.new is not None
        first = (
            first_snapshot(view, facts.new) or (first_snapshot(view, facts.new - 1) if facts.resumed else None) or {}
        )
        return {
            **result_summary(view),
            "upgraded_from": facts.before,
            "savepoint": facts.savepoint,
            "checkpoint_id": first.get("checkpoint_id"),
            "path": first.get("path"),
        }

    def _failed(self, client: JobClient, facts: UpgradeFacts, step: UpgradeStep) -> AirflowFailException:
        where = f"job {self.job_id}"
        if step is UpgradeStep.ROLLED_BACK:
            why = (
                f"its submission {facts.new} {_end_of(client, facts.new)}" if facts.new else "it could not be submitted"
            )
            return AirflowFailException(
                f"{where}: the new version completed no checkpoint: {why}. The old version is restored: submission "
                f"{facts.old} runs the old version from savepoint {facts.savepoint}; no row was lost or repeated. "
                "Fix the new version, then clear the task"
            )
        newest = client.spec(facts.newest)
        reasons = {
            UpgradeStep.OVER: f"the job is {facts.status} and was not suspended, so it cannot be upgraded. "
            "Restore the job, then clear the task",
            UpgradeStep.DRAINED: "the job was drained, so its windows fired early, and it cannot be upgraded. "
            "Restore the job with allow_drained=True",
            UpgradeStep.TAKEN_OVER: f"submission {facts.newest} by {newest.submitted_by} took over the job, "
            "so the upgrade ends and does nothing more",
        }
        return AirflowFailException(f"{where}: {reasons[step]}")


def _pending(wait: Wait, limit: timedelta | None) -> PendingWait:
    return PendingWait(wait, deadline(limit), limit.total_seconds() if limit is not None else 0.0)


def _start_of(spec: Spec) -> str | None:
    """Return the path of the snapshot that a submission restores."""
    return spec.restore.path if spec.restore is not None else None


def _end_of(client: JobClient, number: int) -> str:
    """Describe how an earlier submission ended, with its root cause."""
    own = [entry.data for entry in entries_by_submission(client.decisions()) if entry.spec == number]
    failure = next((str(data["message"]) for data in reversed(own) if "message" in data), "")
    status = next((str(data["status"]) for data in reversed(own) if "status" in data), "never ran")
    reason = next((str(data["reason"]) for data in reversed(own) if data.get("reason")), "")
    return ", ".join(text for text in (f"ended as {status}", failure or reason) if text)
