"""The durable records of a job directory (docs/job-directory.md). Immutable; written once, or replaced by their one
kind of writer. Times are ISO 8601 texts for people: nothing is decided by them, except the expiry of commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tidegate.errors import CommandRefusedError
from tidegate.jobs.codec import canonical, decode, encode, from_document, to_document

__all__ = [
    "Command",
    "CommandResult",
    "Decision",
    "DecisionKind",
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
    """What a submission starts from (S9.3).

    Attributes:
        kind: `latest`: the latest recovery point of the job's current lineage; `checkpoint`, `savepoint`: the one
            named.
        path: absolute URL of the snapshot's folder, or the folder relative to the root; None for `latest`, or when
            `checkpoint_id` names it.
        checkpoint_id: of a checkpoint of this job.
        allow_non_restored_state: drop state that has no operator in the new graph (S5.5).
        on_committed_after: what to do about going back past something committed.
        allow_drained: restore a snapshot that a drain took, whose windows have fired early and emit again (S7.5).
        fork_of: the job that the snapshot is of, when this is a fork to work off a part of its input beside it: it
            needs bounded sources, and sinks that write elsewhere. Kept by restores of the fork's own snapshots.
        claim_mode: of a snapshot that is named: "no_claim": a savepoint stays as it is (the job's own checkpoints go by
            retention), and the first checkpoint afterwards uses none of its files; "claim": it is the job's, which may
            share its files and, once the submission has completed a recovery point of its own, deletes it when it is
            not needed any more, a savepoint too (S7.4).
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
    """Where relative paths of a pipeline lie, whoever builds it, in whatever working directory.

    Attributes:
        folder: absolute path of the folder that they are relative to; None: there is none that lasts, so that they are
            refused.
        within: absolute path of a folder that they must not lead out of; None: they may lead anywhere.
    """

    folder: str | None
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """One submission; create-only, by the submitter.

    Attributes:
        job_id: of the job.
        number: from 1, without gaps.
        submission_id: chosen by the submitter; submitting twice under one is submitting once.
        pipeline: `module:function`, importable from the artifact's root.
        artifact: SHA-256 that names the pinned code.
        arguments: for the function.
        options: `JobOptions.to_mapping()`.
        master: Spark master URL.
        spark_conf: Spark settings; secrets as references.
        storage_options: of the root; secrets as references.
        restore: where to start from; None: fresh.
        lineage: continued by a restore of the job's own snapshots, else new (S7.4).
        owner_dag: Airflow DAG that owns the job.
        submitted_at: time.
        submitted_by: for people.
        relative_paths: of the pipeline; None: in the working directory of whoever builds it, as in submissions from
            before this was recorded.
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


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt to start a driver. Written twice, create-only each: before the start as `launches/<n>-<k>.json`,
    without a process, then as `launches/<n>-<k>.pid.json`, with it.

    Attributes:
        spec: submission.
        attempt: from 1.
        launcher: kind of launcher.
        host: where the process runs.
        launched_at: time.
        command: the process's arguments; holds no secret.
        nonce: of the launcher's call.
        pid: None before the start.
        process_started: text that tells this process from a later one with the same pid.
        process_space: what, besides the host, pids are unique in.
        log: local path of its standard output and error.
        external_id: what a cluster calls the driver: an application id, `namespace:pod`; None: a process of `host`.
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
    """What the job is meant to be doing; replaced.

    Attributes:
        state: what is wanted.
        spec: submission meant.
        at: time.
        by: for people.
        launch: running: a driver of this launch of `spec`, or of a newer one, is wanted; 1: any.
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
    """Whoever owns a submission is still there; replaced, now and then.

    Attributes:
        spec: submission owned.
        mark: another one at every writing: who sees it change knows that the owner lives.
        at: time.
        by: for people.
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
        number: from 1, without gaps; also its file's name.
        kind: what was decided.
        generation: the reign that decided. A fence carries its own, new one.
        run_id: attempt within the reign, "" where none is concerned.
        at: time.
        nonce: of the write: tells a writer whether an entry it finds is its own.
        data: by kind; see docs/job-directory.md.
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
    """What a driver tells about itself; replaced, never the truth.

    Attributes:
        generation: the driver's reign.
        heartbeat: counter; who sees it advance knows that the driver lives.
        run_id: current attempt.
        at: time.
        data: rates, watermark and the like; see docs/job-directory.md.
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
        command_id: chosen by the client; sending twice under one is sending once.
        verb: what to do.
        arguments: by verb: savepoint {"path"}; stop {"mode": "suspend" | "drain", "path", "timeout", "on_timeout":
            "keep_running" | "suspend" | "cancel"}; commit {"checkpoint_id"}, None: the
            newest that waits; reject {"checkpoint_id", "then": "stop" | "replay" | "quarantine", "reason"}.
        spec: submission it is meant for; a driver of another one answers "superseded".
        issued_at: time.
        expires_at: time after which a driver refuses it.
        issued_by: for people.
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
    """The driver's one answer to a command; create-only.

    Attributes:
        command_id: the command.
        ok: done, or refused.
        code: for programs: "done" or a reason such as "superseded", "expired".
        message: for people.
        data: by verb, for example {"checkpoint_id", "path"}.
        generation: the reign that answered.
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
        """This result; CommandRefusedError with its message and code, and `remedy`, when it is a refusal."""
        if not self.ok:
            where = where or f"command {self.command_id}"
            raise CommandRefusedError(self.message, where=where, cause=self.code, remedy=remedy)
        return self


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The client no longer wants a command executed; create-only.

    Attributes:
        command_id: the command.
        at: time.
        by: for people.
    """

    RECORD: ClassVar[str] = "withdrawn"
    VERSION: ClassVar[int] = 1

    command_id: str
    at: str
    by: str


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """How far a watcher has told its events, so that it goes on there after a restart; replaced.

    Attributes:
        watcher: its id.
        at: time of the last event, or of the beginning.
        data: by kind of watcher; see docs/job-directory.md.
    """

    RECORD: ClassVar[str] = "watch_cursor"
    VERSION: ClassVar[int] = 1

    watcher: str
    at: str
    data: Mapping[str, Any] = field(default_factory=dict)
