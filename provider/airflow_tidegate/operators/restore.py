"""Operator that resumes a job from a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import flag, optional_duration
from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import check_machine
from airflow_tidegate.operators.start import SubmittingOperator
from airflow_tidegate.task_identity import issued_by, make_command_id
from tidegate.errors import JobNotFoundError, OptionError
from tidegate.jobs.client import submission
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import job_remedy
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom, Spec


class TidegateRestoreJobOperator(SubmittingOperator):
    """Restore a job; succeed when it is RUNNING.

    Arguments that are not set are copied from the last submission, including its pinned code: a restore runs the
    submitted code, not the current file. XCom: `{"job_id", "spec", "generation", "status"}`.

    A retry continues with its own submission. A clear submits again, which is refused while the job is alive. It
    restores what `from_` means at that time: "latest" is then the newest snapshot of the job. With a named checkpoint
    or savepoint, the job is restored to it again, and later work is discarded (`on_committed_after`).

    Args:
        from_: "latest" (of the job's lineage), a checkpoint id, a savepoint's path or URL, or the XCom of a savepoint,
            checkpoint or stop task, or of a checkpoint sensor (a mapping with "path" or "checkpoint_id").
        allow_non_restored_state: drop state without an operator in the pipeline instead of refusing it (S5.5).
        on_committed_after: if output was committed after the snapshot: "refuse"; "accept_duplicates": its rows are
            written again; "rewind": sinks delete it, and the driver refuses if a sink does not support this (S9.3).
        allow_drained: restore a drain's savepoint, whose windows fired early and emit again (S7.5).
        claim_mode: for a named snapshot: "no_claim": a savepoint stays; "claim": the job owns it, may share its files,
            and deletes it, also a savepoint, when it is no longer needed (S7.4).
        max_snapshot_age: timedelta or text such as "6 h": if the snapshot completed longer ago, the task fails and
            nothing is submitted; None: any age. A retry that finds its own submission continues with it.
        pipeline, arguments, options, master, spark_conf, secrets: as for a start.
    """

    template_fields: Sequence[str] = (
        *SubmittingOperator.template_fields,
        "from_",
        "allow_non_restored_state",
        "on_committed_after",
        "allow_drained",
        "claim_mode",
        "max_snapshot_age",
    )

    def __init__(
        self,
        *,
        from_: str | int | Mapping[str, Any] = "latest",
        allow_non_restored_state: bool | str = False,
        on_committed_after: str = "refuse",
        allow_drained: bool | str = False,
        claim_mode: str = "no_claim",
        max_snapshot_age: timedelta | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_ = from_
        self.allow_non_restored_state = allow_non_restored_state
        self.on_committed_after = on_committed_after
        self.allow_drained = allow_drained
        self.claim_mode = claim_mode
        self.max_snapshot_age = max_snapshot_age

    def submit(self, client: JobClient, root: JobRoot, context: Any) -> Spec:
        """Write a submission that names its snapshot."""
        if not client.specs():
            raise JobNotFoundError(
                "the job to restore does not exist",
                where=f"job {client.job_id} under {client.root}",
                remedy=job_remedy(client.store, client.job_id, "Start the job first, or correct the job id"),
            )
        request = submission.SubmissionRequest(
            pipeline=self.pipeline_of(context),
            arguments=self.arguments,
            options=None if self.options is None else JobOptions.from_mapping(self.options),
            submission_id=make_command_id(context, "submit"),
            master=self.master,
            spark_conf=self.spark_conf,
            restore=restore_from(
                self.from_,
                allow_non_restored_state=flag(self.allow_non_restored_state, "allow_non_restored_state"),
                on_committed_after=self.on_committed_after,
                allow_drained=flag(self.allow_drained, "allow_drained"),
                claim_mode=self.claim_mode,
            ),
            owner_dag=context["ti"].dag_id,
            submitted_by=issued_by(context),
            code_root=self.code_root,
            relative_paths=self.relative_paths_of(context),
            max_snapshot_age=optional_duration(self.max_snapshot_age, "max_snapshot_age"),
            secrets=self.secrets,
        )
        if not self.is_submitted(client, context):
            before = client.spec(client.view().followed)
            given = before.spark_conf if self.spark_conf is None else self.spark_conf
            options = request.options or JobOptions.from_mapping(before.options)
            check_machine(root, self.master or before.master, given, options)
            self.check_secrets(root, before.secrets, self.master or before.master, given)
        return submission.submit(client, request)


def restore_from(
    value: Any,
    *,
    allow_non_restored_state: bool,
    on_committed_after: str,
    allow_drained: bool = False,
    claim_mode: str = "no_claim",
) -> RestoreFrom:
    """Parse `from_`. Raises OptionError if it is empty, or a mapping with neither path nor id."""
    if isinstance(value, Mapping):
        value = value.get("path") or value.get("checkpoint_id")
    text = str(value).strip() if value is not None else ""
    if not text or text == "None":
        raise OptionError(
            "the snapshot to restore is missing",
            where="argument from_",
            remedy='Use "latest", a checkpoint id, a savepoint path, or the XCom of a savepoint or stop task',
        )
    rest: dict[str, Any] = {
        "allow_non_restored_state": allow_non_restored_state,
        "on_committed_after": on_committed_after,
        "allow_drained": allow_drained,
        "claim_mode": claim_mode,
    }
    if text == "latest":
        return RestoreFrom(kind="latest", path=None, checkpoint_id=None, **rest)
    if text.isdecimal():
        return RestoreFrom(kind="checkpoint", path=None, checkpoint_id=int(text), **rest)
    return RestoreFrom(kind="savepoint", path=text, checkpoint_id=None, **rest)
