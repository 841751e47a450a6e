"""`JobClient`: everything that the command line, Airflow and programs do with a job goes through its job directory
here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

from tidegate.clock import iso
from tidegate.errors import (
    AlreadyExistsError,
    CommandRefusedError,
    OptionError,
    RecordError,
)
from tidegate.jobs.client import submission
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.client.staged_data import StagedData, staged_data
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import (
    Command,
    Owner,
    RelativePaths,
    RestoreFrom,
    Spec,
    Verb,
    Withdrawn,
    encode,
)
from tidegate.jobs.status import JobView
from tidegate.jobs.stop_outcomes import stop_arguments

VERBS: tuple[str, ...] = ("checkpoint", "savepoint", "stop", "cancel", "commit", "reject")


class JobClient(JobDirectory):
    """One job below one root: everything that `JobDirectory` reads and waits for, and submissions and commands. Blocks
    on the store; not for event loops. Cheap to create; not safe to share between threads."""

    # ------------------------------------------------------------ submissions

    def submit(
        self,
        *,
        pipeline: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        options: JobOptions | Mapping[str, Any] | None = None,
        submission_id: str | None = None,
        master: str | None = None,
        spark_conf: Mapping[str, Any] | None = None,
        restore: RestoreFrom | None = None,
        owner_dag: str | None = None,
        submitted_by: str = "cli",
        code_root: str | None = None,
        fresh: bool = False,
        relative_paths: RelativePaths | None = None,
    ) -> Spec:
        """Create a submission: the job directory then says what is to run; `jobs.launch` starts it.

        Args:
            pipeline: `path/to/file.py:function` or `package.module:function`, pinned now. With a restore, what is None
                of code, arguments, options, master and Spark settings is as in the submission before.
            arguments: JSON values for the function; secrets as references. options: see `JobOptions`.
            submission_id: submitting again under one gives the existing spec, whatever else is given; None: a new one.
            master: Spark master URL; None: local[*]. spark_conf: Spark settings; secrets as references.
            restore: what to start from; None: fresh, in a lineage of its own.
            owner_dag: Airflow DAG that owns the job.
            submitted_by: for people.
            code_root: folder to pin as a whole.
            fresh: start although the job has had a submission, without its state; `if_exists` of file sinks says what
                happens to output. Without it such a start is refused.
            relative_paths: see `submission.SubmissionRequest`.

        Raises:
            OptionError: a wrong option, or a secret in plain text.
            PipelineError: the pipeline's file or module is not there.
            JobExistsError: the job is active; or it is over, and neither `restore` nor `fresh` is given.
            SnapshotError: nothing to restore.
            StoreError: the root does not work.
        """
        if options is not None and not isinstance(options, JobOptions):
            options = JobOptions.from_mapping(options)
        request = submission.SubmissionRequest(
            pipeline=pipeline,
            arguments=arguments,
            options=options,
            master=master,
            spark_conf=spark_conf,
            restore=restore,
            code_root=code_root,
            owner_dag=owner_dag,
            submission_id=submission_id or secrets.token_hex(16),
            submitted_by=submitted_by,
            fresh=fresh,
            relative_paths=relative_paths,
        )
        return submission.submit(self, request)

    def staged(self, checkpoint_id: int | None = None) -> tuple[StagedData, ...]:
        """What approving a checkpoint of the commit gate would publish, for an audit (S7.8): of every sink all that
        waits for a verdict up to it, each with the oldest checkpoint whose approval publishes it. () for one that was
        approved; of one in quarantine its own data, where it lies now. A verdict of somebody else may move it.

        Args:
            checkpoint_id: None: the newest that waits; () when none does.

        Raises:
            JobNotFoundError: no such job.
            SnapshotError: there is no such checkpoint, it is not complete, a savepoint, or was rejected.
        """
        return staged_data(self, checkpoint_id)

    # ------------------------------------------------------------ commands

    def send(
        self,
        verb: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        command_id: str | None = None,
        expires_in: timedelta = timedelta(hours=1),
        spec: int | None = None,
        issued_by: str,
    ) -> Command:
        """Send a command to the driver.

        Args:
            verb: checkpoint, savepoint, stop, cancel, commit or reject.
            arguments: savepoint {"path"}; stop {"mode": "suspend" | "drain", "path", "timeout", "on_timeout":
                "keep_running" | "suspend" | "cancel"}; `path`: folder or URL to put it in; `timeout`: from the
                moment the driver takes the command to the job's end, None: the option `stop_timeout`. commit
                {"checkpoint_id"}: None: the newest that waits; reject {"checkpoint_id", "then": "stop" | "replay" |
                "quarantine", "reason"}: `reason` for people.
            command_id: sending again under one gives the existing command; None: a new one. See `layout.stable_id`.
            expires_in: a driver refuses it after that.
            spec: submission it is meant for; None: the newest.
            issued_by: for people.

        Raises:
            OptionError: no such verb, mode or `on_timeout`; a timeout without unit.
            CommandRefusedError: the job has ended.
            RecordError: another command has this id.
        """
        if verb not in VERBS:
            raise OptionError(f"{verb!r} is not a command", where="verb", remedy=f"Use {', '.join(VERBS)}")
        data = stop_arguments(arguments or {}) if verb == "stop" else dict(arguments or {})
        command_id = command_id or f"{verb}-{secrets.token_hex(8)}"
        existing = self.command(command_id)
        if existing is None:
            view = self.view()
            if view.is_terminal:
                remedy = f"There is nothing to {verb}"
                if verb in ("commit", "reject") and view.waiting:
                    remedy = "Use `tidegate commit-pending`. Or: Restore it, with commit=on_request, and send it then"
                raise CommandRefusedError(f"the job is {view.status}", where=f"job {self.job_id}", remedy=remedy)
            now = self.now()
            command = Command(
                command_id=command_id,
                verb=cast(Verb, verb),
                arguments=data,
                spec=view.spec_number if spec is None else spec,
                issued_at=iso(now),
                expires_at=iso(now + expires_in),
                issued_by=issued_by,
            )
            with suppress(AlreadyExistsError):
                self.store.create(self.layout.command(command_id), encode(command))
            existing = self.command(command_id)
            assert existing is not None, "a command that was just created is not there"
        if existing.verb != verb:
            raise RecordError(
                f"command {command_id} is there already, as {existing.verb!r}",
                where=self.layout.command(command_id),
                remedy="Use another command id",
            )
        if self.result(command_id) is None:
            self.store.replace(self.layout.bell, f"{command_id} {secrets.token_hex(8)}\n".encode())
        return existing

    def withdraw(self, command_id: str, by: str = "cli") -> None:
        """Ask that a command not be executed any more; no effect once a run has been given it: then its result tells
        how it went. May come twice."""
        record = Withdrawn(command_id, iso(self.now()), by)
        with suppress(AlreadyExistsError):
            self.store.create(self.layout.withdrawn(command_id), encode(record))

    def cancel_dead(self, by: str = "cli") -> JobView:
        """End a job whose driver is dead: fence it off, so that it can write nothing should it live after all, record
        CANCELED, and delete what `retention` says (S2.3). Idempotent. CommandRefusedError while the driver is alive."""
        return submission.cancel_dead(self, by)

    def renew_owner(self, spec: int, by: str) -> None:
        """Say that the owner of submission `spec` is still there: several times within `owner_timeout`, beginning
        before a driver is launched. See the option `on_owner_lost`."""
        owner = Owner(spec, secrets.token_hex(8), iso(self.now()), by)
        self.store.replace(self.layout.owner, encode(owner))
