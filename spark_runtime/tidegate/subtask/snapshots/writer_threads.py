"""Run blocking work of one subtask in parallel on a slot's writer threads.

The operators of a chain run side by side, so that many two-phase-commit sinks take about as long as one (S7.3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


def run_concurrently(
    writers: Executor,
    works: Sequence[Callable[[], T]],
    done: Callable[[list[T]], None],
    failed: Callable[[Exception], None],
) -> None:
    """Submit each of `works` separately. Does not block.

    Args:
        works: independent calls. None waits for another, so that any number of threads is enough.
        done: called once on a writer thread, after all have succeeded, with their results in order.
        failed: called once instead, immediately, on the thread of the first call that raises. The other calls continue.
    """
    round_ = _ConcurrentCalls(len(works), done, failed)
    for number, work in enumerate(works):
        writers.submit(round_.run, number, work)
    if not works:
        writers.submit(partial(done, []))


class _ConcurrentCalls(Generic[T]):
    def __init__(self, size: int, done: Callable[[list[T]], None], failed: Callable[[Exception], None]) -> None:
        self._done = done
        self._failed = failed
        self._lock = threading.Lock()
        self._made: dict[int, T] = {}
        self._size = size
        self._has_failed = False

    def run(self, number: int, work: Callable[[], T]) -> None:
        try:
            made = work()
        except Exception as error:
            with self._lock:
                is_first, self._has_failed = not self._has_failed, True
            if is_first:
                self._failed(error)
            return
        with self._lock:
            self._made[number] = made
            is_last = len(self._made) == self._size
        if is_last:
            self._done([self._made[n] for n in range(self._size)])
