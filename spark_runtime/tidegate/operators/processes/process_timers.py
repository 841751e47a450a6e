"""Timers as a process sees them: the timers of its back end, until the input has ended (S7.6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidegate.errors import PipelineError
from tidegate.log_format import context
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.time.late_rows import PROCESSING_TIME_DROPPED
from tidegate.state.keyed_state import DueTimers, Elements, KeyNumbers, KeySet, TimerKind, TimerService

Phase = Literal["open", "ending", "over"]

ANSWERS_AT_END = 1_000
"""How many event timers may be registered by `on_timers` after the end of the input, for each timer that fired at once.

Timers beyond it are dropped and counted. Without a limit, a timer that always registers the next would fire forever.
"""
EVENT_TIMERS_DROPPED = "event_timers_dropped"
"""Counter: event timers that were registered after the end of the input and did not fire (S7.6)."""

logger = logging.getLogger("tidegate.operators")


def count_dropped(ctx: OperatorContext, kind: TimerKind, timers: int) -> None:
    """Count timers that do not fire because the input has ended (S7.6), and log the first time."""
    counter = EVENT_TIMERS_DROPPED if kind == "event" else PROCESSING_TIME_DROPPED
    if counter not in ctx.counters:
        logger.warning(
            "the input has ended; timers that have not fired are dropped and counted as %s; nothing to do",
            counter,
            extra=context(operator=ctx.uid, subtask=ctx.subtask),
        )
    ctx.count(counter, timers)


class UserTimers:
    """A `TimerService` that checks its arguments and limits timers after the end of the input.

    Phase "open": it accepts every timer. Phase "ending", while the existing timers fire for the last time: it accepts a
    limited number of event timers, and no processing timers, because only the existing ones may fire (S7.6). Phase
    "over": it accepts none. Timers that it does not accept are counted.
    """

    def __init__(
        self, kind: TimerKind, timers: TimerService, where: str, drop: Callable[[int], None], *, answered: bool
    ) -> None:
        """Args: drop: called with a number of timers that will not fire. answered: the process has a method
        `on_timers`."""
        self._kind = kind
        self._timers = timers
        self._where = where
        self._drop = drop
        self._answered = answered
        self._phase: Phase = "open"
        self._answers = self._answers_taken = 0

    def enter_phase(self, phase: Phase) -> None:
        """Enter a phase, which decides the timers that are accepted from now on."""
        self._phase = phase
        self._answers = self._answers_taken = 0

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """See `TimerService`; called by the operator."""
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
        """See `TimerService`.

        Raises:
            PipelineError: the process has no `on_timers`, or the times are invalid, or a key is not in the set.
        """
        if not self._answered:
            raise PipelineError(
                "the process registers timers, but has no method on_timers",
                where=self._where,
                cause="on_timers is called when timers are due",
                remedy="Write the method on_timers(self, due, ctx)",
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
                f"timers need two integer columns of equal length, but got {owners.dtype}{list(owners.shape)} and "
                f"{times_us.dtype}{list(times_us.shape)}",
                where=self._where,
                remedy="Pass two arrays with one entry for each timer: the index of its key in the keys, as in "
                "rows.owners, and its time as int64, microseconds since the epoch",
            )
        if len(owners) and not (owners.min() >= 0 and owners.max() < keys.size):
            raise PipelineError(
                f"timers have keys {owners.min()} to {owners.max()}, but the set has {keys.size} keys, counted from 0",
                where=self._where,
                remedy="Pass owners and keys of the same rows",
            )
        return owners.astype(np.int32, copy=False), times_us.astype(np.int64, copy=False)
