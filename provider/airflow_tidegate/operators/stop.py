"""Operators that end a job: with a savepoint (suspend, drain), or without (cancel)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

from airflow_tidegate.operators.job_operator import WaitingOperator
from airflow_tidegate.operators.snapshots import CommandOperator
from airflow_tidegate.operators.task_commands import send_command
from airflow_tidegate.task_identity import issued_by
from airflow_tidegate.waits.job_waits import CancelWait, Payload, StopWait, Wait
from tidegate.errors import CommandRefusedError, OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.stop_outcomes import OnTimeout, answer_timeout, stop_arguments, stop_warning

StopMode = Literal["suspend", "drain"]


class TidegateStopJobOperator(CommandOperator):
    """Stop a job with a savepoint; output that the savepoint covers is committed before the job ends (S7.5).

    `mode="suspend"` leaves open windows in the savepoint, so that the job can resume later. `mode="drain"` fires every
    window, as if the input had ended (S7.2). XCom: `{"outcome", "path", "mode", "checkpoint_id"}`. If the job ended by
    itself before the stop, the outcome is "finished". A clear sends a new stop to the job as it is then; for a job that
    is still stopped, it reports the earlier stop.

    The outcomes `committed` and `commits_pending` are success. `commits_pending`, and a stop that needed its second
    try, add a warning to the Airflow task's log and more keys to the XCom ("uncommitted"; "asked_mode", "held_up_by",
    "reason"). Every other outcome fails the Airflow task and names the next action (docs/operating.md). A retry stops
    again.

    Args:
        mode: "suspend" or "drain".
        path: folder or URL in which the savepoint's folder is created; default: the job's savepoint directory.
        timeout: time limit for the end of the job, from when its driver starts the command, as timedelta or text such
            as "10 min"; None: the job's `stop_timeout`. The task waits for the answer twice as long plus 5 min.
        on_timeout: what happens to the job after `timeout`; the answer names the operators that delayed the stop.
            "keep_running": it continues, and the Airflow task fails. "suspend": one more try, without a drain, with the
            same time limit. "cancel": it ends without a savepoint, its checkpoints stay, and the Airflow task fails.
    """

    template_fields: Sequence[str] = (*CommandOperator.template_fields, "mode", "path", "on_timeout")
    verb = "stop"
    wait_class = StopWait

    def __init__(
        self,
        *,
        mode: StopMode,
        path: str | None = None,
        timeout: timedelta | str | None = None,
        on_timeout: OnTimeout = "keep_running",
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.mode = mode
        self.path = path
        self.on_timeout = on_timeout

    def command_arguments(self) -> dict[str, Any]:
        """Return mode, place, time limit, and what happens after it."""
        if self.mode not in ("suspend", "drain"):
            raise OptionError(
                f"mode={self.mode!r} is unknown",
                where=f"Airflow task {self.task_id}",
                remedy='Use "suspend" (the job can resume later) or "drain" (every window fires)',
            )
        given = {"mode": self.mode, "path": self.path or None, "on_timeout": self.on_timeout}
        return stop_arguments({**given, "timeout": super().wait_limit()})

    def wait_limit(self) -> timedelta:
        """Return the time limit of the wait for the answer."""
        given = super().wait_limit()
        if given is None:
            client = self.job_root().client(self.job_id)
            given = JobOptions.from_mapping(client.spec(client.view().spec_number).options).stop_timeout
        return answer_timeout(given)

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return how the job ended; warnings go to the log."""
        if words := stop_warning(found):
            self.log.warning("job %s: %s", self.job_id, words)
        more = ("uncommitted", "asked_mode", "held_up_by", "reason")
        facts = {k: found.get(k) for k in ("outcome", "path", "mode", "checkpoint_id")}
        return {**facts, **{k: found[k] for k in more if found.get(k) is not None}}


class TidegateCancelJobOperator(WaitingOperator):
    """End a job at once, without a savepoint; uncommitted output is not committed. Also succeeds if the job has ended.

    Its checkpoints stay, or are deleted with the option `retention="delete"`; savepoints always stay. A clear sends a
    new cancel to the job as it is then. XCom: `{"job_id", "spec", "generation", "status"}`.
    """

    def begin(self, client: JobClient, context: Any) -> Wait:
        """Send the cancel, or find this task instance's own. If the driver is dead, cancel the job here, after a fence.

        A driver that is silent but whose process exists receives the command: it reads it when it continues.
        """
        view = client.view()
        if view.is_active and not client.is_alive():
            with suppress(CommandRefusedError):
                client.cancel_dead(by=issued_by(context))
        return CancelWait(command_id=send_command(client, context, "cancel", {}))
