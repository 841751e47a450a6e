"""Reads jobs for the page: in one process, all users who view a job within a moment share one read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.configuration import conf

from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID, JobRoot, TidegateHook
from airflow_tidegate.plugins.restore_permission import restore_blocker
from tidegate.errors import JobNotFoundError, RecordError, SnapshotError, StoreError, TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import list_jobs
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.client.waiter import HeartbeatObserver
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Decision, Spec, StatusHint
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder
from tidegate.jobs.status import CheckpointView, JobView, derive_durable, with_hint

READ_INTERVAL_S = 1.5
"""Most age of shown data, seconds: within it all users share one read."""
LIST_S = 5.0
"""The same for the list of jobs below a root, and for the content of a connection."""
RATE_WINDOW_S = 15.0
"""Period over which throughput is measured, seconds."""
MAX_JOBS = 512
"""Jobs kept in memory; the least recently viewed one is dropped first."""
READS_AT_ONCE = 4
"""Reads of one connection's jobs at a time, in one process."""
PATIENCE_S = 5.0
"""How long a request waits for reads of other requests, seconds."""
MAX_POINTS = 20
"""Snapshots that are checked for existence."""
POINTS_S = 30.0
"""Most age of this check, seconds: each costs up to `MAX_POINTS` requests, while somebody views an ended job."""


def connections() -> tuple[str, ...]:
    """Return the connections whose jobs the page shows: setting `connections` of section `tidegate`, separated by
    commas."""
    configured = conf.get("tidegate", "connections", fallback=DEFAULT_CONN_ID) or DEFAULT_CONN_ID
    return tuple(dict.fromkeys(name.strip() for name in configured.split(",") if name.strip()))


@dataclass(frozen=True, slots=True)
class JobState:
    """A job at the time of one read.

    Attributes:
        view, specs, decisions: of the same moment.
        rates: records per second by uid of the source; empty until two reads have seen the same run.
        silent_s: for how long this process has seen no sign of life of the driver, seconds.
        is_silent: that is longer than the job's `heartbeat_timeout`.
        staged: data that waits for a verdict, by checkpoint.
        staged_problem: why it cannot be read; "": it can.
        points: existing snapshots to restore from, newest first; only read while no driver runs.
        restore_problem: why the page cannot restore it then; "": it can.
    """

    view: JobView
    specs: tuple[Spec, ...]
    decisions: tuple[Decision, ...]
    rates: Mapping[str, float] = field(default_factory=dict)
    silent_s: float = 0.0
    is_silent: bool = False
    staged: tuple[StagedData, ...] = ()
    staged_problem: str = ""
    points: tuple[CheckpointView, ...] = ()
    restore_problem: str = ""

    @property
    def spec(self) -> Spec:
        """Return the newest submission."""
        return self.specs[-1]


class _CachedJob:
    """A job that somebody views. Used by one thread at a time."""

    def __init__(self, root: JobRoot, job_id: str, monotonic: Callable[[], float]) -> None:
        self.root = root
        self.lock = threading.Lock()
        self.job_state: JobState | None = None
        self.read_s = 0.0
        self._client = root.client(job_id)
        self._monotonic = monotonic
        self._watch = HeartbeatObserver(0.0, monotonic)
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()
        self._run_id = ""
        self._known: dict[str, tuple[tuple[int, int], Any]] = {}

    def read(self) -> JobState:
        """Read the job. Raises JobNotFoundError, and StoreError if the store fails."""
        client = self._client
        specs = client.specs()
        if not specs:
            raise JobNotFoundError(
                "the job root has no job with this id",
                where=f"job {client.job_id}",
                remedy="Check the job id and the connection",
            )
        decisions = client.decisions()
        durable = derive_durable(specs, decisions)
        hint = client.hint(durable.driver_generation) if durable.driver_generation else None
        view = with_hint(durable, hint)
        self._watch.silence_s = JobOptions.from_mapping(specs[-1].options).heartbeat_timeout.total_seconds()
        is_silent = self._watch.is_silent(view)
        staged, problem = self._once_per_decision("staged", view, self._staged) if view.waiting else ((), "")
        free = view.is_terminal or is_silent or not view.is_active
        # Also without a new decision: the log records no deletion of a snapshot.
        period = int(self._monotonic() // POINTS_S)
        points = self._once_per_decision("points", view, self._points, period) if free else ()
        why = (
            self._once_per_decision("restorable", view, lambda _: restore_blocker(client, self.root, specs))
            if free
            else ""
        )
        silent_s = self._watch.silent_s(view)
        rates = self._rates(view, hint)
        return JobState(view, specs, decisions, rates, silent_s, is_silent, staged, problem, points, why)

    def _once_per_decision(self, name: str, view: JobView, find: Callable[[JobView], Any], period: int = 0) -> Any:
        """Return what `find` returned since the newest decision, and in this period."""
        known, now = self._known.get(name), (view.last_decision, period)
        if known is None or known[0] != now:
            self._known[name] = known = (now, find(view))
        return known[1]

    def _staged(self, view: JobView) -> tuple[tuple[StagedData, ...], str]:
        try:
            return self._client.staged(max(view.waiting)), ""
        except SnapshotError as error:
            return (), error.what

    def _points(self, view: JobView) -> tuple[CheckpointView, ...]:
        kept = [c for c in reversed(view.completed) if c.verdict != "rejected" and not c.taken_back]
        return tuple(c for c in kept[:MAX_POINTS] if self._is_there(c))

    def _is_there(self, snapshot: CheckpointView) -> bool:
        store, folder = open_snapshot_folder(self._client.store, self._client.storage_options, snapshot.path)
        return bool(store.exists(JobLayout.metadata(folder)))

    def _rates(self, view: JobView, hint: StatusHint | None) -> Mapping[str, float]:
        """Return the rates between two hints of one run, by the driver's own clock."""
        if hint is None or view.is_terminal or view.run_id != self._run_id:
            self._samples.clear()
        self._run_id = view.run_id
        if hint is None or view.is_terminal:
            return {}
        at_s = datetime.fromisoformat(hint.at).timestamp()
        counts: Mapping[str, int] = {s.uid: s.records for s in view.sources if s.records is not None}
        if not self._samples or at_s > self._samples[-1][0]:
            self._samples.append((at_s, counts))
        while len(self._samples) > 2 and at_s - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()
        since_s, before = self._samples[0]
        newest_s, counts = self._samples[-1]
        if newest_s <= since_s:
            return {}
        return {uid: max(0, n - before.get(uid, 0)) / (newest_s - since_s) for uid, n in counts.items()}


class _ReadLimit:
    """Limits how many threads wait for the store of one connection.

    The threads belong to Airflow's API server, which also answers the tasks: a store that hangs must not block them
    all.
    """

    def __init__(self, conn_id: str, monotonic: Callable[[], float]) -> None:
        self.turns = threading.Semaphore(READS_AT_ONCE)
        self._conn_id, self._monotonic = conn_id, monotonic
        self._stuck_s: float | None = None

    @contextmanager
    def holding(self, lock: threading.Lock | threading.Semaphore) -> Iterator[None]:
        """Hold a job's lock, or a place among the reads.

        Raises StoreError if it is not free within `PATIENCE_S`. For the same time after that, other requests fail at
        once.
        """
        now_s = self._monotonic()
        patient = self._stuck_s is None or now_s - self._stuck_s >= PATIENCE_S
        if not lock.acquire(timeout=PATIENCE_S if patient else 0):
            if patient:
                self._stuck_s = self._monotonic()
            raise StoreError(
                "the store of the job root does not answer",
                where=f"connection {self._conn_id}",
                cause=f"earlier reads from the store have not returned for {PATIENCE_S:g} s",
                remedy="Check the store, and the network from Airflow's API server to the store",
            )
        try:
            yield
        finally:
            lock.release()


def _understood(read: Callable[[], JobState], job_id: str) -> JobState:
    """Return the result of `read`. Raises RecordError if the job's records are invalid."""
    try:
        return read()
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise RecordError(
            "records in the job directory are invalid",
            where=f"job {job_id}",
            cause=f"{type(error).__name__}: {error}",
            remedy="Check that the API server has the tidegate version of the job; if it has, report the error",
        ) from error


class JobCache:
    """All jobs of the connections that the page shows. Thread-safe; blocks on the stores."""

    def __init__(
        self,
        root_of: Callable[[str], JobRoot] = lambda conn_id: TidegateHook(conn_id).get_conn(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root_of, self._monotonic = root_of, monotonic
        self._lock = threading.Lock()
        self._watched: OrderedDict[tuple[str, str], _CachedJob] = OrderedDict()
        self._listed: dict[str, tuple[float, list[str]]] = {}
        self._roots: dict[str, tuple[float, JobRoot]] = {}
        self._gates: dict[str, _ReadLimit] = {}

    def root(self, conn_id: str) -> JobRoot:
        """Return the content of a connection. Raises JobNotFoundError for one that the page does not show."""
        if conn_id not in connections():
            raise JobNotFoundError(
                "the page does not show jobs of the connection",
                where=f"connection {conn_id}",
                remedy="Add it to the setting `connections` of section `tidegate` in Airflow's configuration",
            )
        known = self._roots.get(conn_id)
        if known is None or self._monotonic() - known[0] >= LIST_S:
            self._roots[conn_id] = known = (self._monotonic(), self._root_of(conn_id))
        return known[1]

    def client(self, conn_id: str, job_id: str) -> JobClient:
        """Return a client for commands, used by the caller only."""
        return self.root(conn_id).client(job_id)

    def ids(self, conn_id: str) -> list[str]:
        """Return all jobs below a connection's root, sorted."""
        known = self._listed.get(conn_id)
        if known is None or self._monotonic() - known[0] >= LIST_S:
            root, gate = self.root(conn_id), self._gate(conn_id)
            with gate.holding(gate.turns):
                self._listed[conn_id] = known = (self._monotonic(), list_jobs(root.root, dict(root.storage_options)))
        return known[1]

    def job_state(self, conn_id: str, job_id: str, *, fresh: bool = False) -> JobState:
        """Return a job, read at most `READ_INTERVAL_S` ago. Args: fresh: read it now.

        Raises:
            JobNotFoundError: no such job or connection.
            OptionError: not a job id.
            StoreError: it cannot be read.
        """
        watched, gate = self._watch(conn_id, job_id), self._gate(conn_id)
        with gate.holding(watched.lock):
            if fresh or watched.job_state is None or self._monotonic() - watched.read_s >= READ_INTERVAL_S:
                with gate.holding(gate.turns), self._forgetting(conn_id, job_id):
                    watched.job_state = _understood(watched.read, job_id)
                watched.read_s = self._monotonic()
            return watched.job_state

    @contextmanager
    def _forgetting(self, conn_id: str, job_id: str) -> Iterator[None]:
        """Drop the entry of a job that does not exist, so that invented ids do not displace real jobs."""
        try:
            yield
        except JobNotFoundError:
            with self._lock:
                self._watched.pop((conn_id, job_id), None)
            raise

    def _gate(self, conn_id: str) -> _ReadLimit:
        with self._lock:
            return self._gates.setdefault(conn_id, _ReadLimit(conn_id, self._monotonic))

    def _watch(self, conn_id: str, job_id: str) -> _CachedJob:
        root, key = self.root(conn_id), (conn_id, job_id)
        with self._lock:
            watched = self._watched.get(key)
            if watched is None or watched.root != root:
                watched = self._watched[key] = _CachedJob(root, job_id, self._monotonic)
            self._watched.move_to_end(key)
            while len(self._watched) > MAX_JOBS:
                self._watched.popitem(last=False)
            return watched


def unreadable(error: TidegateError) -> str:
    """Return an error as one line, for a list."""
    return f"{error.what}{f': {error.cause}' if error.cause else ''}"
