"""The durable records of a job directory (docs/job-directory.md). Records are immutable: each is written once, or
replaced by one kind of writer.

Times are ISO 8601 texts for readers. No decision depends on them, except the expiry of commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tidegate.errors import CommandRefusedError
from tidegate.jobs.codec import canonical, decode, encode, from_document, read_record, to_document

__all__ = [
    "Command",
    "CommandResult",
    "Decision",
    "DecisionKind",
    "DeletedSavepoint",
    "Desired",
    "Launch",
    "Owner",
    "RelativePaths",
    "RestoreFrom",
    "Spec",
    "StatusHint",
    "Verb",
    "WatchCursor",
    "Withdrawn",
    "canonical",
    "decode",
    "encode",
    "from_document",
    "read_record",
    "to_document",
]

DecisionKind = Literal[
    "fence",
    "claim",
    "complete",
    "abort",
    "approve",
    "reject",
    "committed",
    "rewind",
    "end_of_data",
    "status",
    "failure",
]
Verb = Literal["checkpoint", "savepoint", "stop", "cancel", "commit", "reject"]


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    """The snapshot that a submission starts from (S9.3).

    Attributes:
        kind: `latest`: the latest recovery point of the job's current lineage; `checkpoint`, `savepoint`: the snapshot
            that `path` or `checkpoint_id` names.
        path: absolute URL of the snapshot's folder, or a path relative to the root; None for `latest`, or when
            `checkpoint_id` names the snapshot.
        checkpoint_id: id of a checkpoint of this job.
        allow_non_restored_state: drop state that has no operator in the new graph (S5.5).
        on_committed_after: what to do when output was committed after the snapshot.
        allow_drained: restore a snapshot that a drain took, whose windows fired early and will emit again (S7.5).
        fork_of: id of the job that owns the snapshot, when this submission is a fork. A fork needs bounded sources,
            and sinks that write elsewhere. Restores of the fork's own snapshots keep it.
        claim_mode: for a named snapshot. "no_claim": a savepoint stays unchanged (the job's own checkpoints follow the
            retention), and the next checkpoint uses none of its files. "claim": the job owns the snapshot and may
            share its files. After the submission has completed its own recovery point, the job deletes the snapshot,
            even a savepoint, when it is no longer needed (S7.4).
    """

    kind: Literal["latest", "checkpoint", "savepoint"]
    path: str | None = None
    checkpoint_id: int | None = None
    allow_non_restored_state: bool = False
    on_committed_after: Literal["refuse", "rewind", "accept_duplicates"] = "refuse"
    allow_drained: bool = False
    fork_of: str | None = None
    claim_mode: Literal["no_claim", "claim"] = "no_claim"


@dataclass(frozen=True, slots=True)
class RelativePaths:
    """Base of a pipeline's relative paths, independent of the working directory of the process that builds it.

    Attributes:
        folder: absolute path of the base folder; None: there is no lasting folder, so relative paths are refused.
        within: absolute path of a folder that relative paths must not leave; None: no limit.
    """

    folder: str | None
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """One submission. Create-only, by the submitter.

    Attributes:
        job_id: id of the job.
        number: number of the submission, from 1, without gaps.
        submission_id: idempotency key of the submitter: a second submission with it returns the first.
        pipeline: `module:function`, importable from the artifact's root.
        artifact: SHA-256 that names the pinned code.
        arguments: arguments of the function.
        options: `JobOptions.to_mapping()`.
        master: Spark master URL.
        spark_conf: Spark settings; secrets are references.
        storage_options: storage options of the root; secrets are references.
        restore: snapshot to start from; None: start without a snapshot.
        lineage: id of the lineage. A restore of the job's own snapshots continues it, else it is new (S7.4).
        owner_dag: Airflow DAG that owns the job.
        submitted_at: time.
        submitted_by: name of the submitter, for readers.
        relative_paths: base of the pipeline's relative paths; None: the working directory of the process that builds
            the pipeline, as in submissions of older versions.
        secrets: environment variables that the driver gets from the process that starts it -> place of the value, for
            readers (`driver_secrets`). Never a value.
    """

    RECORD: ClassVar[str] = "spec"
    VERSION: ClassVar[int] = 2

    job_id: str
    number: int
    submission_id: str
    pipeline: str
    artifact: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    master: str
    spark_conf: Mapping[str, Any]
    storage_options: Mapping[str, Any]
    restore: RestoreFrom | None
    lineage: str
    owner_dag: str | None
    submitted_at: str
    submitted_by: str
    relative_paths: RelativePaths | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt to start a driver. Two create-only records: `launches/<n>-<k>.json` before the start, without a
    process, then `launches/<n>-<k>.pid.json`, with the process.

    Attributes:
        spec: number of the submission.
        attempt: number of the attempt, from 1.
        launcher: kind of the launcher.
        host: machine on which the process runs.
        launched_at: time.
        command: arguments of the process, without secrets.
        nonce: random text of the launcher's call.
        pid: process id; None before the start.
        process_started: text that distinguishes the process from a later process with the same pid.
        process_space: pid namespace of the process on its host.
        log: local path of the process's standard output and error.
        external_id: the cluster's id of the driver: an application id, `namespace:pod`; None: a process of `host`.
    """

    RECORD: ClassVar[str] = "launch"
    VERSION: ClassVar[int] = 1

    spec: int
    attempt: int
    launcher: str
    host: str
    launched_at: str
    command: tuple[str, ...]
    nonce: str
    pid: int | None = None
    process_started: str | None = None
    process_space: str = ""
    log: str | None = None
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """The state that the job should have. Replaced at each change.

    Attributes:
        state: requested state.
        spec: number of the submission concerned.
        at: time.
        by: name of the requester, for readers.
        launch: with "running": a driver of this launch of `spec`, or of a newer launch, is requested; 1: of any launch.
    """

    RECORD: ClassVar[str] = "desired"
    VERSION: ClassVar[int] = 1

    state: Literal["running", "stopped"]
    spec: int
    at: str
    by: str
    launch: int = 1


@dataclass(frozen=True, slots=True)
class Owner:
    """Heartbeat of the owner of a submission. Replaced regularly.

    Attributes:
        spec: number of the submission.
        mark: a new text at each write. A driver that sees it change knows that the owner lives.
        at: time.
        by: name of the owner, for readers.
    """

    RECORD: ClassVar[str] = "owner"
    VERSION: ClassVar[int] = 1

    spec: int
    mark: str
    at: str
    by: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the decision log (S2.1, S9.2); create-only.

    Attributes:
        number: number of the entry, from 1, without gaps; also in its file name.
        kind: kind of the decision.
        generation: generation of the driver that decided. A fence has the new generation that it begins.
        run_id: run within the generation; "" when the decision concerns no run.
        at: time.
        nonce: random text of the write, by which a writer recognises its own entry.
        data: data of the decision; see docs/job-directory.md.
    """

    RECORD: ClassVar[str] = "decision"
    VERSION: ClassVar[int] = 1

    number: int
    kind: DecisionKind
    generation: int
    run_id: str
    at: str
    nonce: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatusHint:
    """Status that a driver reports about itself. Replaced regularly. The decision log decides, not this hint.

    Attributes:
        generation: the driver's generation.
        heartbeat: a counter. A reader that sees it increase knows that the driver lives.
        run_id: current run.
        at: time.
        data: rates, watermark and other values; see docs/job-directory.md.
    """

    RECORD: ClassVar[str] = "status"
    VERSION: ClassVar[int] = 1

    generation: int
    heartbeat: int
    run_id: str
    at: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """A request to the driver; create-only (S9.4).

    Attributes:
        command_id: idempotency key of the client: a second command with it is the same command.
        verb: requested action.
        arguments: by verb: savepoint {"path"}; stop {"mode": "suspend" | "drain", "path", "timeout", "on_timeout":
            "keep_running" | "suspend" | "cancel"}; commit {"checkpoint_id"}, None: the
            newest that waits; reject {"checkpoint_id", "then": "stop" | "replay" | "quarantine", "reason"}.
        spec: number of the submission; the driver of another submission answers "superseded".
        issued_at: time.
        expires_at: time after which a driver refuses the command.
        issued_by: name of the client, for readers.
    """

    RECORD: ClassVar[str] = "command"
    VERSION: ClassVar[int] = 1

    command_id: str
    verb: Verb
    arguments: Mapping[str, Any]
    spec: int
    issued_at: str
    expires_at: str
    issued_by: str


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The driver's single answer to a command. Create-only.

    Attributes:
        command_id: id of the command.
        ok: True: done; False: refused.
        code: code for programs: "done", or a reason such as "superseded" or "expired".
        message: text for readers.
        data: result by verb, for example {"checkpoint_id", "path"}.
        generation: generation of the driver that answered.
        at: time.
    """

    RECORD: ClassVar[str] = "result"
    VERSION: ClassVar[int] = 1

    command_id: str
    ok: bool
    code: str
    message: str
    data: Mapping[str, Any]
    generation: int
    at: str

    def raise_if_refused(self, *, where: str = "", remedy: str = "") -> CommandResult:
        """Return this result if it is ok. Else raise CommandRefusedError with its message, its code and `remedy`."""
        if not self.ok:
            where = where or f"command {self.command_id}"
            raise CommandRefusedError(self.message, where=where, cause=self.code, remedy=remedy)
        return self


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Record that a client has withdrawn a command. Create-only.

    Attributes:
        command_id: id of the command.
        at: time.
        by: name of the client, for readers.
    """

    RECORD: ClassVar[str] = "withdrawn"
    VERSION: ClassVar[int] = 1

    command_id: str
    at: str
    by: str


@dataclass(frozen=True, slots=True)
class DeletedSavepoint:
    """Record that a user has deleted a savepoint, and did not move it: what only the savepoint needs may be deleted.
    Create-only.

    Attributes:
        checkpoint_id: id of the savepoint.
        path: its folder, as in the decision log.
        at: time.
        by: who deleted it, for readers.
    """

    RECORD: ClassVar[str] = "deleted_savepoint"
    VERSION: ClassVar[int] = 1

    checkpoint_id: int
    path: str
    at: str
    by: str


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """Position of a watcher in its events, from which it resumes after a restart. Replaced by the watcher.

    Attributes:
        watcher: id of the watcher.
        at: time of the last event, or of the start.
        data: by kind of watcher; see docs/job-directory.md.
    """

    RECORD: ClassVar[str] = "watch_cursor"
    VERSION: ClassVar[int] = 1

    watcher: str
    at: str
    data: Mapping[str, Any] = field(default_factory=dict)
