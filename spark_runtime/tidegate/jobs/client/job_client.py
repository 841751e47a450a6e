"""`JobClient`: everything that the command line, Airflow and programs do with a job goes through its job directory
here."""

from __future__ import annotations

import difflib
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, cast

from tidegate.clock import iso, utc_now
from tidegate.errors import (
    AlreadyExistsError,
    CommandRefusedError,
    JobNotFoundError,
    NotFoundError,
    OptionError,
    RecordError,
    StoreError,
)
from tidegate.jobs.client import submission
from tidegate.jobs.client.staged_data import StagedData, staged_data
from tidegate.jobs.client.waiter import HeartbeatWatch, Waiting
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.launches import find_local, launched_processes, local_death
from tidegate.jobs.layout import JobLayout, job_ids
from tidegate.jobs.options import JobOptions
from tidegate.jobs.process_output import output_tail, read_logs
from tidegate.jobs.records import (
    Command,
    CommandResult,
    Decision,
    Launch,
    Owner,
    RelativePaths,
    RestoreFrom,
    Spec,
    StatusHint,
    Verb,
    Withdrawn,
    decode,
    encode,
)
from tidegate.jobs.status import JobStatus, JobView, derive_durable, with_hint
from tidegate.jobs.stop_outcomes import stop_arguments
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.units import parse_duration

LIST_REMEDY = "`tidegate list` shows the jobs of a root"
MOST_NAMES = 3
"""Candidates that are looked up, since of each the job directory is asked whether it holds a job."""


def nearest_job(store: Store, job_id: str) -> str | None:
    """The job of a root whose id is nearest to this one; None: no id is near, or the root cannot be listed."""
    try:
        near = difflib.get_close_matches(job_id, [*job_ids(store.list(""))], n=MOST_NAMES + 1)
        return next((name for name in near if name != job_id and store.exists(JobLayout(name).spec(1))), None)
    except StoreError:
        return None


def job_remedy(store: Store, job_id: str, otherwise: str) -> str:
    """What to do about a job id that there is not."""
    near = nearest_job(store, job_id)
    return f"Did you mean {near!r}? {otherwise}" if near else otherwise


VERBS: tuple[str, ...] = ("checkpoint", "savepoint", "stop", "cancel", "commit", "reject")
POLL_S = 0.5
"""Default pause between two looks at a job, seconds."""
OBSERVE_INTERVALS = 5
"""Heartbeat intervals that an observer waits for one heartbeat before it takes a driver for dead."""
LEAST_OBSERVE_S = 5.0
"""The least it waits, seconds: a busy machine may be late."""
RESULT_GRACE_S = 5.0
"""How long after a job's end an answer may still come, seconds: the driver writes its last answers about then."""


class JobClient:
    """One job below one root. Blocks on the store; not for event loops. Keeps what cannot change; safe to make anew at
    will, not safe to share between threads.

    Attributes:
        root: URL of the root.
        job_id: of the job.
        store: the root.
        layout: paths.
        storage_options: as given, with references to secrets.
        log: the decision log.
        now: wall clock, with zone.
    """

    def __init__(
        self,
        root: str | Store,
        job_id: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OptionError for a bad job id, StoreError for a root that cannot be a store. Touches nothing."""
        self.layout = JobLayout(job_id)
        self.job_id = job_id
        self.store = open_store(root, storage_options) if isinstance(root, str | os.PathLike) else root
        self.root = self.store.url
        self.storage_options: Mapping[str, Any] = dict(storage_options or {})
        self.now = now
        self.log = DecisionLog(self.store, self.layout, lambda: iso(now()), lambda: secrets.token_hex(16))
        self._sleep = sleep
        self._monotonic = monotonic
        self._specs: tuple[Spec, ...] = ()
        self._durable: JobView | None = None

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
        """Create a submission: the job directory then says what is to run; `launching` starts it.

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
            relative_paths: see `submission.Request`.

        Raises:
            OptionError: a wrong option, or a secret in plain text.
            PipelineError: the pipeline's file or module is not there.
            JobExistsError: the job is active; or it is over, and neither `restore` nor `fresh` is given.
            SnapshotError: nothing to restore.
            StoreError: the root does not work.
        """
        if options is not None and not isinstance(options, JobOptions):
            options = JobOptions.from_mapping(options)
        request = submission.Request(
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

    def specs(self) -> tuple[Spec, ...]:
        """All submissions, oldest first; () when there is no job of this id. One request when nothing is new.
        From any thread."""
        specs = self._specs
        while True:
            number = len(specs) + 1
            path = self.layout.spec(number)
            try:
                spec = decode(self.store.read(path), Spec, path)
            except NotFoundError:
                self._specs = specs
                return specs
            if (spec.number, spec.job_id) != (number, self.job_id):
                raise RecordError("a submission is in another's place", where=path)
            specs += (spec,)

    def spec(self, number: int) -> Spec:
        """Submission `number`, which never changes: read once. Raises JobNotFoundError."""
        specs = self._specs if number <= len(self._specs) else self.specs()
        if not 1 <= number <= len(specs):
            raise self._not_found(f"there is no submission {number}")
        return specs[number - 1]

    def launches(self) -> list[tuple[int, int]]:
        """(submission, attempt) of every launch, ascending."""
        return self.layout.launch_numbers(self.store.list(self.layout.launches))

    # ------------------------------------------------------------ looking

    def view(self) -> JobView:
        """The job now: three requests, and one more for each new entry of the log. Raises JobNotFoundError."""
        specs = self.specs()
        if not specs:
            other = job_remedy(self.store, self.job_id, LIST_REMEDY)
            raise self._not_found("there is no job of this id", other)
        decisions = self.decisions()
        durable = self._durable
        if durable is None or (durable.spec_number, durable.last_decision) != (len(specs), len(decisions)):
            durable = self._durable = derive_durable(specs, decisions)
        return with_hint(durable, self.hint(durable.driver_generation) if durable.driver_generation else None)

    def decisions(self) -> tuple[Decision, ...]:
        """The decision log, oldest first."""
        return self.log.read()

    def hint(self, generation: int) -> StatusHint | None:
        """What the driver of `generation` last told about itself."""
        path = self.layout.status(generation)
        try:
            return decode(self.store.read(path), StatusHint, path)
        except NotFoundError:
            return None

    def is_alive(self, observe_s: float | None = None) -> bool:
        """Whether the job's driver gives a sign of life while being watched: its heartbeat counter or the log advances.
        Clocks are not compared. Answers as soon as it knows.

        Args:
            observe_s: how long to watch, seconds; None: OBSERVE_INTERVALS heartbeat intervals, or LEAST_OBSERVE_S.
        """
        view = self.view()
        spec = self.spec(view.spec_number)
        if view.is_terminal or local_death(self, spec) is not None:
            return False
        if view.status is JobStatus.CREATED:
            return find_local(self, spec) is not None
        options = JobOptions.from_mapping(spec.options)
        interval_s = options.heartbeat_interval.total_seconds()
        limit_s = max(OBSERVE_INTERVALS * interval_s, LEAST_OBSERVE_S) if observe_s is None else observe_s
        watch = HeartbeatWatch(limit_s, self._monotonic)
        while not watch.advanced(view):
            if watch.silent_s(view) >= limit_s:
                return False
            self._sleep(min(interval_s / 2, POLL_S))
            view = self.view()
        return not view.is_terminal

    def logs(self, generation: int | None = None) -> dict[str, str]:
        """Log files by name: those of `generation`, or of the newest one and the output of its process, where that can
        be read from here."""
        decisions = self.decisions()
        newest = decisions[-1].generation if decisions else 0
        launches: list[Launch] = []
        if generation is None and self.specs():
            launches = launched_processes(self.store, self.layout, self.specs()[-1].number)[:1]
        return read_logs(self.store, self.layout, launches, newest if generation is None else generation)

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

    def command(self, command_id: str) -> Command | None:
        """The command of this id."""
        path = self.layout.command(command_id)
        try:
            return decode(self.store.read(path), Command, path)
        except NotFoundError:
            return None

    def result(self, command_id: str) -> CommandResult | None:
        """The driver's answer; None while there is none."""
        path = self.layout.result(command_id)
        try:
            return decode(self.store.read(path), CommandResult, path)
        except NotFoundError:
            return None

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

    # ------------------------------------------------------------ waiting

    def wait_result(
        self,
        command_id: str,
        timeout: timedelta | str | None = None,
        poll_s: float = POLL_S,
        on_poll: Callable[[JobView], None] | None = None,
    ) -> CommandResult:
        """Wait for the answer to a command; a refusal is an answer too (`raise_if_refused`). Errors: see
        `Waiting.until`."""
        command = self.command(command_id)
        if command is None:
            raise self._not_found(f"there is no command {command_id}")
        return self._waiting(command.spec).until(
            lambda view: self.result(command_id),
            spec=command.spec,
            what=f"the answer to {command.verb!r}",
            timeout=None if timeout is None else parse_duration(timeout, where="timeout"),
            poll_s=poll_s,
            end_grace_s=RESULT_GRACE_S,
            on_poll=on_poll,
        )

    def wait_status(
        self,
        wanted: Collection[str],
        timeout: timedelta | str | None = None,
        poll_s: float = POLL_S,
        on_poll: Callable[[JobView], None] | None = None,
        *,
        spec: int | None = None,
    ) -> JobView:
        """Wait until the job's status is one of `wanted`. Errors: see `Waiting.until`."""
        wanted = {JobStatus(status) for status in wanted}
        what = f"status {' or '.join(sorted(wanted))}"
        return self.wait_until(lambda view: view.status in wanted, what, timeout, poll_s, on_poll, spec=spec)

    def wait_until(
        self,
        condition: Callable[[JobView], bool],
        what: str,
        timeout: timedelta | str | None = None,
        poll_s: float = POLL_S,
        on_poll: Callable[[JobView], None] | None = None,
        *,
        spec: int | None = None,
    ) -> JobView:
        """Wait until `condition` holds of the job.

        Args:
            condition: asked of each view of submission `spec`.
            what: what is waited for, for errors.
            timeout: None: as long as the driver lives.
            poll_s: between two looks, seconds.
            on_poll: told of every view.
            spec: submission; None: the newest now.

        Errors: see `Waiting.until`.
        """
        number = self.view().spec_number if spec is None else spec
        return self._waiting(number).until(
            lambda view: view if view.spec_number == number and condition(view) else None,
            spec=number,
            what=what,
            timeout=None if timeout is None else parse_duration(timeout, where="timeout"),
            poll_s=poll_s,
            on_poll=on_poll,
        )

    def _waiting(self, number: int) -> Waiting:
        spec = self.spec(number)
        silence = JobOptions.from_mapping(spec.options).heartbeat_timeout
        return Waiting(
            look=self.view,
            dead_here=lambda: local_death(self, spec),
            watch=HeartbeatWatch(silence.total_seconds(), self._monotonic),
            tail=output_tail,
            sleep=self._sleep,
            monotonic=self._monotonic,
        )

    def _not_found(self, what: str, remedy: str = LIST_REMEDY) -> JobNotFoundError:
        return JobNotFoundError(what, where=f"job {self.job_id}, root {self.root}", remedy=remedy)


def list_jobs(root: str | Store, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Ids of all jobs below a root, sorted."""
    store = open_store(root, storage_options) if isinstance(root, str | os.PathLike) else root
    return [name for name in job_ids(store.list("")) if store.exists(JobLayout(name).spec(1))]
