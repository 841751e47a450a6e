"""Operators that approve or reject staged checkpoints of a job with a commit gate (S7.8)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from airflow_tidegate.failures import airflow_failures
from airflow_tidegate.launchers.cli_process import commit_pending
from airflow_tidegate.operators.secrets_operator import SecretsOperator
from airflow_tidegate.operators.snapshots import CommandOperator
from airflow_tidegate.operators.task_commands import executed_verdict
from airflow_tidegate.sensors.checkpoint import checkpoint_number
from airflow_tidegate.task_identity import issued_by, make_command_id
from airflow_tidegate.waits.job_waits import CommandWait, CommitWait, Payload
from tidegate.errors import CommandRefusedError, OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.status import JobView

RejectThen = Literal["stop", "replay", "quarantine"]


class VerdictOperator(SecretsOperator, CommandOperator):
    """Base class: sends a verdict to the driver, or for a job that has ended runs a short process on the worker.

    The process records the verdict and commits approved output of the newest checkpoint, after a fence in the decision
    log. It may be killed and repeated at any point.
    """

    _asked_by = ""
    _verdict_id = ""

    def execute(self, context: Any) -> Payload:
        """Give the verdict, to a running job or on a job that has ended."""
        self._asked_by, self._verdict_id = issued_by(context), make_command_id(context, self.verb)
        with airflow_failures():
            client = self.job_root().client(self.job_id)
            arguments = self.command_arguments()
            view = client.view()
            if view.is_terminal:
                said = executed_verdict(client, context, self.verb)
                if said is not None:  # an earlier try gave the verdict; only the commit may be missing
                    arguments["checkpoint_id"] = said
                return self._done(client, self.commit_late(client, view, arguments))
        return super().execute(context)

    @abstractmethod
    def commit_late(self, client: JobClient, view: JobView, arguments: Mapping[str, Any]) -> Payload:
        """Give the verdict on a job that has ended. Returns what the driver's answer would contain."""

    def committer(self, *verdict: str) -> Payload:
        """Run `commit-pending` with the operator's `timeout`."""
        timeout = self.wait_limit()
        named = ("--id", self._verdict_id) if verdict else ()
        return commit_pending(
            self.job_root(),
            self.job_id,
            (*verdict, *named),
            asked_by=self._asked_by,
            timeout_s=None if timeout is None else timeout.total_seconds(),
            secrets=self.secrets,
        )


class TidegateCommitCheckpointOperator(VerdictOperator):
    """Approve a checkpoint, and with it all earlier waiting ones, and wait until every sink has committed.

    Works on a running job and on a job that has ended (FINISHED_COMMIT_PENDING, or stopped with outcome
    "commits_pending"). For a job that has ended, the worker's host needs the sinks' libraries and access to their
    systems. An approval is an entry of the decision log: it holds across restarts and restores, and cannot be revoked.
    A retry finds its own approval. A clear approves again, which changes nothing for the same checkpoint.
    XCom: `{"checkpoint_id", "committed"}`.

    Args:
        checkpoint_id: an id, or the XCom of a sensor, checkpoint or stop task; None: the newest that waits. Pass the
            checkpoint that was audited: a newer one may have been staged since.
    """

    template_fields: Sequence[str] = (*VerdictOperator.template_fields, "checkpoint_id")
    verb = "commit"
    wait_class: ClassVar[type[CommandWait]] = CommitWait

    def __init__(self, *, checkpoint_id: int | str | Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint_id = checkpoint_id

    def command_arguments(self) -> dict[str, Any]:
        """Return the checkpoint id."""
        return {"checkpoint_id": checkpoint_number(self.checkpoint_id, "checkpoint_id")}

    def commit_late(self, client: JobClient, view: JobView, arguments: Mapping[str, Any]) -> Payload:
        """Approve and commit. A retry after an approval only commits."""
        wanted = arguments["checkpoint_id"]
        if wanted is None:
            wanted = max(view.waiting or view.uncommitted, default=None)
        if wanted is None:
            raise CommandRefusedError(
                "no checkpoint of the job waits for approval",
                where=f"job {view.job_id}, {view.status}",
                remedy="Check in the job's decision log whether its output is committed or rejected already",
            )
        self.committer("--approve", str(wanted))
        return {"checkpoint_id": wanted, "committed": True}

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the committed checkpoint. If the job ended between approval and commit, commit it first."""
        if not found["committed"]:
            self.log.info(
                "job %s has ended before the commit of its output; a process of this Airflow worker commits it",
                self.job_id,
            )
            self.committer()
        return {"checkpoint_id": found["checkpoint_id"], "committed": True}


class TidegateRejectCheckpointOperator(VerdictOperator):
    """Reject a checkpoint and all later ones: their output is never committed (S7.8).

    XCom: `{"checkpoint_id", "rejected", "then"}`; `rejected`: ids of all rejected checkpoints. A retry finds its own
    verdict. A clear rejects again, which changes nothing for the same checkpoint. Also works on a job that has ended.

    Args:
        checkpoint_id: the oldest checkpoint to reject: an id, or the XCom of a sensor or checkpoint task.
        then: "stop": the job ends; "replay": the job restores the checkpoint before the rejected ones at once, and
            reads the input since then again (a job that has ended does so with its next restore); "quarantine": the job
            continues, and the staged output moves to the job's `quarantine/`.
        reason: text for users; stored in the decision log, and next to output in quarantine.
    """

    template_fields: Sequence[str] = (*VerdictOperator.template_fields, "checkpoint_id", "then", "reason")
    verb = "reject"

    def __init__(
        self,
        *,
        checkpoint_id: int | str | Mapping[str, Any],
        then: RejectThen = "stop",
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_id = checkpoint_id
        self.then = then
        self.reason = reason

    def command_arguments(self) -> dict[str, Any]:
        """Return the checkpoint id, the consequence, and the reason."""
        where = f"Airflow task {self.task_id}"
        if self.then not in ("stop", "replay", "quarantine"):
            raise OptionError(
                f"then={self.then!r} is unknown",
                where=where,
                remedy='Use "stop" (the job ends), "replay" (it restores the checkpoint before the rejected ones) or '
                '"quarantine" (it continues without the staged output)',
            )
        checkpoint_id = checkpoint_number(self.checkpoint_id, "checkpoint_id")
        if checkpoint_id is None:
            raise OptionError(
                "the task names no checkpoint to reject",
                where=where,
                remedy="Pass checkpoint_id=, such as the XCom of a sensor",
            )
        return {"checkpoint_id": checkpoint_id, "then": self.then, "reason": self.reason}

    def commit_late(self, client: JobClient, view: JobView, arguments: Mapping[str, Any]) -> Payload:
        """Reject on a job that has ended, so there is nothing to stop or replay. A retry reports what its first try
        rejected."""
        wanted = arguments["checkpoint_id"]
        flag = "--quarantine" if self.then == "quarantine" else "--reject"
        self.committer(flag, str(wanted), *(("--reason", self.reason) if self.reason else ()))
        gone = [c.checkpoint_id for c in client.view().completed if c.verdict in ("rejected", "quarantined")]
        return {"checkpoint_id": wanted, "rejected": [n for n in gone if n >= wanted], "then": self.then}

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the rejected checkpoints."""
        return {k: found.get(k) for k in ("checkpoint_id", "rejected", "then")}
