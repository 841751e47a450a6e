"""Operator that forks a job: it processes a part of its input from one of its snapshots, next to the running job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import flag, optional_duration
from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import check_machine
from airflow_tidegate.on_kill import KillPolicy
from airflow_tidegate.operators.restore import restore_from
from airflow_tidegate.operators.start import ENDED, SubmittingOperator
from airflow_tidegate.task_identity import issued_by, make_command_id
from airflow_tidegate.waits.job_waits import Payload
from tidegate.jobs.client import fork, submission
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec


class TidegateForkJobOperator(SubmittingOperator):
    """Run a bounded job from another job's snapshot, and succeed when it has FINISHED: a backfill.

    The original is only read: the fork commits none of its transactions and has a lineage of its own (S7.4). Before
    anything runs, the fork's driver refuses, by name, an unbounded source and a sink that writes to the same place as a
    sink of the original. Original and fork use the same connection.

    A retry finds its own submission and resumes from the fork's latest checkpoint, or from the original's snapshot if
    there is none yet. If a fork with this id has ended, a clear or a new run of the task is refused unless `fresh` is
    true; then it forks again, with a new lineage. XCom:
    `{"job_id", "spec", "generation", "status", "fork_of", "path"}`; `path`: of the original's snapshot.

    Args:
        job_id: of the fork.
        from_job: id of the original.
        from_: as for a restore, but of the original: "latest", a checkpoint id, a savepoint's path or URL, or an XCom.
            Prefer a savepoint: checkpoints are deleted when the original retains newer ones.
        arguments: override the original's.
        options: replace the original's, as a whole.
        pipeline: code that replaces the original's; without it, `arguments` must make the difference.
        allow_non_restored_state, allow_drained: as for a restore. A source whose uid is not in the snapshot starts at
            its beginning. The state of a removed source needs `allow_non_restored_state`.
        max_snapshot_age: as for a restore, for the original's snapshot; a retry that finds its own fork continues it.
        fresh: fork again even if a job with this id has ended, without its state. The option `if_exists` of each file
            sink decides what happens to existing output. Default: False.
        on_kill: "cancel" by default: a killed backfill does not continue without supervision.
    """

    template_fields: Sequence[str] = (
        *SubmittingOperator.template_fields,
        "from_job",
        "from_",
        "allow_non_restored_state",
        "allow_drained",
        "max_snapshot_age",
    )
    waits_for = ENDED

    def __init__(
        self,
        *,
        from_job: str,
        from_: str | int | Mapping[str, Any] = "latest",
        allow_non_restored_state: bool | str = False,
        allow_drained: bool | str = False,
        max_snapshot_age: timedelta | str | None = None,
        fresh: bool = False,
        on_kill: KillPolicy = "cancel",
        **kwargs: Any,
    ) -> None:
        super().__init__(on_kill=on_kill, **kwargs)
        self.from_job = from_job
        self.from_ = from_
        self.allow_non_restored_state = allow_non_restored_state
        self.allow_drained = allow_drained
        self.max_snapshot_age = max_snapshot_age
        self.fresh = fresh

    def submit(self, client: JobClient, root: JobRoot, context: Any) -> Spec:
        """Submit a fork of the original's snapshot."""
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
                on_committed_after="refuse",
                allow_drained=flag(self.allow_drained, "allow_drained"),
            ),
            owner_dag=context["ti"].dag_id,
            submitted_by=issued_by(context),
            code_root=self.code_root,
            relative_paths=self.relative_paths_of(context),
            max_snapshot_age=optional_duration(self.max_snapshot_age, "max_snapshot_age"),
            fresh=self.fresh,
            secrets=self.secrets,
        )
        original = root.client(self.from_job)
        if not self.is_submitted(client, context) and request.restore is not None:
            like = fork.find_origin(original, request.restore).spec
            given = like.spark_conf if self.spark_conf is None else self.spark_conf
            options = request.options or JobOptions.from_mapping(like.options)
            check_machine(root, self.master or like.master, given, options)
            self.check_secrets(root, like.secrets, self.master or like.master, given)
        return fork.fork(client, original, request)

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the XCom with the original and the snapshot."""
        restore = client.spec(found["spec"]).restore
        return {
            **found,
            "fork_of": restore.fork_of if restore is not None else None,
            "path": restore.path if restore is not None else None,
        }
