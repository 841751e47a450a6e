"""When a dead driver is relaunched and when somebody is woken: a function of what was seen, without any clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_tidegate.waits.supervision_policy import DriverObservation, SupervisionLimits, decide_supervision

LIMITS = SupervisionLimits(max_relaunches=2, window=timedelta(hours=1), no_progress=timedelta(minutes=30))
DEAD = DriverObservation(now_s=10_000.0, lost="its process 7 is gone", launched_s=[1_000.0], progressed_s=9_999.0)


def action(seen: DriverObservation, limits: SupervisionLimits = LIMITS) -> str:
    return decide_supervision(seen, limits).action


@pytest.mark.parametrize(
    ("launched_s", "expected"),
    [
        ([], "relaunch"),
        ([1_000.0], "relaunch"),
        ([9_000.0], "relaunch"),  # the first launch is no relaunch, however fresh
        ([1_000.0, 9_000.0], "relaunch"),
        ([1_000.0, 9_000.0, 9_900.0], "fail"),
        ([1_000.0, 2_000.0, 6_000.0, 9_900.0], "relaunch"),  # two of them are out of the window
        ([1_000.0, 6_400.0, 9_900.0], "relaunch"),  # at its very edge
        ([1_000.0, 6_400.1, 9_900.0], "fail"),
    ],
    ids=str,
)
def test_relaunches_are_counted_within_the_window(launched_s: list[float], expected: str) -> None:
    """S9.1: the budget is what the launches in the job directory leave of it."""
    assert action(replace(DEAD, launched_s=launched_s)) == expected


def test_a_spent_budget_says_how_often_and_what_to_do() -> None:
    decision = decide_supervision(replace(DEAD, launched_s=[1_000.0, 9_000.0, 9_900.0]), LIMITS)
    assert "relaunched 2 times within 1 h; at most 2" in decision.why
    assert "restore the job" in decision.remedy


def test_without_a_budget_no_driver_is_relaunched() -> None:
    assert action(DEAD, replace(LIMITS, max_relaunches=0)) == "fail"


def test_a_driver_that_may_still_be_starting_is_given_its_time() -> None:
    assert action(replace(DEAD, is_starting=True, launched_s=[1_000.0, 9_000.0, 9_990.0])) == "watch"


def test_a_job_that_is_meant_to_be_over_is_not_relaunched() -> None:
    decision = decide_supervision(replace(DEAD, meant_to_end_by="cli"), LIMITS)
    assert (decision.action, "cli has requested" in decision.why) == ("end", True)


def test_the_end_goes_before_everything() -> None:
    assert action(replace(DEAD, is_over=True, progressed_s=0.0)) == "end"


@pytest.mark.parametrize(("progressed_s", "expected"), [(8_200.1, "watch"), (8_200.0, "fail")])
def test_a_job_that_lives_and_does_not_move_wakes_somebody(progressed_s: float, expected: str) -> None:
    alive = DriverObservation(now_s=10_000.0, progressed_s=progressed_s)
    assert action(alive) == expected
    assert action(alive, replace(LIMITS, no_progress=None)) == "watch"


def test_a_job_that_stands_still_for_want_of_a_verdict_says_so() -> None:
    """S7.8."""
    decision = decide_supervision(DriverObservation(now_s=10_000.0, progressed_s=0.0, waits_for_verdict=True), LIMITS)
    assert "Approve or reject" in decision.remedy
