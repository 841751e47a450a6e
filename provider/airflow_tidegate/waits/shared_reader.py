"""Shares one read of a job among all waits in this process.

A triggerer runs hundreds of waits on perhaps dozens of jobs. Each job is read at most once at a time, in a thread,
never on the event loop; the read serves every observer of the job. Reads become less frequent while nothing changes,
and end with the last observer. Each event loop has its own state.

Cancelling an observer (a trigger's cleanup, the triggerer's shutdown) does not affect others. A read that is running
then ends in its thread, and its result is discarded.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from airflow_tidegate.waits.job_reader import JobObservation, JobReader
from airflow_tidegate.waits.watch import read_within_s
from tidegate.errors import TidegateError
from tidegate.jobs.client.job_client import JobClient

T = TypeVar("T", covariant=True)

MAX_CONCURRENT_READS = 4
"""Reads at a time in one event loop, over all jobs of one root. They have threads of their own: a store that hangs
blocks neither the jobs of another root nor other users of the loop's default threads, such as name resolution."""
MAX_PAUSE_S = 15.0
"""Longest pause between two reads of an unchanged job, seconds, unless an observer wants a longer one."""
PAUSE_GROWTH = 2.0
"""Factor by which each pause is longer than the previous one, while nothing changes."""
MIN_PAUSE_S = 1.0
"""Shortest pause between two reads of a job, seconds, whatever its observers want."""
READS_BEFORE_SILENCE = 2
"""Least number of reads within the time that a driver, or an owner, may be silent."""
STORE_RETRIES = 5
"""Consecutive reads that may fail on the store before an observer gets the error."""


class WaitObserver(Protocol[T]):
    """Evaluates every read of a job until it has a result. `evaluate` runs in a thread, one call at a time."""

    poll_s: float
    """Pause between reads after a change that it wants, seconds."""
    deadline_at: float | None
    """Wall clock: the job is read at this time, whatever the pause."""

    def evaluate(self, client: JobClient, observed: JobObservation) -> T | None:
        """Return the result; None: read again. May read the store.

        An exception ends the observer; an error of the store only after more than `STORE_RETRIES` consecutive failures.
        """


@dataclass(slots=True)
class PollInterval:
    """The pause between reads: starts at `shortest_s`, and grows while nothing changes."""

    _pause_s: float = 0.0

    def next_pause_s(self, shortest_s: float, silence_s: float, *, moved: bool) -> float:
        """Return the pause after a read.

        Args:
            shortest_s: shortest pause that an observer wants, seconds.
            silence_s: how long driver and owner may be silent, seconds; the job is read `READS_BEFORE_SILENCE` times in
                it.
            moved: something has changed.
        """
        longest_s = max(shortest_s, min(MAX_PAUSE_S, silence_s / READS_BEFORE_SILENCE))
        grown_s = shortest_s if moved else self._pause_s * PAUSE_GROWTH
        self._pause_s = min(max(grown_s, shortest_s), longest_s)
        return self._pause_s


@dataclass(eq=False, slots=True)
class _PendingObserver(Generic[T]):
    observer: WaitObserver[T]
    answer: asyncio.Future[Any]
    failures: int = 0


@dataclass(slots=True)
class _ReadResult:
    """Result of one read: the observers' results, and facts for the next pause."""

    answers: list[tuple[_PendingObserver[Any], Any]] = field(default_factory=list)
    failures: list[tuple[_PendingObserver[Any], Exception]] = field(default_factory=list)
    moved: bool = False
    silence_s: float = MAX_PAUSE_S * READS_BEFORE_SILENCE
    store_fails: bool = False


class _RootReader:
    """Semaphore and threads for the reads of the jobs of one root, in one event loop."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self.threads = ThreadPoolExecutor(MAX_CONCURRENT_READS, thread_name_prefix="tidegate-looks")
        self.held = 0


class SharedJobReader:
    """Reads one job in one event loop. See `shared_job`."""

    def __init__(self, open_client: Callable[[], JobClient], lane: _RootReader) -> None:
        self._open_client, self._lane = open_client, lane
        self._reader: JobReader | None = None
        self._waiting: list[_PendingObserver[Any]] = []
        self._came = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self.held = 0

    async def first(self, observer: WaitObserver[T]) -> T:
        """Return the first result of `observer`, which is called at once and then after every read.

        Raises:
            TidegateError, or whatever `observer.evaluate` raises.
        """
        waiting = _PendingObserver(observer, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._came.set()
        if self._looking is None or self._looking.done():
            # Use a new context, so that log lines of the reader belong to no observer.
            self._looking = asyncio.create_task(self._keep_reading(), context=contextvars.Context())
        try:
            found: T = await waiting.answer
            return found
        finally:
            self._waiting.remove(waiting)

    async def close(self) -> None:
        """Stop reading."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def _keep_reading(self) -> None:
        pace = PollInterval()
        while self._unanswered():
            self._came.clear()
            async with self._lane.turns:
                asked = self._unanswered()
                if not asked:
                    return
                try:
                    loop = asyncio.get_running_loop()
                    seen = await loop.run_in_executor(self._lane.threads, self._take_round, asked)
                except Exception as error:  # without this, observers would wait forever after an unexpected error
                    seen = _ReadResult(failures=[(waiting, error) for waiting in asked])
            for waiting, answer in seen.answers:
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
            for waiting, failure in seen.failures:
                if not waiting.answer.done():
                    waiting.answer.set_exception(failure)
            if self._unanswered():
                shortest_s = max(min(w.observer.poll_s for w in self._unanswered()), MIN_PAUSE_S)
                pause_s = pace.next_pause_s(shortest_s, seen.silence_s, moved=seen.moved)
                # Pause after errors of the store, so that new observers and deadlines do not use up the retries.
                await (asyncio.sleep(pause_s) if seen.store_fails else self._pause(pause_s))

    async def _pause(self, pause_s: float) -> None:
        """Wait until the next read is due, or a new observer has arrived."""
        deadlines = [w.observer.deadline_at for w in self._unanswered() if w.observer.deadline_at is not None]
        if deadlines:
            pause_s = min(pause_s, max(min(deadlines) - time.time(), 0.0))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), pause_s)

    def _unanswered(self) -> list[_PendingObserver[Any]]:
        return [waiting for waiting in self._waiting if not waiting.answer.done()]

    # ------------------------------------------------------------ in a thread

    def _take_round(self, asked: list[_PendingObserver[Any]]) -> _ReadResult:
        """Read the job once, and pass it to every observer."""
        seen = _ReadResult()
        try:
            if self._reader is None:
                self._reader = JobReader(self._open_client())
            observed = self._reader.read()
        except Exception as error:
            for waiting in asked:
                self._failed(seen, waiting, error)
            return seen
        seen.moved, seen.silence_s = observed.moved, read_within_s(observed.options)
        for waiting in asked:
            try:
                answer = waiting.observer.evaluate(self._reader.client, observed)
            except Exception as error:
                self._failed(seen, waiting, error)
                continue
            waiting.failures = 0
            if answer is not None:
                seen.answers.append((waiting, answer))
        return seen

    @staticmethod
    def _failed(seen: _ReadResult, waiting: _PendingObserver[Any], error: Exception) -> None:
        """Record an observer's error. Errors of the store are retried; all others are reported at once."""
        waiting.failures += 1
        if not isinstance(error, TidegateError) or error.code != "store" or waiting.failures > STORE_RETRIES:
            seen.failures.append((waiting, error))
        else:
            seen.store_fails = True


class _SharedJobs:
    """All jobs of one event loop."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str, str], SharedJobReader] = {}
        self.lanes: dict[str, _RootReader] = {}

    @contextmanager
    def lane(self, root: str) -> Iterator[_RootReader]:
        """Return the reader for a root, while one of its jobs is in use."""
        lane = self.lanes.get(root) or self.lanes.setdefault(root, _RootReader())
        lane.held += 1
        try:
            yield lane
        finally:
            lane.held -= 1
            if not lane.held:
                del self.lanes[root]
                lane.threads.shutdown(wait=False)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _SharedJobs] = WeakKeyDictionary()


@asynccontextmanager
async def shared_job(
    root: str, job_id: str, storage_options: Mapping[str, Any] | None = None
) -> AsyncIterator[SharedJobReader]:
    """Return the reader of this job in this event loop, while somebody uses it. Reads nothing by itself.

    Args:
        root: job root.
        job_id: the job.
        storage_options: fsspec options; secrets as references.
    """
    options = dict(storage_options or {})
    shared = _of_loop.setdefault(asyncio.get_running_loop(), _SharedJobs())
    key = (root, job_id, json.dumps(options, sort_keys=True, default=str))
    with shared.lane(root) as lane:
        job = shared.jobs.get(key)
        if job is None:
            job = shared.jobs[key] = SharedJobReader(lambda: JobClient(root, job_id, options), lane)
        job.held += 1
        try:
            yield job
        finally:
            job.held -= 1
            if not job.held:
                del shared.jobs[key]
                await job.close()
