"""Calls a StatefulProcessor's methods, key by key, with states that are read and written for many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from tidegate.compat.pyspark_stateful.processor_handle import ProcessorHandle
from tidegate.compat.pyspark_stateful.processor_rows import ProcessorInput
from tidegate.compat.pyspark_stateful.timer_overlay import TimerOverlay
from tidegate.errors import PipelineError
from tidegate.operators.stream_operator import TURN_OVER, TurnOver
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.state.keyed_state import DueTimers, KeySet

MIN_KEYS, MAX_KEYS = 16, 1024
"""Limits of the number of keys processed together: fewer if their lists and maps are large, more if they are small.

More than `MAX_KEYS` would take longer for each key. Their rows would leave the caches of the CPU, and live long enough
to be visited by Python's garbage collector."""
TURN_CALLS = 32
"""Calls of the processor before other subtasks of the slot may have a turn. A call takes some microseconds with rows,
and 0.1 ms and more with frames. A turn ends after 10 ms, see `slot.INPUT_TURN_MS`."""
MANY_ELEMENTS = 256 * 1024
"""Most list elements and map entries that should be read together."""


class ProcessorCalls:
    """Calls the processor and returns its results as batches.

    All methods are generators. Exhaust each one before you call another: states are written at its end. `results`
    returns the remaining results.

    Attributes:
        limit: most keys that a set should have.
    """

    def __init__(
        self, processor: StatefulProcessor, handle: ProcessorHandle, timers: TimerOverlay, rows: ProcessorInput
    ) -> None:
        self.limit = MAX_KEYS
        self._processor = processor
        self._handle = handle
        self._timers = timers
        self._rows = rows

    def rows(self, batch: pa.RecordBatch, keys: KeySet, values: TimerValues) -> Iterator[pa.RecordBatch | TurnOver]:
        """Call `handleInputRows` once for each key."""
        self._begin(keys)
        by_key = self._rows.by_key(batch, keys)
        for number, key in enumerate(self._rows.keys(keys)):
            self._handle.key.number = number
            results = self._processor.handleInputRows(key, by_key.of(number), values)
            yield from self._taken(results, "handleInputRows")
            if number % TURN_CALLS == TURN_CALLS - 1:
                yield TURN_OVER
        self._write()

    def initial(self, batch: pa.RecordBatch, keys: KeySet, values: TimerValues) -> Iterator[TurnOver]:
        """Call `handleInitialState` for each row, or for each key's frame."""
        self._begin(keys)
        by_key = self._rows.by_key(batch, keys)
        for number, key in enumerate(self._rows.keys(keys)):
            self._handle.key.number = number
            for row in by_key.of(number):
                self._processor.handleInitialState(key, row, values)
            if number % TURN_CALLS == TURN_CALLS - 1:
                yield TURN_OVER
        self._write()

    def timers(
        self, due: DueTimers, until_us: int, values: Callable[[int], TimerValues]
    ) -> Iterator[pa.RecordBatch | TurnOver | tuple[pa.RecordBatch, list[int]]]:
        """Call `handleExpiredTimer` once for each timer, in order of time. If handlers registered timers that are due
        too, they come last, as `TimerOverlay.write` returns them.

        Args:
            until_us: timers up to this time fire.
            values: returns the times for a timer that fires at this time, milliseconds.
        """
        self._begin(due.keys, due)
        keys = self._rows.keys(due.keys)
        for calls, (number, time_us) in enumerate(zip(due.owners.tolist(), due.times_us.tolist(), strict=True), 1):
            time_ms = time_us // 1000
            self._handle.key.number = number
            results = self._processor.handleExpiredTimer(
                key=keys[number], timerValues=values(time_ms), expiredTimerInfo=ExpiredTimerInfo(time_ms)
            )
            yield from self._taken(results, "handleExpiredTimer")
            self._timers.delete(number, time_ms)
            if calls % TURN_CALLS == 0:
                yield TURN_OVER
        late = self._write(until_us)
        if late is not None:
            yield late

    def results(self) -> Iterator[pa.RecordBatch]:
        """Return the results that were not yielded yet."""
        yield from self._rows.batches()

    def _begin(self, keys: KeySet, due: DueTimers | None = None) -> None:
        for overlay in self._handle.overlays:
            overlay.begin(keys)
        self._timers.begin(keys, due)

    def _write(self, fired_until_us: int | None = None) -> tuple[pa.RecordBatch, list[int]] | None:
        self._handle.key.number = None
        read = 0
        for overlay in self._handle.overlays:
            overlay.write()
            read += overlay.elements
        if read > MANY_ELEMENTS:
            self.limit = max(MIN_KEYS, self.limit // 2)
        elif read < MANY_ELEMENTS // 4:
            self.limit = min(MAX_KEYS, self.limit * 2)
        return self._timers.write(fired_until_us)

    def _taken(self, results: Any, method: str) -> Iterator[pa.RecordBatch]:
        if results is None:
            return
        if not isinstance(results, Iterable):
            raise self._rows.refused(f"{method} returned a {type(results).__name__}", "Return an iterator, or yield")
        for result in results:
            self._rows.add(result, method)
            if self._rows.full:
                yield from self._rows.batches()


class CurrentTimes(TimerValues):
    """PySpark's `TimerValues`; see there. The clock is read at the first use, and only once: batch mode has no clock,
    and processors that use event time only do not need it."""

    def __init__(self, now_ms: Callable[[], int], watermark_ms: int) -> None:
        super().__init__(currentWatermarkInMs=watermark_ms)
        self._now_ms = now_ms
        self._read_ms: int | None = None

    def getCurrentProcessingTimeInMs(self) -> int:
        """See PySpark."""
        if self._read_ms is None:
            self._read_ms = self._now_ms()
        return self._read_ms


class OutputEventTime:
    """The event-time column of a processor's results.

    Attributes:
        passed_us: the forwarded watermark: rows with an earlier time would be late downstream.
    """

    def __init__(self, time: EventTimeColumn, processor: str, where: str, passed_us: int) -> None:
        self.passed_us = passed_us
        self._time, self._processor, self._where = time, processor, where

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise PipelineError if a row is before the watermark, as Spark does."""
        times = self._time.microseconds(batch).drop_null().to_numpy()
        if len(times) and int(times.min()) < self.passed_us:
            early, passed = (np.datetime64(int(us), "us") for us in (times.min(), self.passed_us))
            raise PipelineError(
                f"the processor {self._processor} returned a row of {early} in column {self._time.column!r}, but the "
                f"watermark is {passed}",
                where=self._where,
                cause="operators downstream would drop such a row as late; Spark refuses it, too",
                remedy="Return rows with times from the watermark on, or remove eventTimeColumnName",
            )
