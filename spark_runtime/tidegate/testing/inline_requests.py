"""Requests of `map_async` without threads: answered at once, or when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

from tidegate.operators.async_requests import is_coroutine
from tidegate.operators.stream_operator import AsyncFunction, Done


class InlineRequests:
    """Asks on the loop's own thread, as soon as it is asked: the same run every time."""

    def __init__(self, function: AsyncFunction, capacity: int, done: Done) -> None:
        """See `operators.async_requests.StartRequests`."""
        self.capacity = capacity
        self._function = function
        self._done = done

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """Call the function; of a coroutine function wait for the end."""
        try:
            answer: Any = self._function(batch)
            if is_coroutine(self._function):
                answer = asyncio.run(answer)
        except Exception as error:
            self._done(number, None, error)
        else:
            self._done(number, answer, None)

    def cancel(self, number: int) -> None:
        """All are over."""

    def close(self) -> None:
        """Nothing is open."""


class HeldRequests(InlineRequests):
    """Keeps what is asked for `answer`. One for each subtask.

    Attributes:
        held: number -> rows, in the order in which they were asked.
        most: how many were held at once.
    """

    def __init__(self, function: AsyncFunction, capacity: int, done: Done) -> None:
        """See `InlineRequests`."""
        super().__init__(function, capacity, done)
        self.held: dict[int, pa.RecordBatch] = {}
        self.most = 0

    def submit(self, number: int, batch: pa.RecordBatch) -> None:
        """Keep it."""
        self.held[number] = batch
        self.most = max(self.most, len(self.held))

    def answer(self, position: int = 0) -> None:
        """Answer the request that is at `position` among those held."""
        number = list(self.held)[position]
        super().submit(number, self.held.pop(number))

    def cancel(self, number: int) -> None:
        """It is not answered."""
        self.held.pop(number, None)

    def close(self) -> None:
        """None is answered any more."""
        self.held.clear()
