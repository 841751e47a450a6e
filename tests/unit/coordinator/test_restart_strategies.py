"""S9.1: when a failed run is tried again, and when the job is given up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.coordinator.supervision.restart_strategy import (
    JITTER,
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    restart_strategy,
)
from tidegate.errors import OptionError
from tidegate.jobs.options import JobOptions


def exponential(**changed: Any) -> ExponentialDelayRestart:
    given_fields = {"attempts": None, "initial_ms": 100, "multiplier": 2.0, "max_ms": 1000, "reset_after_ms": 60_000}
    return ExponentialDelayRestart(**{**given_fields, **changed})


def test_restarts_are_limited_until_a_checkpoint_proves_progress() -> None:
    """S9.1."""
    strategy = FixedDelayRestart(attempts=2, delay_ms=50)
    assert [strategy.on_failure(0) for _ in range(3)] == [50, 50, None]
    assert (strategy.streak, strategy.exhausted) == (3, "after 2 restarts: ")
    strategy.on_progress()
    assert (strategy.on_failure(0), strategy.streak) == (50, 1)


def test_without_a_limit_a_fixed_delay_goes_on_for_ever() -> None:
    strategy = FixedDelayRestart(attempts=None, delay_ms=50)
    assert {strategy.on_failure(0) for _ in range(1000)} == {50}
    assert strategy.streak == 1, "nothing counts towards giving up, so nothing is remembered"


def test_exponential_delays_grow_to_their_limit() -> None:
    strategy = exponential()
    assert [strategy.on_failure(n) for n in range(6)] == [100, 200, 400, 800, 1000, 1000]


def test_exponential_delays_stay_at_their_limit_however_often_a_job_fails() -> None:
    strategy = exponential(multiplier=10.0)
    assert [strategy.on_failure(n) for n in range(2000)][-1] == 1000


def test_a_run_that_was_up_long_enough_starts_the_delays_anew() -> None:
    strategy = exponential(attempts=3)
    assert [strategy.on_failure(n) for n in range(3)] == [100, 200, 400]
    strategy.on_running(10_000)
    assert strategy.on_failure(70_000) == 100
    assert strategy.streak == 1, "and gives the attempts back"


def test_a_run_that_failed_too_early_does_not_start_the_delays_anew() -> None:
    strategy = exponential()
    strategy.on_failure(0)
    strategy.on_running(10_000)
    assert strategy.on_failure(69_999) == 200


def test_time_in_which_no_run_was_up_does_not_start_the_delays_anew() -> None:
    """S9.1: nothing has worked since the last failure."""
    strategy = exponential()
    strategy.on_running(0)
    strategy.on_failure(10)
    assert strategy.on_failure(10_000_000) == 200


def test_a_checkpoint_gives_exponential_attempts_back_and_leaves_the_delay() -> None:
    strategy = exponential(attempts=2)
    assert [strategy.on_failure(0), strategy.on_failure(0)] == [100, 200]
    strategy.on_progress()
    assert [strategy.on_failure(0), strategy.on_failure(0), strategy.on_failure(0)] == [400, 800, None]


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 12))
def test_jitter_keeps_delays_within_a_tenth_and_below_the_limit(draw: float, failures: int) -> None:
    strategy, plain = exponential(), exponential()
    for _ in range(failures):
        delay_ms, expected_ms = strategy.on_failure(0, draw), plain.on_failure(0)
    assert delay_ms is not None and expected_ms is not None
    assert abs(delay_ms - expected_ms) <= JITTER * expected_ms + 1
    assert delay_ms <= 1000


def test_two_jobs_that_failed_together_come_back_apart() -> None:
    assert exponential(initial_ms=500).on_failure(0, 0.0) == 450
    assert exponential(initial_ms=500).on_failure(0, 0.99) == 549


def test_a_failure_rate_allows_so_many_failures_in_any_interval() -> None:
    strategy = FailureRateRestart(failures=2, interval_ms=1000, delay_ms=7)
    assert [strategy.on_failure(t) for t in (0, 900, 1000, 1899, 1900)] == [7, 7, 7, None, None]
    assert "more than 2 failures in 1 s" in strategy.exhausted


def test_a_failure_rate_is_indifferent_to_progress() -> None:
    strategy = FailureRateRestart(failures=1, interval_ms=1000, delay_ms=7)
    assert strategy.on_failure(0) == 7
    strategy.on_progress()
    strategy.on_running(500)
    assert strategy.on_failure(999) is None
    assert strategy.streak == 2


def test_no_restart_gives_up_at_once() -> None:
    assert NoRestart().on_failure(0) is None


def test_by_default_pauses_grow_up_to_a_minute_without_a_limit_on_attempts() -> None:
    """S9.1."""
    assert restart_strategy(JobOptions()) == ExponentialDelayRestart(None, 1000, 2.0, 60_000, 600_000)
    assert restart_strategy(JobOptions(restart_strategy="fixed_delay")) == FixedDelayRestart(3, 1000)


def test_options_choose_the_strategy() -> None:
    """S9.1."""
    assert restart_strategy(JobOptions(restart_strategy="none")) == NoRestart()
    options = JobOptions.from_mapping(
        {"restart_strategy": "exponential_delay", "restart_attempts": "none", "restart_backoff_multiplier": "1.5"}
    )
    assert restart_strategy(options) == ExponentialDelayRestart(None, 1000, 1.5, 60_000, 600_000)
    options = JobOptions(restart_strategy="failure_rate", restart_attempts=5, restart_failure_interval="1 min")
    assert restart_strategy(options) == FailureRateRestart(5, 60_000, 1000)
    assert JobOptions.from_mapping(options.to_mapping()) == options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"restart_strategy": "exponential_delay", "restart_delay": "0 s"}, "needs a restart_delay above 0 s"),
        ({"restart_strategy": "exponential_delay", "restart_delay": "2 min"}, "shorter than restart_delay"),
        ({"restart_strategy": "failure_rate", "restart_attempts": None}, "the number of failures"),
        ({"restart_backoff_multiplier": 0.5}, "a number from 1"),
        ({"restart_backoff_multiplier": "nan"}, "a number from 1"),
        ({"restart_attempts": 2.5}, "whole number from 0 upwards, or none"),
        ({"restart_attempts": -1}, "whole number from 0 upwards, or none"),
        ({"restart_strategy": "exponential"}, "did you mean 'exponential_delay'"),
    ],
)
def test_what_would_restart_otherwise_than_meant_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        JobOptions.from_mapping(options)
