"""The timers that a process sees: those of its back end, until the input has ended (S7.6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidegate.errors import PipelineError
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.time.late_rows import PROCESSING_TIME_DROPPED
from tidegate.state.keyed_state import DueTimers, Elements, KeyNumbers, KeySet, TimerKind, TimerService

Phase = Literal["open", "ending", "over"]

ANSWERS_AT_END = 1_000
"""Event timers that are registered in answer to others once the input has ended, and fire, for each of those that fired
at once; what comes beyond is dropped and counted. A timer that always registers the next would fire for ever."""
EVENT_TIMERS_DROPPED = "event_timers_dropped"
"""Counter: event timers that were registered when the input had ended, and did not fire (S7.6)."""

log = logging.getLogger(__name__)


def count_dropped(ctx: OperatorContext, kind: TimerKind, timers: int) -> None:
    """So many timers do not fire, now that the input has ended (S7.6); the first time the log says so."""
    counter = EVENT_TIMERS_DROPPED if kind == "event" else PROCESSING_TIME_DROPPED
    if counter not in ctx.counters:
        log.warning(
            "Operator %r, subtask %d: the input has ended; timers that are left or new are dropped, counted as %s",
            ctx.uid,
            ctx.subtask,
            counter,
        )
    ctx.count(counter, timers)


class UserTimers:
    """A `TimerService` that checks what it is given and knows when the end has come.

    While "open" it takes every timer. "ending", while those that are there fire for the last time, it takes event
    timers that answer others, within bounds, and none over processing time: theirs is a frozen set (S7.6). When it is
    "over" it takes none. What it does not take it counts.
    """

    def __init__(
        self, kind: TimerKind, timers: TimerService, where: str, drop: Callable[[int], None], *, answered: bool
    ) -> None:
        """Args: drop: called with a number of timers that will not fire. answered: there is an `on_timers`."""
        self._kind = kind
        self._timers = timers
        self._where = where
        self._drop = drop
        self._answered = answered
        self._phase: Phase = "open"
        self._answers = self._answers_taken = 0

    def next_batch_of_timers(self, phase: Phase) -> None:
        """What to take from now on."""
        self._phase = phase
        self._answers = self._answers_taken = 0

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """See `TimerService`; for the operator."""
        found = self._timers.due(until_us, limit)
        if found is not None and self._phase == "ending" and self._kind == "event":
            self._answers = max(self._answers, ANSWERS_AT_END * len(found.times_us))
        return found

    def next_us(self) -> int | None:
        """See `TimerService`."""
        return self._timers.next_us()

    def of(self, keys: KeySet) -> Elements:
        """See `TimerService`."""
        return self._timers.of(keys)

    def delete(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """See `TimerService`."""
        self._timers.delete(keys, *self._checked(keys, owners, times_us))

    def register(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """See `TimerService`. Raises PipelineError: the process has no `on_timers`, or these are no times, or of no
        keys in the set.
        """
        if not self._answered:
            raise PipelineError(
                "a process registers timers and has no on_timers",
                where=self._where,
                cause="nothing would happen when they are due",
                remedy="Write its method on_timers(self, due, ctx)",
            )
        owners, times_us = self._checked(keys, owners, times_us)
        if self._phase != "open":
            if self._answers_taken + len(times_us) > self._answers:
                self._drop(len(times_us))
                return
            self._answers_taken += len(times_us)
        self._timers.register(keys, owners, times_us)

    def _checked(
        self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]
    ) -> tuple[KeyNumbers, npt.NDArray[np.int64]]:
        owners, times_us = np.asarray(owners), np.asarray(times_us)
        fit = owners.ndim == times_us.ndim == 1 and len(owners) == len(times_us)
        if not fit or owners.dtype.kind not in "iu" or times_us.dtype.kind not in "iu":
            raise PipelineError(
                f"timers need two columns of whole numbers of one length, got {owners.dtype}{list(owners.shape)} and "
                f"{times_us.dtype}{list(times_us.shape)}",
                where=self._where,
                remedy="Give for each timer the number of its key, and microseconds since the epoch: int64",
            )
        if len(owners) and not (owners.min() >= 0 and owners.max() < keys.size):
            raise PipelineError(
                f"timers are of keys {owners.min()} to {owners.max()}, the set has {keys.size}, counted from 0",
                where=self._where,
                remedy="Give owners and keys of the same rows",
            )
        return owners.astype(np.int32, copy=False), times_us.astype(np.int64, copy=False)
