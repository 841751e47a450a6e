"""An agent beside the cluster. It launches the drivers that job directories below a root request (`desired.json`), so
that submitters need neither a JVM nor a kubeconfig. The module `relaunch` makes its decisions.

An agent has no durable state: after a restart it finds its drivers by the launch records. Drivers outlive their agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tidegate.errors import AlreadyExistsError, StoreError, TidegateError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.client.waiter import HeartbeatObserver
from tidegate.jobs.decision_log import last_fence
from tidegate.jobs.launch.desired_state import read_desired, stop_requested_by
from tidegate.jobs.launch.launcher import DriverState, Launcher
from tidegate.jobs.launch.relaunch import Decision as RelaunchDecision
from tidegate.jobs.launch.relaunch import (
    LaunchDriver,
    Life,
    NoAction,
    RelaunchBudget,
    RelaunchHistory,
    RelaunchInput,
    StopRelaunching,
    decide_relaunch,
    launch_liveness,
)
from tidegate.jobs.launch.replaced_drivers import FenceWatch, end_by_launchers, replaced_launches
from tidegate.jobs.launches import is_on_this_host, newest_attempt, read_launch
from tidegate.jobs.layout import job_ids
from tidegate.jobs.options import JobOptions
from tidegate.jobs.os_processes import is_running
from tidegate.jobs.records import Decision, Desired, Launch, Spec
from tidegate.jobs.status import JobView
from tidegate.jobs.stores.store_registry import open_store

MIN_POLL_S = 1.0
"""Pause between two rounds after a launch, in seconds. It doubles after every round without a launch. Meanwhile the
agent checks at this interval whether the drivers on its own host still run, without reading the store."""
MAX_POLL_S = 15.0
"""Longest pause, in seconds: the longest delay until the agent sees a request."""


class JobSupervision:
    """Observations of one job by one agent."""

    def __init__(self, budget: RelaunchBudget, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._relaunches = RelaunchHistory(budget)
        self._budget = budget
        self._gone: tuple[int, int] | None = None
        self._here: Launch | None = None
        self._launch: tuple[int, int] | None = None
        self._heartbeat: HeartbeatObserver | None = None
        self._fence: Decision | None = None
        self._fences = FenceWatch(monotonic)
        self.failed: tuple[int, int] | None = None
        self.given_up: Desired | None = None
        self.over: Desired | None = None

    @property
    def is_urgent(self) -> bool:
        """True if the driver's process on this host has ended, and no decision has considered that."""
        here = self._here
        return here is not None and here.pid is not None and not is_running(here.pid, here.process_started)

    def interrupt(self) -> None:
        """The job could not be read: its driver's silence is measured from the next time on."""
        if self._heartbeat is not None:
            self._heartbeat.interrupt()

    def decide(self, job: JobDirectory, desired: Desired, launchers: Mapping[str, Launcher]) -> RelaunchDecision:
        """Read the job, which blocks on the store, and decide. Raises the errors of reading."""
        view = job.view()
        spec = job.spec(view.spec_number)
        attempts = newest_attempt(job.store, job.layout, spec.number)
        life = self._life(job, spec, view, attempts, launchers) if attempts and not view.is_terminal else "none"
        ended_by = stop_requested_by(job, spec.number) if life == "dead" else ""
        seen = RelaunchInput(desired, spec.number, view.status, attempts, life, ended_by)
        relaunches = self._relaunches.observe(seen, self._monotonic())
        if self.given_up == desired:
            return NoAction("the agent has stopped relaunching this submission")
        decision = decide_relaunch(seen, self._budget, relaunches)
        self.over = desired if view.is_terminal and isinstance(decision, NoAction) else None
        if life == "dead" or view.is_terminal:
            self._here = None  # decided, so there is nothing to wait for
        return decision

    def _life(
        self, job: JobDirectory, spec: Spec, view: JobView, attempts: int, launchers: Mapping[str, Launcher]
    ) -> Life:
        key = (spec.number, attempts)
        if self._heartbeat is None or self._launch != key:
            silence_s = JobOptions.from_mapping(spec.options).heartbeat_timeout.total_seconds()
            self._heartbeat, self._launch = HeartbeatObserver(silence_s, self._monotonic), key
        launch = read_launch(job.store, job.layout, *key)
        self._here = launch if is_on_this_host(launch) else None
        launcher = launchers.get(launch.launcher)
        place = launcher.state(launch) if launcher is not None else DriverState.UNKNOWN
        if place is DriverState.GONE and self._gone != key:
            # The driver may have written its last entries after `view` was read, so GONE counts at the second time.
            self._gone, place = key, DriverState.RUNNING
        fence = self._fence = last_fence(job.decisions())
        begun = fence is not None and (fence.data["spec"], fence.data["launch"]) == key
        handed_over = self.failed == key or launch.pid is not None or launch.external_id is not None
        silent, waited_s = self._heartbeat.is_silent(view), self._heartbeat.silent_s(view)
        return launch_liveness(begun=begun, handed_over=handed_over, place=place, silent=silent, waited_s=waited_s)

    def end_replaced(self, job: JobDirectory, launchers: Mapping[str, Launcher]) -> list[Launch]:
        """Kill drivers before the newest fence that still run after a grace period, once; return their launches.

        A frozen driver would keep its cores, and the new driver would wait for slots. Raises the errors of reading.
        """
        if not self._fences.is_due(self._fence):
            return []
        killed = end_by_launchers(replaced_launches(job, job.decisions()), launchers)
        self._fences.done()
        return killed


class Agent:
    """Supervises every job of a root, one after another. Runs in one thread.

    Args:
        root: root of the job directories.
        storage_options: storage options of the root; secrets are references.
        kind: kind of launcher for new launches.
        launchers: launchers by kind, also for drivers that others have launched.
        budget: limit of relaunches.
        say: prints one line.
        monotonic: returns seconds of the monotonic clock.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, Any],
        *,
        kind: str,
        launchers: Mapping[str, Launcher],
        budget: RelaunchBudget,
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._storage_options = root, dict(storage_options)
        self._store = open_store(root, storage_options)
        self._launcher, self._launchers = launchers[kind], launchers
        self._budget, self._say, self._monotonic = budget, say, monotonic
        self._jobs: dict[str, JobDirectory] = {}
        self._watches: dict[str, JobSupervision] = {}
        self._reported: dict[str, str] = {}

    def run(self, over: threading.Event) -> None:
        """Run rounds until `over` is set. A root that cannot be read is tried again."""
        pause_s = MIN_POLL_S
        while not over.is_set():
            try:
                busy = self.round()
            except TidegateError as error:
                self._report("", f"the root cannot be read, and is read again in up to {MAX_POLL_S:g} s: {error}")
                for watch in self._watches.values():
                    watch.interrupt()
                busy = False
            pause_s = MIN_POLL_S if busy else min(2 * pause_s, MAX_POLL_S)
            self._pause(over, pause_s)

    def _pause(self, over: threading.Event, pause_s: float) -> None:
        """Wait until `over` is set, or `pause_s` have passed, or a driver on this host has died."""
        end_s = self._monotonic() + pause_s
        while (left_s := end_s - self._monotonic()) > 0 and not over.wait(min(MIN_POLL_S, left_s)):
            if any(watch.is_urgent for watch in self._watches.values()):
                return

    def round(self) -> bool:
        """Check every job once, and return whether a driver was launched. Raises StoreError when the root cannot be
        listed.

        Costs one request for the root, one for each job, and about four more for each job that is requested to run.
        """
        busy = False
        for job_id in job_ids(self._store.list("")):
            try:
                busy |= self._supervise(job_id)
                self._reported.pop(job_id, None)
            except Exception as error:  # one job with damaged records must not stop the supervision of the others
                known = isinstance(error, TidegateError)
                if job_id in self._watches:
                    self._watches[job_id].interrupt()
                self._report(job_id, str(error) if known else f"{type(error).__name__}: {error}")
        return busy

    def _supervise(self, job_id: str) -> bool:
        job = self._jobs.setdefault(job_id, JobDirectory(self._root, job_id, self._storage_options))
        watch = self._watches.setdefault(job_id, JobSupervision(self._budget, self._monotonic))
        desired = read_desired(job)
        # An ended job is not read again until its request changes. It then costs one request for each round.
        if desired is None or desired == watch.over:
            return False
        match watch.decide(job, desired, self._launchers):
            case LaunchDriver(attempt, why):
                return self._launch(job, watch, desired, attempt, why)
            case StopRelaunching(why):
                watch.given_up = desired
                self._say(
                    f"{job_id}: the agent stops relaunching the driver: {why}. Start or restore the job again, then "
                    "the agent launches it"
                )
            case NoAction():
                pass
        for launch in watch.end_replaced(job, self._launchers):
            place = f"process {launch.pid}" if launch.pid is not None else launch.external_id
            self._say(f"{job_id}: ended the replaced driver of launch {launch.attempt}, {place}, which still ran")
        return False

    def _launch(self, job: JobDirectory, watch: JobSupervision, desired: Desired, attempt: int, why: str) -> bool:
        spec = job.spec(desired.spec)
        try:
            launch = self._launcher.launch(job, spec, attempt)
        except AlreadyExistsError:
            return False  # another agent has launched it first
        except StoreError:
            # An outage of the store does not count as a failed launch: the next round tries again.
            raise
        except TidegateError as error:
            watch.failed = (spec.number, attempt)
            # Waiting clients cannot see this agent, but they read the launch's log.
            with suppress(StoreError):
                job.store.create(job.layout.launch_log(spec.number, attempt), f"{error}\n".encode())
            if newest_attempt(job.store, job.layout, spec.number) < attempt:
                watch.given_up = desired  # nothing was recorded: this submission cannot be launched at all
            raise
        place = f"process {launch.pid}" if launch.pid is not None else launch.external_id
        self._say(f"{job.job_id}: submission {spec.number}, launch {attempt}: {place} ({why})")
        return True

    def _report(self, job_id: str, problem: str) -> None:
        """Print a problem of a job once, until it is solved or another problem occurs."""
        if self._reported.get(job_id) != problem:
            self._reported[job_id] = problem
            self._say(f"{job_id or 'agent'}: {problem}")
