"""Requests of `map_async` without threads: answered at once, or when a test requests it."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

from tidegate.operators.async_requests import is_coroutine
from tidegate.operators.stream_operator import AsyncFunction, Done


class InlineRequests:
    """Calls the function on the loop's own thread, at once, so that every run is the same."""

    def __init__(self, function: AsyncFunction, capacity: int, done: Done) -> None:
        """See `operators.async_requests.StartRequests`."""
        self.capacity = capacity
        self._function = function
        self._done = done

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """Call the function; wait for the end of a coroutine."""
        try:
            answer: Any = self._function(batch)
            if is_coroutine(self._function):
                answer = asyncio.run(answer)
        except Exception as error:
            self._done(number, None, error)
        else:
            self._done(number, answer, None)

    def cancel(self, number: int) -> None:
        """Do nothing: all requests are answered."""

    def close(self) -> None:
        """Do nothing: no request is open."""


class HeldRequests(InlineRequests):
    """Stores requests until `answer` is called. One for each subtask.

    Attributes:
        held: number -> rows, in the order of the requests.
        most: most requests that were stored at once.
    """

    def __init__(self, function: AsyncFunction, capacity: int, done: Done) -> None:
        """See `InlineRequests`."""
        super().__init__(function, capacity, done)
        self.held: dict[int, pa.RecordBatch] = {}
        self.most = 0

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """Store the request."""
        self.held[number] = batch
        self.most = max(self.most, len(self.held))

    def answer(self, position: int = 0) -> None:
        """Answer the request at `position` among the stored ones."""
        number = list(self.held)[position]
        super().submit(number, self.held.pop(number))

    def cancel(self, number: int) -> None:
        """Drop the request."""
        self.held.pop(number, None)

    def close(self) -> None:
        """Drop all requests."""
        self.held.clear()
