"""When a failed run is tried again (S9.1). Pure: the time comes in, and so does chance.

Times are milliseconds of a clock that stands still while the job waits for slots: waiting for slots uses up nothing and
proves nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from tidegate.jobs.options import JobOptions
from tidegate.units import format_duration

JITTER = 0.1
"""Exponential delays are spread by up to this part of them to either side, so that jobs that failed together do not
come back together."""
NO_JITTER = 0.5
"""The draw that leaves a delay as it is."""


class RestartStrategy(Protocol):
    """Decides after each failed run. Call order: `on_failure` after a run that failed; for the next run `on_running`,
    once, when every subtask is up, and `on_progress` for each checkpoint it completes; then `on_failure` again."""

    @property
    def streak(self) -> int:
        """After `on_failure`: how many of the latest failures count towards giving up, this one included; the first of
        them is the root cause. 1 when the strategy never gives up."""

    @property
    def exhausted(self) -> str:
        """Why `on_failure` gave None, in words that go in front of the root cause."""

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """Milliseconds to wait before the next run, or None: give up.

        Args:
            now_ms: when the run failed.
            draw: uniform in [0, 1), drawn by the caller.
        """

    def on_running(self, now_ms: int) -> None:
        """The run is up."""

    def on_progress(self) -> None:
        """A checkpoint completed."""


@dataclass
class NoRestart:
    """The first failure is the last."""

    streak: int = 1
    exhausted: str = "restart_strategy is none: "

    def on_failure(self, now_ms: int, draw: float = NO_JITTER) -> int | None:
        """Give up."""
        return None

    def on_running(self, now_ms: int) -> None:
        """Nothing to note."""

    def on_progress(self) -> None:
        """Nothing to note."""


@dataclass
class FixedDelayRestart:
    """At most `attempts` restarts (None: any number) since the last completed checkpoint, `delay_ms` apart.

    A completed checkpoint proves progress and gives the attempts back.
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
        """Nothing to note."""

    def on_progress(self) -> None:
        """See RestartStrategy."""
        self._failures = 0


@dataclass
class ExponentialDelayRestart:
    """Each delay is `multiplier` times the one before it, from `initial_ms` up to `max_ms`, with jitter.

    A run that has been up for `reset_after_ms` when it fails starts the delays anew. It gives the attempts back too,
    and so does a completed checkpoint, which leaves the delay: a job may complete a checkpoint and fail, again and
    again.
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
        since_ms, self._running_since_ms = self._running_since_ms, None
        if since_ms is not None and now_ms - since_ms >= self.reset_after_ms:
            self._failures, self._delay_ms = 0, None
        self._failures += 1
        if self.attempts is not None and self._failures > self.attempts:
            return None
        before_ms = self._delay_ms
        next_ms = self.initial_ms if before_ms is None else min(before_ms * self.multiplier, self.max_ms)
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
        while now_ms - self._recent_ms[0] >= self.interval_ms:
            self._recent_ms.popleft()
        return self.delay_ms if len(self._recent_ms) <= self.failures else None

    def on_running(self, now_ms: int) -> None:
        """Nothing to note."""

    def on_progress(self) -> None:
        """Nothing to note."""


def restart_strategy(options: JobOptions) -> RestartStrategy:
    """The strategy that `options` ask for."""
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
