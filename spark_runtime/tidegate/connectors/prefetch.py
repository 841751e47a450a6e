"""A thread that reads ahead: a data source may block, and the loop of the slot must not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

READ_AHEAD = 4
"""Results that wait for the reader. With more, a snapshot would repeat more work; with fewer, the loop would wait."""
PAUSE_S = 0.1
"""Time after which the thread checks whether it must end, seconds."""


class Prefetch(Generic[T]):
    """Runs an iterator on a thread of its own. Not thread-safe, except for what the thread does itself."""

    def __init__(
        self,
        results: Callable[[threading.Event], Iterator[T]],
        wake: Callable[[], None],
        name: str,
        while_full: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            results: creates the iterator, on the thread. The event is set when it must end.
            wake: called after each result.
            while_full: called on the thread every `PAUSE_S` while results wait for the reader.
        """
        self._found: queue.Queue[T | BaseException] = queue.Queue(READ_AHEAD)
        self._closed = threading.Event()
        self._wake = wake
        self._while_full = while_full
        self._thread = threading.Thread(target=self._run, args=(results,), name=name, daemon=True)
        self._thread.start()

    def take(self) -> T | None:
        """Return the next result, or None if there is none yet. Raises the error of the iterator."""
        try:
            found = self._found.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Let the thread end, without a wait for it: it may block in the data source."""
        self._closed.set()

    def _run(self, results: Callable[[threading.Event], Iterator[T]]) -> None:
        try:
            for result in results(self._closed):
                if not self._put(result):
                    return
        except BaseException as error:  # also SystemExit of user code, which would end only this thread
            self._put(error)

    def _put(self, result: T | BaseException) -> bool:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._found.put(result, timeout=PAUSE_S)
                self._wake()
                return True
            self._while_full()
        return False
