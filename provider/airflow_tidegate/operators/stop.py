"""End a job: with a savepoint (suspend, drain), or without (cancel)."""

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

    `mode="suspend"` leaves open windows in the savepoint, to go on later; `mode="drain"` lets every window fire, as if
    the input had ended (S7.2). XCom: `{"outcome", "path", "mode", "checkpoint_id"}`; a job that came to its own end
    before the stop gives outcome "finished". A clear asks anew, of the job as it is then; of one that is stopped still,
    it finds how that was.

    The outcomes `committed` and `commits_pending` are success; the second one, and a stop that needed its second try,
    come with a warning in the Airflow task's log and more in the XCom ("uncommitted"; "asked_mode", "held_up_by",
    "reason"). Every other outcome fails the Airflow task, with the next action (docs/operating.md). A retry asks again.

    Args:
        mode: "suspend" or "drain".
        path: folder or URL that the savepoint's own folder is made in; default: the job's savepoint directory.
        timeout: how long the job may take to end, from when its driver takes the command, as timedelta or text such as
            "10 min"; None: the job's `stop_timeout`. The answer is waited for twice as long and 5 min more.
        on_timeout: what becomes then of the job, which the answer names the operators that held it up in:
            "keep_running": it goes on as before, and the Airflow task fails; "suspend": it is tried once more, without
            a drain, with as much time again; "cancel": it ends without a savepoint, its checkpoints stay, and the
            Airflow task fails.
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
        """Mode, place, time, and what follows when it is up."""
        if self.mode not in ("suspend", "drain"):
            raise OptionError(
                f"mode={self.mode!r} is unknown",
                where=f"Airflow task {self.task_id}",
                remedy='use "suspend" (go on later) or "drain" (fire every window)',
            )
        given = {"mode": self.mode, "path": self.path or None, "on_timeout": self.on_timeout}
        return stop_arguments({**given, "timeout": super().wait_limit()})

    def wait_limit(self) -> timedelta:
        """How long to wait for the answer."""
        given = super().wait_limit()
        if given is None:
            client = self.job_root().client(self.job_id)
            given = JobOptions.from_mapping(client.spec(client.view().spec_number).options).stop_timeout
        return answer_timeout(given)

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """How it ended; what there is to say besides goes to the log."""
        if words := stop_warning(found):
            self.log.warning("job %s: %s", self.job_id, words)
        more = ("uncommitted", "asked_mode", "held_up_by", "reason")
        facts = {k: found.get(k) for k in ("outcome", "path", "mode", "checkpoint_id")}
        return {**facts, **{k: found[k] for k in more if found.get(k) is not None}}


class TidegateCancelJobOperator(WaitingOperator):
    """End a job at once, without a savepoint; what was not committed is not. Succeeds also when the job is over.

    Its checkpoints stay, or go with the option `retention="delete"`; savepoints always stay. A clear asks anew, of the
    job as it is then. XCom: `{"job_id", "spec", "generation", "status"}`.
    """

    def begin(self, client: JobClient, context: Any) -> Wait:
        """Ask, or find the own question; a job whose driver is dead is cancelled in its place, behind a fence. A driver
        that is silent, but whose process is there, is asked: it reads the command when it goes on."""
        view = client.view()
        if view.is_active and not client.is_alive():
            with suppress(CommandRefusedError):
                client.cancel_dead(by=issued_by(context))
        return CancelWait(command_id=send_command(client, context, "cancel", {}))
