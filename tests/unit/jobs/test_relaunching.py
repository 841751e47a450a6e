"""What an agent decides about one job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.jobs.launch.cluster import SUBMIT_LIMIT_S
from tidegate.jobs.launch.launcher import DriverState
from tidegate.jobs.launch.relaunch import (
    LAUNCH_GRACE_S,
    SUBMIT_GRACE_S,
    LaunchDriver,
    NoAction,
    RelaunchBudget,
    RelaunchHistory,
    RelaunchInput,
    StopRelaunching,
    decide_relaunch,
    launch_liveness,
)
from tidegate.jobs.records import Desired
from tidegate.jobs.status import JobStatus

WANTED = Desired("running", 2, "now", "airflow", 1)
BUDGET = RelaunchBudget(3, 3600.0)
ALIVE = RelaunchInput(WANTED, 2, JobStatus.RUNNING, 1, "alive")
DEAD = replace(ALIVE, life="dead")


def test_a_job_that_is_wanted_and_was_never_launched_is_launched() -> None:
    assert decide_relaunch(RelaunchInput(WANTED, 2, JobStatus.CREATED, 0, "none"), BUDGET, 0) == LaunchDriver(
        1, "requested by airflow"
    )


@pytest.mark.parametrize(
    "seen",
    [
        replace(DEAD, desired=None),
        replace(DEAD, desired=replace(WANTED, state="stopped")),
        replace(DEAD, desired=replace(WANTED, spec=1)),
        replace(DEAD, spec=3),
        replace(DEAD, status=JobStatus.STOPPED, life="none"),
        replace(DEAD, status=JobStatus.FINISHED, life="none"),
        replace(DEAD, status=JobStatus.FINISHED_COMMIT_PENDING, life="none"),
        replace(DEAD, status=JobStatus.CANCELED, life="none"),
        replace(DEAD, status=JobStatus.FAILED, life="none"),
        replace(DEAD, ended_by="alice"),
        ALIVE,
        replace(ALIVE, life="starting"),
    ],
)
def test_what_was_stopped_has_ended_lives_or_is_somebody_elses_is_left_alone(seen: RelaunchInput) -> None:
    assert isinstance(decide_relaunch(seen, BUDGET, 0), NoAction)


def test_a_dead_driver_is_launched_anew_within_the_budget() -> None:
    assert decide_relaunch(DEAD, BUDGET, 2) == LaunchDriver(2, "the driver is dead", anew=True)
    assert isinstance(decide_relaunch(DEAD, BUDGET, 3), StopRelaunching)
    assert isinstance(decide_relaunch(DEAD, RelaunchBudget(0, 1.0), 0), StopRelaunching)


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.RUNNING])
def test_what_is_wanted_anew_is_launched_though_it_failed_or_the_budget_is_used_up(status: JobStatus) -> None:
    again = replace(DEAD, desired=replace(WANTED, launch=2), status=status)
    assert decide_relaunch(again, BUDGET, 3) == LaunchDriver(2, "requested by airflow")


@pytest.mark.parametrize("status", [JobStatus.STOPPED, JobStatus.FINISHED, JobStatus.CANCELED])
def test_a_desired_state_that_comes_after_the_end_starts_nothing(status: JobStatus) -> None:
    assert isinstance(
        decide_relaunch(replace(ALIVE, desired=replace(WANTED, launch=2), status=status), BUDGET, 0), NoAction
    )


@pytest.mark.parametrize(
    ("begun", "handed_over", "place", "silent", "waited_s", "life"),
    [
        (True, True, DriverState.RUNNING, False, 0.0, "alive"),
        (True, True, DriverState.UNKNOWN, False, 9e9, "alive"),
        (True, True, DriverState.UNKNOWN, True, 0.0, "dead"),
        (True, True, DriverState.RUNNING, True, 0.0, "dead"),
        (True, True, DriverState.GONE, False, 0.0, "dead"),
        (True, False, DriverState.GONE, False, 0.0, "dead"),
        (False, True, DriverState.GONE, False, 0.0, "dead"),
        (False, False, DriverState.GONE, True, SUBMIT_GRACE_S - 1, "starting"),
        (False, False, DriverState.GONE, False, SUBMIT_GRACE_S, "dead"),
        (False, True, DriverState.RUNNING, True, 9e9, "starting"),
        (False, False, DriverState.UNKNOWN, True, LAUNCH_GRACE_S - 1, "starting"),
        (False, True, DriverState.UNKNOWN, False, LAUNCH_GRACE_S, "dead"),
    ],
)
def test_the_life_of_a_launch(
    begun: bool, handed_over: bool, place: DriverState, silent: bool, waited_s: float, life: str
) -> None:
    found = launch_liveness(begun=begun, handed_over=handed_over, place=place, silent=silent, waited_s=waited_s)
    assert found == life


def test_whoever_hands_a_driver_over_has_the_time_that_it_may_take() -> None:
    assert SUBMIT_GRACE_S >= SUBMIT_LIMIT_S


def counted(*looks: tuple[float, dict[str, Any]]) -> list[int]:
    relaunches = RelaunchHistory(RelaunchBudget(3, 100.0))
    return [relaunches.observe(replace(ALIVE, **changes), at) for at, changes in looks]


def test_launches_beyond_the_wanted_one_use_up_the_budget_until_its_time_has_passed() -> None:
    looks = [(0.0, 0), (1.0, 1), (10.0, 2), (50.0, 4), (109.0, 4), (110.0, 4), (150.0, 4)]
    assert counted(*((at, {"attempts": n}) for at, n in looks)) == [0, 0, 1, 3, 3, 2, 0]


def test_an_agent_that_has_just_begun_counts_none_and_a_new_desired_state_begins_anew() -> None:
    assert counted((0.0, {"attempts": 7}), (1.0, {"attempts": 8})) == [0, 1]
    again = replace(WANTED, launch=9)
    looks = ({"attempts": 8}, {"attempts": 8, "desired": again}, {"attempts": 9, "desired": again})
    assert counted((0.0, {"attempts": 7}), *((1.0, look) for look in looks)) == [0, 1, 0, 0]
