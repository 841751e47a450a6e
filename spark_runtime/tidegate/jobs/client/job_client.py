"""`JobClient`: submissions and commands to a job, through its job directory. The command line, Airflow and programs use
it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from secrets import token_hex
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
    """One job below one root: everything of `JobDirectory`, and also submissions and commands. Methods block on the
    store; do not call them in an event loop. Cheap to create. Do not share it between threads."""

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
        secrets: Mapping[str, str] | None = None,
    ) -> Spec:
        """Create a submission: a record in the job directory of the pipeline and its settings. `jobs.launch` starts it.

        Args:
            pipeline: `path/to/file.py:function` or `package.module:function`, pinned now. With a restore, code,
                arguments, options, master, Spark settings and secrets that are None are copied from the previous
                submission.
            arguments: JSON values for the function; secrets as references. options: see `JobOptions`.
            submission_id: idempotency key: with the same key, the existing spec is returned and everything else is
                ignored; None: a new key.
            master: Spark master URL; None: local[*]. spark_conf: Spark settings; secrets as references.
            restore: snapshot to start from; None: start without one, in a new lineage.
            owner_dag: Airflow DAG that owns the job.
            submitted_by: name of the submitter, for readers.
            code_root: folder to pin as a whole.
            fresh: start without the job's state although the job had an earlier submission. `if_exists` of file sinks
                decides about existing output. Without `fresh` such a start is refused.
            relative_paths: see `submission.SubmissionRequest`.
            secrets: environment variables that whoever starts the driver passes to it -> place of the value, such as
                `conn:my_kafka/password`; never values. See `driver_secrets`.

        Raises:
            OptionError: an option is wrong, or a secret is in plain text.
            PipelineError: the pipeline's file or module does not exist.
            JobExistsError: the job is active, or it has ended and neither `restore` nor `fresh` is set.
            SnapshotError: there is no snapshot to restore.
            StoreError: the root cannot be used.
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
            submission_id=submission_id or token_hex(16),
            submitted_by=submitted_by,
            fresh=fresh,
            relative_paths=relative_paths,
            secrets=secrets,
        )
        return submission.submit(self, request)

    def staged(self, checkpoint_id: int | None = None) -> tuple[StagedData, ...]:
        """Return the output that an approval of a checkpoint would publish, for an audit (S7.8).

        For each sink it contains all output up to the checkpoint that waits for a verdict, with the oldest checkpoint
        whose approval publishes it. () for an approved checkpoint. For a quarantined checkpoint it contains only the
        checkpoint's own data, at its current place. A verdict by another caller may move the data at any time.

        Args:
            checkpoint_id: None: the newest that waits, or () when none waits.

        Raises:
            JobNotFoundError: there is no such job.
            SnapshotError: the checkpoint does not exist, is incomplete, is a savepoint, or was rejected.
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
                "keep_running" | "suspend" | "cancel"}; `path`: folder or URL of the savepoint; `timeout`: time from the
                moment the driver accepts the command to the job's end, None: the option `stop_timeout`. commit
                {"checkpoint_id"}, None: the newest that waits. reject {"checkpoint_id", "then": "stop" | "replay" |
                "quarantine", "reason"}; `reason`: text for readers.
            command_id: idempotency key: with the same key, the existing command is returned; None: a new key. See
                `layout.stable_id`.
            expires_in: time after which a driver refuses the command.
            spec: submission concerned; None: the newest.
            issued_by: name of the caller, for readers.

        Raises:
            OptionError: the verb, mode or `on_timeout` is unknown, or a timeout has no unit.
            CommandRefusedError: the job has ended.
            RecordError: a command with this id and another verb exists.
        """
        if verb not in VERBS:
            raise OptionError(f"{verb!r} is not a command to a job", where="verb", remedy=f"Use {', '.join(VERBS)}")
        data = stop_arguments(arguments or {}) if verb == "stop" else dict(arguments or {})
        command_id = command_id or f"{verb}-{token_hex(8)}"
        existing = self.command(command_id)
        if existing is None:
            view = self.view()
            if view.is_terminal:
                remedy = f"The job has ended, so there is nothing to {verb}"
                if verb in ("commit", "reject") and view.waiting:
                    remedy = (
                        "Use `tidegate commit-pending`, or restore the job with commit=on_request and send the command "
                        "then"
                    )
                what = f"the command {verb!r} cannot be sent: the job is {view.settled.status}"
                raise CommandRefusedError(what, where=f"job {self.job_id}", remedy=remedy)
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
            # Read back, because another caller may have created a
            # command with this id first. Then that command is valid.
            existing = self.command(command_id)
            assert existing is not None, "the command was just created, but cannot be read"
        if existing.verb != verb:
            raise RecordError(
                f"command id {command_id} is used already, by the command {existing.verb!r}, not {verb!r}",
                where=self.layout.command(command_id),
                remedy="Use another command id, or leave it out",
            )
        # Also for a command that existed: the earlier call may have ended before it replaced the bell.
        if self.result(command_id) is None:
            # the bell comes last: a driver that reads it must find the command
            self.store.replace(self.layout.bell, f"{command_id} {token_hex(8)}\n".encode())
        return existing

    def withdraw(self, command_id: str, by: str = "cli") -> None:
        """Withdraw a command, so that the driver does not execute it. Idempotent.

        It has no effect once the driver has passed the command to a run. The command then gets its normal result.
        """
        record = Withdrawn(command_id, iso(self.now()), by)
        with suppress(AlreadyExistsError):
            self.store.create(self.layout.withdrawn(command_id), encode(record))

    def cancel_dead(self, by: str = "cli") -> JobView:
        """End a job whose driver is dead. Idempotent. Raises CommandRefusedError while the driver is alive.

        It begins a new generation, so that the old driver can write nothing even if it still lives. Then it records
        CANCELED, and deletes checkpoints as `retention` says (S2.3).
        """
        return submission.cancel_dead(self, by)

    def renew_owner(self, spec: int, by: str) -> None:
        """Record that the owner of submission `spec` lives. See the option `on_owner_lost`.

        Call it several times within each `owner_timeout`, from before the launch of a driver.
        """
        owner = Owner(spec, token_hex(8), iso(self.now()), by)
        self.store.replace(self.layout.owner, encode(owner))
