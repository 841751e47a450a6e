"""Decide when a failed run is restarted (S9.1). Pure: callers pass the time and a random number.

Times are milliseconds of a clock that stops while the job waits for slots: waiting uses up no attempts, and is no sign
of progress.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from tidegate.jobs.options import JobOptions
from tidegate.units import format_duration

JITTER = 0.1
"""Exponential delays vary by up to this fraction in both directions, so that jobs that failed together do not restart
together."""
NO_JITTER = 0.5
"""The random number that leaves a delay unchanged."""


class RestartStrategy(Protocol):
    """Decides after each failed run.

    Call order: `on_failure` after a failed run. For the next run `on_running`, once, when every subtask is running, and
    `on_progress` for each completed checkpoint. Then `on_failure` again.
    """

    @property
    def streak(self) -> int:
        """After `on_failure`: number of latest failures that count towards giving up, including this one.

        The first of them is the root cause. 1 if the strategy never gives up.
        """

    @property
    def exhausted(self) -> str:
        """Why `on_failure` returned None. The text precedes the root cause."""

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """Return the milliseconds to wait before the next run, or None to give up.

        Args:
            now_ms: when the run failed.
            draw: uniform random number in [0, 1), drawn by the caller.
        """

    def on_running(self, now_ms: int) -> None:
        """Record that every subtask is running."""

    def on_progress(self) -> None:
        """Record that a checkpoint completed."""


@dataclass
class NoRestart:
    """Give up after the first failure."""

    streak: int = 1
    exhausted: str = "restart_strategy is none: "

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """Give up."""
        return None

    def on_running(self, now_ms: int) -> None:
        """Do nothing."""

    def on_progress(self) -> None:
        """Do nothing."""


@dataclass
class FixedDelayRestart:
    """At most `attempts` restarts (None: any number) since the last completed checkpoint, `delay_ms` apart.

    A completed checkpoint proves progress and resets the count.
    """

    attempts: int | None
    delay_ms: int
    _failures: int = 0

    @property
    def streak(self) -> int:
        """See RestartStrategy."""
        return 1 if self.attempts is None else self._failures

    @property
    def exhausted(self) -> str:
        """See RestartStrategy."""
        return _after(self.attempts)

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """See RestartStrategy."""
        self._failures += 1
        return None if self.attempts is not None and self._failures > self.attempts else self.delay_ms

    def on_running(self, now_ms: int) -> None:
        """Do nothing."""

    def on_progress(self) -> None:
        """See RestartStrategy."""
        self._failures = 0


@dataclass
class ExponentialDelayRestart:
    """Each delay is `multiplier` times the previous one, from `initial_ms` up to `max_ms`, with jitter.

    If a run has been up for `reset_after_ms` when it fails, the delay and the count of attempts are reset. A completed
    checkpoint resets only the count, because a job may complete one checkpoint per run and fail each time.
    """

    attempts: int | None
    initial_ms: int
    multiplier: float
    max_ms: int
    reset_after_ms: int
    _failures: int = 0
    _delay_ms: float | None = None
    _running_since_ms: int | None = None

    @property
    def streak(self) -> int:
        """See RestartStrategy."""
        return 1 if self.attempts is None else self._failures

    @property
    def exhausted(self) -> str:
        """See RestartStrategy."""
        return _after(self.attempts)

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """See RestartStrategy."""
        # Cleared for the next run: if that one fails before all its subtasks run, it has not been up at all.
        since_ms, self._running_since_ms = self._running_since_ms, None
        if since_ms is not None and now_ms - since_ms >= self.reset_after_ms:
            self._failures, self._delay_ms = 0, None
        self._failures += 1
        if self.attempts is not None and self._failures > self.attempts:
            return None
        before_ms = self._delay_ms
        next_ms = self.initial_ms if before_ms is None else min(before_ms * self.multiplier, self.max_ms)
        # Stored without jitter, or the jitter of every delay would be multiplied into all later ones.
        self._delay_ms = next_ms
        return min(self.max_ms, round(next_ms * (1 + JITTER * (2 * draw - 1))))

    def on_running(self, now_ms: int) -> None:
        """See RestartStrategy."""
        self._running_since_ms = now_ms

    def on_progress(self) -> None:
        """See RestartStrategy."""
        self._failures = 0


@dataclass
class FailureRateRestart:
    """At most `failures` failures in any `interval_ms`, `delay_ms` apart; completed checkpoints change nothing."""

    failures: int
    interval_ms: int
    delay_ms: int
    _recent_ms: deque[int] = field(default_factory=deque)

    @property
    def streak(self) -> int:
        """See RestartStrategy."""
        return len(self._recent_ms)

    @property
    def exhausted(self) -> str:
        """See RestartStrategy."""
        interval = format_duration(timedelta(milliseconds=self.interval_ms))
        return f"more than {self.failures} failures in {interval}: "

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """See RestartStrategy."""
        self._recent_ms.append(now_ms)
        # Never empties the queue: its last entry is this failure, with an age of 0.
        while now_ms - self._recent_ms[0] >= self.interval_ms:
            self._recent_ms.popleft()
        return self.delay_ms if len(self._recent_ms) <= self.failures else None

    def on_running(self, now_ms: int) -> None:
        """Do nothing."""

    def on_progress(self) -> None:
        """Do nothing."""


def restart_strategy(options: JobOptions) -> RestartStrategy:
    """Return the strategy that `options` request."""
    attempts, delay_ms = options.restart_attempts, _ms(options.restart_delay)
    match options.restart_strategy:
        case "none":
            return NoRestart()
        case "fixed_delay":
            return FixedDelayRestart(attempts, delay_ms)
        case "exponential_delay":
            return ExponentialDelayRestart(
                attempts,
                delay_ms,
                options.restart_backoff_multiplier,
                _ms(options.restart_max_delay),
                _ms(options.restart_reset_after),
            )
        case "failure_rate":
            assert attempts is not None, "JobOptions refuses a failure rate without a number"
            return FailureRateRestart(attempts, _ms(options.restart_failure_interval), delay_ms)


def _after(restarts: int | None) -> str:
    return f"after {restarts} restart{'' if restarts == 1 else 's'}: "


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
