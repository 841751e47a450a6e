"""`JobDirectory`: reading one job's directory, and waiting for changes in it. `JobClient` adds methods that change a
job."""

from __future__ import annotations

import difflib
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tidegate.clock import iso, utc_now
from tidegate.errors import JobNotFoundError, NotFoundError, OptionError, RecordError, StoreError
from tidegate.jobs.client.waiter import HeartbeatObserver, JobWaiter
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.launches import find_local_driver, launched_process, launched_processes, local_driver_death
from tidegate.jobs.layout import JobLayout, job_ids
from tidegate.jobs.options import JobOptions
from tidegate.jobs.process_output import output_tail, read_logs
from tidegate.jobs.records import Command, CommandResult, Decision, Spec, StatusHint, read_record
from tidegate.jobs.status import JobStatus, JobView, derive_durable, with_hint
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.units import parse_duration

POLL_S = 0.5
"""Default pause between two reads of a job, in seconds."""
OBSERVE_INTERVALS = 5
"""Heartbeat intervals without a heartbeat after which an observer considers a driver dead."""
MIN_OBSERVE_S = 5.0
"""Shortest time of such an observation, in seconds, because a busy machine may delay a heartbeat."""
RESULT_GRACE_S = 5.0
"""Time after a job's end in which an answer may still arrive, in seconds: the driver writes its last answers then."""
LIST_REMEDY = "`tidegate list` shows the jobs of a root"
MAX_NAMES = 3
"""Limit of candidates, because each one costs a request that checks whether it is a job."""


def nearest_job_id(store: Store, job_id: str) -> str | None:
    """Return the id in the root that is nearest to `job_id`; None: no id is near, or the root cannot be listed."""
    try:
        # + 1 because a folder may have exactly this name and contain no job. It would be the first match.
        near = difflib.get_close_matches(job_id, [*job_ids(store.list(""))], n=MAX_NAMES + 1)
        return next((name for name in near if name != job_id and store.exists(JobLayout(name).spec(1))), None)
    except StoreError:
        return None


def job_remedy(store: Store, job_id: str, otherwise: str) -> str:
    """Return the remedy for an unknown job id: the nearest id, if there is one, then `otherwise`."""
    near = nearest_job_id(store, job_id)
    return f"Did you mean {near!r}? {otherwise}" if near else otherwise


class JobDirectory:
    """The directory of one job below one root: methods to read it, and to wait for changes. Methods block on the store;
    do not call them in an event loop. Immutable records are cached. Cheap to create. Do not share it between threads.

    Attributes:
        root: URL of the root.
        job_id: id of the job.
        store: store of the root.
        layout: paths of the job directory.
        storage_options: storage options of the root, with references to secrets.
        log: the decision log.
        now: wall clock, with time zone.
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
        """Raises OptionError for a wrong job id, StoreError for a root that cannot be a store. Accesses nothing."""
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

    def specs(self) -> tuple[Spec, ...]:
        """Return all submissions, oldest first; () when there is no job of this id. Thread-safe.

        Costs one request when there is no new submission.
        """
        # A local tuple, stored as a whole at the end, so that other threads never see a part of it. Hence no lock.
        specs = self._specs
        while True:
            number = len(specs) + 1
            path = self.layout.spec(number)
            try:
                spec = read_record(self.store, path, Spec)
            except NotFoundError:
                self._specs = specs
                return specs
            if (spec.number, spec.job_id) != (number, self.job_id):
                raise RecordError(
                    f"the file of submission {number} of job {self.job_id} contains submission {spec.number} of "
                    f"{spec.job_id}",
                    where=path,
                    remedy="A program other than tidegate changed the job directory. Restore this file from a "
                    "backup, or use another job id",
                )
            specs += (spec,)

    def spec(self, number: int) -> Spec:
        """Return submission `number`. It never changes, and is read only once. Raises JobNotFoundError."""
        specs = self._specs if number <= len(self._specs) else self.specs()
        if not 1 <= number <= len(specs):
            raise self.not_found(f"the job has no submission {number}")
        return specs[number - 1]

    def launches(self) -> list[tuple[int, int]]:
        """Return (submission, attempt) of every launch, ascending."""
        return self.layout.launch_numbers(self.store.list(self.layout.launches))

    def view(self) -> JobView:
        """Return the current view of the job. Costs three requests, and one for each new log entry.

        Raises JobNotFoundError.
        """
        specs = self.specs()
        if not specs:
            other = job_remedy(self.store, self.job_id, LIST_REMEDY)
            raise self.not_found(f"there is no job with the id {self.job_id!r}", other)
        decisions = self.decisions()
        durable = self._durable
        if durable is None or (durable.spec_number, durable.last_decision) != (len(specs), len(decisions)):
            durable = self._durable = derive_durable(specs, decisions)
        view = self._with_hint(durable)
        if view.before_refusal is not None:
            return replace(view, before_refusal=self._with_hint(view.before_refusal))
        return view

    def _with_hint(self, view: JobView) -> JobView:
        return with_hint(view, self.hint(view.driver_generation) if view.driver_generation else None)

    def decisions(self) -> tuple[Decision, ...]:
        """Return the decision log, oldest first."""
        return self.log.read()

    def hint(self, generation: int) -> StatusHint | None:
        """Return the last status that the driver of `generation` reported; None when there is none."""
        path = self.layout.status(generation)
        try:
            return read_record(self.store, path, StatusHint)
        except NotFoundError:
            return None

    def is_alive(self, observe_s: float | None = None) -> bool:
        """Return whether the job's driver is alive: its heartbeat counter or the log advances during the observation.

        Clocks are not compared. Returns as soon as the answer is known.

        Args:
            observe_s: longest observation, in seconds; None: OBSERVE_INTERVALS heartbeat intervals, at least
                MIN_OBSERVE_S.
        """
        view = self.view()
        spec = self.spec(view.spec_number)
        if view.is_terminal or local_driver_death(self.store, self.layout, spec.number) is not None:
            return False
        if view.status is JobStatus.CREATED:
            return find_local_driver(self.store, self.layout, spec.number) is not None
        options = JobOptions.from_mapping(spec.options)
        interval_s = options.heartbeat_interval.total_seconds()
        limit_s = max(OBSERVE_INTERVALS * interval_s, MIN_OBSERVE_S) if observe_s is None else observe_s
        watch = HeartbeatObserver(limit_s, self._monotonic)
        while not watch.advanced(view):
            if watch.silent_s(view) >= limit_s:
                return False
            self._sleep(min(interval_s / 2, POLL_S))
            view = self.view()
        return not view.is_terminal

    def logs(self, generation: int | None = None) -> dict[str, str]:
        """Return log texts by file name, if this machine can read them: the output of a driver's process, and the files
        in the folder of its generation.

        Args:
            generation: number of the driver. None: the newest launch of the newest submission, also if its driver has
                not begun a generation. The process of a client, which ended a job or committed its output, has no log.

        Raises:
            OptionError: the job has had no driver with this number.
        """
        decisions = self.decisions()
        if generation is None:
            newest, specs = decisions[-1].generation if decisions else 0, self.specs()
            launches = launched_processes(self.store, self.layout, specs[-1].number)[:1] if specs else []
            return read_logs(self.store, self.layout, launches, newest)
        fences = [d for d in decisions if d.kind == "fence"]
        fence = next((d for d in fences if d.generation == generation), None)
        if fence is None:
            newest = fences[-1].generation if fences else 0
            raise OptionError(
                f"the job has had no driver with the number (generation) {generation}",
                where=f"job {self.job_id}",
                remedy=f"Pass a number from 1 to {newest}" if newest else "Leave it out: no driver has begun",
            )
        # A generation that only commits is of a client's process, and names the launch of the driver before it.
        numbers = [] if fence.data.get("only_commits") else [(fence.data["spec"], fence.data["launch"])]
        found = [launched_process(self.store, self.layout, spec, attempt) for spec, attempt in numbers]
        return read_logs(self.store, self.layout, [launch for launch in found if launch is not None], generation)

    def command(self, command_id: str) -> Command | None:
        """Return the command with this id; None when there is none."""
        path = self.layout.command(command_id)
        try:
            return read_record(self.store, path, Command)
        except NotFoundError:
            return None

    def result(self, command_id: str) -> CommandResult | None:
        """Return the driver's answer to a command; None when there is none yet."""
        path = self.layout.result(command_id)
        try:
            return read_record(self.store, path, CommandResult)
        except NotFoundError:
            return None

    def wait_result(
        self,
        command_id: str,
        timeout: timedelta | str | None = None,
        poll_s: float = POLL_S,
        on_poll: Callable[[JobView], None] | None = None,
    ) -> CommandResult:
        """Wait for the answer to a command. A refusal is an answer too; see `raise_if_refused`. Errors: see
        `JobWaiter.until`."""
        command = self.command(command_id)
        if command is None:
            raise self.not_found(f"no command with the id {command_id} was sent to the job")
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
        """Wait until the job's status is one of `wanted`. Errors: see `JobWaiter.until`."""
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
        """Wait until `condition` is true for the job.

        Args:
            condition: called with each view of submission `spec`.
            what: name of the expected change, for errors.
            timeout: None: as long as the driver lives.
            poll_s: pause between two reads, in seconds.
            on_poll: called with every view.
            spec: submission; None: the newest at the time of the call.

        Errors: see `JobWaiter.until`.
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

    def _waiting(self, number: int) -> JobWaiter:
        spec = self.spec(number)
        silence = JobOptions.from_mapping(spec.options).heartbeat_timeout
        return JobWaiter(
            look=self.view,
            dead_here=lambda: local_driver_death(self.store, self.layout, spec.number),
            watch=HeartbeatObserver(silence.total_seconds(), self._monotonic),
            tail=output_tail,
            sleep=self._sleep,
            monotonic=self._monotonic,
        )

    def not_found(self, what: str, remedy: str = LIST_REMEDY) -> JobNotFoundError:
        """Return the error for something that does not exist in this job."""
        problem = root_problem(self.store)
        if problem:
            remedy = "Correct the path of the root"
        return JobNotFoundError(what, where=f"job {self.job_id}, root {self.root}", cause=problem, remedy=remedy)


def root_problem(store: Store) -> str:
    """Return why a root contains no job at all: "" unless it is a local path that is no folder.

    An object store has no folders. If its bucket does not exist, every read raises StoreError.
    """
    path = store.local_path("")
    if path is None or os.path.isdir(path):
        return ""
    return "the root is a file, not a folder" if os.path.exists(path) else "the root does not exist"


def list_jobs(root: str | Store, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the ids of all jobs below a root, sorted. Raises StoreError when the root is a file, or cannot be read."""
    store = open_store(root, storage_options) if isinstance(root, str | os.PathLike) else root
    return [name for name in job_ids(store.list("")) if store.exists(JobLayout(name).spec(1))]
