"""Calls of a user's function outside the slot's loop: on threads, or as coroutines on an own event loop."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Iterator
from typing import Any, cast

import pyarrow as pa

from tidegate.operators.stream_operator import AsyncFunction, AsyncRequests, Done

MAX_THREADS = 32
"""Limit for the plain function of one subtask, whatever its capacity. A coroutine function needs no threads."""


def start_requests(function: AsyncFunction, capacity: int, done: Done) -> AsyncRequests:
    """Start what calls the function: an event loop on one thread for a coroutine function, else a pool of threads."""
    if is_coroutine(function):
        return LoopRequests(function, done)
    return ThreadRequests(function, concurrent_requests(function, capacity), done)


def concurrent_requests(function: AsyncFunction, capacity: int) -> int:
    """Return how many requests run at the same time.

    The limit is the number of threads: a request that waits for a free thread would use up its timeout.
    """
    return capacity if is_coroutine(function) else min(capacity, MAX_THREADS)


def is_coroutine(function: AsyncFunction) -> bool:
    """Return whether a call of the function returns an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class ThreadRequests:
    """Calls a plain function on daemon threads, so that a call that never returns does not keep the process alive."""

    def __init__(self, function: AsyncFunction, threads: int, done: Done) -> None:
        """Args: threads: the most threads. Each is started when it is needed."""
        self._function = function
        self._done = done
        self._threads = threads
        self._started = 0
        self._lock = threading.Lock()
        self._waiting = 0  # idle threads minus queued requests
        self._work: queue.SimpleQueue[tuple[int, pa.RecordBatch] | None] = queue.SimpleQueue()
        self._closed = False

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """See `AsyncRequests`."""
        with self._lock:
            self._waiting -= 1
            needs_thread = self._waiting < 0 and self._started < self._threads
            self._started += needs_thread
        self._work.put((number, batch))
        if needs_thread:
            threading.Thread(target=self._run, name="map-async", daemon=True).start()

    def cancel(self, number: int) -> None:
        """Do nothing: a running call cannot be interrupted. Its thread is free when the function returns."""

    def close(self) -> None:
        """Start none of the requests that wait for a thread."""
        self._closed = True
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._waiting += 1
            work = self._work.get()
            if work is None or self._closed:
                return
            number, batch = work
            try:
                answer = self._function(batch)
                if isinstance(answer, Iterator):  # run a generator function's code here, not on the slot's loop
                    answer = list(answer)
            # SystemExit would end only this thread, and the request would then wait for its answer without end.
            except BaseException as error:
                self._done(number, None, error)
            else:
                self._done(number, answer, None)


class LoopRequests:
    """Coroutines, on an event loop in a daemon thread."""

    def __init__(self, function: AsyncFunction, done: Done) -> None:
        """Args: function: returns awaitables."""
        self._function = function
        self._done = done
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        threading.Thread(target=self._run, name="map-async", daemon=True).start()

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """See `AsyncRequests`."""
        self._loop.call_soon_threadsafe(self._begin, number, batch)

    def cancel(self, number: int) -> None:
        """See `AsyncRequests`."""
        self._loop.call_soon_threadsafe(self._cancel, number)

    def close(self) -> None:
        """Cancel all running calls. May be called twice."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._break_off_all())
        finally:
            self._loop.close()

    def _begin(self, number: int, batch: pa.RecordBatch) -> None:
        self._tasks[number] = self._loop.create_task(self._answer(number, batch))

    async def _answer(self, number: int, batch: pa.RecordBatch) -> None:
        """Call the function and report its answer or error.

        Every error is reported, also a cancellation that the function raises itself. After `cancel` and `close` nothing
        is
        reported: they have removed the request before.
        """
        try:
            answer = await cast(Awaitable[Any], self._function(batch))
        except BaseException as error:
            if self._tasks.pop(number, None) is not None:
                self._done(number, None, error)
        else:
            self._tasks.pop(number, None)
            self._done(number, answer, None)

    def _cancel(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    async def _break_off_all(self) -> None:
        left = list(self._tasks.values())
        self._tasks.clear()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
