"""Calls of a user's function beside the slot's loop: on threads, or a coroutine on an event loop of its own."""

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
"""Of one subtask's plain function, whatever its capacity; a coroutine needs none."""


def start_requests(function: AsyncFunction, capacity: int, done: Done) -> AsyncRequests:
    """A coroutine function has an event loop on one thread, any other a thread for each request."""
    if is_coroutine(function):
        return LoopRequests(function, done)
    return ThreadRequests(function, run_inline(function, capacity), done)


def run_inline(function: AsyncFunction, capacity: int) -> int:
    """How many requests of a function may go on: one that waits for a thread would use up its time for nothing."""
    return capacity if is_coroutine(function) else min(capacity, MAX_THREADS)


def is_coroutine(function: AsyncFunction) -> bool:
    """Calling it gives something to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class ThreadRequests:
    """On daemon threads: one that never comes back does not keep the process alive."""

    def __init__(self, function: AsyncFunction, threads: int, done: Done) -> None:
        """Args: threads: at most; started when they are needed."""
        self._function = function
        self._done = done
        self._threads = threads
        self._started = 0
        self._lock = threading.Lock()
        self._waiting = 0  # threads that wait for work, less work that waits for them
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
        """A thread cannot be broken off: it is free again when the function returns."""

    def close(self) -> None:
        """What no thread has begun is not begun any more."""
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
                if isinstance(answer, Iterator):  # of a generator function: its code runs here, not on the slot's loop
                    answer = list(answer)
            except BaseException as error:
                self._done(number, None, error)
            else:
                self._done(number, answer, None)


class LoopRequests:
    """Coroutines, on an event loop in a daemon thread."""

    def __init__(self, function: AsyncFunction, done: Done) -> None:
        """Args: function: gives awaitables."""
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
        """Break off what goes on. May come twice."""
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
        """Whatever the function raises is told, as what it breaks off itself is: only `cancel` and `close` are not."""
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
