"""End a job: with a savepoint (suspend, drain), or without (cancel)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from airflow_tidegate.identity import asked_by
from airflow_tidegate.operators.base import JobOperator
from airflow_tidegate.operators.commands import ask
from airflow_tidegate.operators.snapshots import CommandOperator
from airflow_tidegate.waits import CancelWait, Payload, StopWait, Wait
from tidegate.contract.client import JobClient
from tidegate.contract.errors import OptionError

StopMode = Literal["suspend", "drain"]


class TidegateStopJobOperator(CommandOperator):
    """Stop a job with a savepoint; output that the savepoint covers is committed before the job ends (S7.5).

    `mode="suspend"` leaves open windows in the savepoint, to go on later; `mode="drain"` lets every window fire, as if
    the input had ended (S7.2). XCom: `{"outcome", "path", "mode", "checkpoint_id"}`; a job that came to its own end
    before the stop gives outcome "finished". A clear asks anew, of the job as it is then; of one that is stopped still,
    it finds how that was.

    Args:
        mode: "suspend" or "drain".
        path: folder or URL that the savepoint's own folder is made in; default: the job's savepoint directory.
    """

    template_fields: Sequence[str] = (*CommandOperator.template_fields, "mode", "path")
    verb = "stop"
    wait_class = StopWait

    def __init__(self, *, mode: StopMode, path: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.path = path

    def command_arguments(self) -> dict[str, Any]:
        """Mode and place."""
        if self.mode not in ("suspend", "drain"):
            raise OptionError(
                f"mode={self.mode!r} is unknown",
                where=f"Airflow task {self.task_id}",
                remedy='use "suspend" (go on later) or "drain" (fire every window)',
            )
        return {"mode": self.mode, **({"path": self.path} if self.path else {})}

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """How it ended."""
        return {k: found.get(k) for k in ("outcome", "path", "mode", "checkpoint_id")}


class TidegateCancelJobOperator(JobOperator):
    """End a job at once, without a savepoint; what was not committed is not. Succeeds also when the job is over.

    A clear asks anew, of the job as it is then. XCom: `{"job_id", "spec", "generation", "status"}`.
    """

    def begin(self, client: JobClient, context: Any) -> Wait:
        """Ask, or find the own question; a job whose driver is dead is cancelled in its place, behind a fence."""
        view = client.view()
        if view.is_active and not client.is_alive():
            client.cancel_dead(by=asked_by(context))
        return CancelWait(command_id=ask(client, context, "cancel", {}))
