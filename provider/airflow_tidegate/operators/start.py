"""Operators that start a job and leave it running, or run a bounded job to its end."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import check_machine, ensure_driver
from airflow_tidegate.on_kill import KillPolicy, check_kill_policy, kill_command
from airflow_tidegate.operators.job_operator import WaitingOperator
from airflow_tidegate.operators.secrets_operator import SecretsOperator
from airflow_tidegate.task_identity import issued_by, make_command_id
from airflow_tidegate.waits.job_waits import StatusWait, Wait
from airflow_tidegate.waits.ownership import claim_ownership
from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RelativePaths, Spec

STARTED = ("RUNNING", "FINISHED", "FINISHED_COMMIT_PENDING", "STOPPED")
ENDED = ("FINISHED", "FINISHED_COMMIT_PENDING")


class SubmittingOperator(SecretsOperator, WaitingOperator):
    """Base class: submits a spec under a deterministic submission id and ensures that exactly one driver runs it.

    A retry finds its own spec and, if the driver still lives, that driver. A driver is launched only if there is none.
    A clear submits again, which is refused while the job is alive.

    Args:
        pipeline: `path/to/file.py:function` or `package.module:function`; a relative path is resolved against the
            folder of the DAG file, or against `code_root`.
        arguments: arguments of the function; JSON-able, secrets as references. Relative paths in them are resolved
            against the folder of the DAG file; a path outside the DAG bundle is refused.
        options: names and values of `JobOptions`; checked before the job is submitted.
        master: Spark master; default: the connection's.
        spark_conf: Spark properties; they override the connection's.
        code_root: folder to pin as a whole; default: the pipeline's file, or its top package.
        on_kill: what happens to the job when a user kills the Airflow task: "keep_running", "savepoint_then_stop" (it
            is suspended, and can be restored) or "cancel"; templated.
        secrets: see `SecretsOperator`.
    """

    template_fields: Sequence[str] = (
        *SecretsOperator.template_fields,
        "pipeline",
        "arguments",
        "options",
        "master",
        "spark_conf",
        "code_root",
        "kill_policy",
    )
    waits_for: ClassVar[tuple[str, ...]] = STARTED

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        options: JobOptions | Mapping[str, Any] | None = None,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        code_root: str | None = None,
        on_kill: KillPolicy = "keep_running",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.arguments = arguments
        self.options = options.to_mapping() if isinstance(options, JobOptions) else options
        self.master = master
        self.spark_conf = spark_conf
        self.code_root = code_root
        self.kill_policy = on_kill

    @abstractmethod
    def submit(self, client: JobClient, root: JobRoot, context: Any) -> Spec:
        """Write the spec, or find this task instance's own."""

    def begin(self, client: JobClient, context: Any) -> Wait:
        """Submit, launch a driver if needed, and wait for the status."""
        check_kill_policy(self.kill_policy, self.task_id)
        root = self.job_root()
        spec = self.submit(client, root, context)
        self._kill_command = kill_command(self.kill_policy, context, spec.number)
        owner = claim_ownership(client, spec, issued_by(context))
        after_generation = ensure_driver(client, spec, root, self.secrets)
        return StatusWait(spec=spec.number, statuses=self.waits_for, after_generation=after_generation, owner=owner)

    def is_submitted(self, client: JobClient, context: Any) -> bool:
        """Return whether an earlier try of this task instance has written the spec, so that its driver may live."""
        return any(spec.submission_id == make_command_id(context, "submit") for spec in client.specs())

    def pipeline_of(self, context: Any) -> str | None:
        """Return the pipeline; a relative path to a file next to the DAG file is made absolute."""
        if self.pipeline is None or self.code_root:
            return self.pipeline
        location, _, _ = self.pipeline.rpartition(":")
        fileloc = getattr(context.get("dag"), "fileloc", None)
        if not fileloc or not location.endswith(".py") or os.path.isabs(location):
            return self.pipeline
        return os.path.join(os.path.dirname(fileloc), self.pipeline)

    def relative_paths_of(self, context: Any) -> RelativePaths:
        """Return how to resolve relative paths of the pipeline and its arguments.

        They are resolved against the folder of the DAG file, and may not leave its bundle. The working directory of an
        Airflow task is temporary.
        """
        fileloc = getattr(context.get("dag"), "fileloc", None)
        if not fileloc:
            return RelativePaths(None)
        folder = os.path.dirname(os.path.abspath(fileloc))
        bundle = getattr(getattr(context["ti"], "bundle_instance", None), "path", None)
        return RelativePaths(folder, folder if bundle is None else os.path.abspath(bundle))


class TidegateStartJobOperator(SubmittingOperator):
    """Start a job; succeed when it is RUNNING.

    A retry whose driver has died resumes from the job's latest recovery point (S9.1). If a job with this id has ended,
    a new run of the task or a clear is refused unless `fresh` is true. XCom: `{"job_id", "spec", "generation",
    "status"}`.

    Args:
        fresh: start again even if a job with this id has ended, without its state: all input is read again. The option
            `if_exists` of each file sink decides what happens to existing output. Default: False.
    """

    def __init__(self, *, fresh: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fresh = fresh

    def submit(self, client: JobClient, root: JobRoot, context: Any) -> Spec:
        """Write a fresh submission: a new lineage (S9.3)."""
        if not self.pipeline:
            raise OptionError(
                "the task has no pipeline to start",
                where=f"Airflow task {self.task_id}",
                remedy='Set pipeline="path/to/file.py:build"',
            )
        options = JobOptions.from_mapping(self.options or {})
        master, spark_conf = self.master or root.master, {**root.spark_conf, **(self.spark_conf or {})}
        if not self.is_submitted(client, context):
            check_machine(root, master, spark_conf, options)
            self.check_secrets(root, {}, master, spark_conf)
        return client.submit(
            pipeline=self.pipeline_of(context),
            arguments=dict(self.arguments or {}),
            options=options,
            submission_id=make_command_id(context, "submit"),
            master=master,
            spark_conf=spark_conf,
            owner_dag=context["ti"].dag_id,
            submitted_by=issued_by(context),
            code_root=self.code_root,
            fresh=self.fresh,
            relative_paths=self.relative_paths_of(context),
            secrets=dict(self.secrets or {}),
        )


class TidegateRunJobOperator(TidegateStartJobOperator):
    """Run a bounded job; succeed when it has FINISHED.

    A retry resumes from the job's latest recovery point (S9.1). If a job with this id has ended, a new run of the task
    or a clear is refused unless `fresh` is true; then it reads its input from the beginning.
    XCom: `{"job_id", "spec", "generation", "status"}`.

    Args:
        on_kill: "cancel" by default: a killed run does not continue without supervision.
    """

    waits_for: ClassVar[tuple[str, ...]] = ENDED

    def __init__(self, *, on_kill: KillPolicy = "cancel", **kwargs: Any) -> None:
        super().__init__(on_kill=on_kill, **kwargs)
