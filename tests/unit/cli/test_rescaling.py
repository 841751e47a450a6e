"""`tidegate rescale` (S5.5)."""

from __future__ import annotations

import pytest
from cli_caller import Caller, Driver

OPTIONS = {"parallelism": 2, "max_parallelism": 8, "checkpoint_interval": "7 s"}
PATH = "flights/checkpoints/chk-8-g1"


@pytest.fixture
def driver(tidegate: Caller) -> Driver:
    driver = tidegate.submitted(options=OPTIONS, arguments={"column": "k"})
    driver.status("RUNNING")
    tidegate.script = obedient
    return driver


def obedient(driver: Driver) -> None:
    """Suspends when asked; a restored job runs."""
    driver.beat()
    if driver.spec.number > 1:
        driver.status("RUNNING")
    for command in driver.waiting_commands():
        assert (command.verb, command.arguments["mode"]) == ("stop", "suspend")
        driver.complete(8, "stop-savepoint", PATH)
        data = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 8, "path": PATH}
        driver.status("STOPPED", stop=data)
        driver.answer(command, True, "committed", "stopped", **data)


def test_a_job_is_suspended_and_restored_at_the_other_parallelism(tidegate: Caller, driver: Driver) -> None:
    answer = tidegate("rescale", "flights", "--parallelism", "4", "--json")
    assert answer.code == 0, answer.err
    (spec,) = tidegate.launched
    assert spec.options == {**driver.spec.options, "parallelism": 4} and spec.arguments == {"column": "k"}
    assert (spec.artifact, spec.lineage) == (driver.spec.artifact, driver.spec.lineage)
    assert spec.restore is not None and spec.restore.path == PATH
    assert f"suspended with savepoint {PATH}" in answer.err
    assert "--option parallelism=2" in answer.err, "the way back"


def test_the_log_format_may_change_with_the_parallelism(tidegate: Caller, driver: Driver) -> None:
    assert tidegate("rescale", "flights", "--parallelism", "4", "--log-format", "json").code == 0
    assert tidegate.launched[0].options == {**driver.spec.options, "parallelism": 4, "log_format": "json"}


def test_a_job_that_has_it_is_not_stopped(tidegate: Caller, driver: Driver) -> None:
    answer = tidegate("rescale", "flights", "--parallelism", "2")
    assert (answer.code, answer.out) == (0, "flights: already runs at parallelism 2\n")
    assert tidegate.launched == []


def test_a_rescale_that_was_interrupted_goes_on_from_the_savepoint(tidegate: Caller, driver: Driver) -> None:
    driver.complete(8, "stop-savepoint", PATH)
    driver.status("STOPPED", stop={"outcome": "committed", "mode": "suspend", "checkpoint_id": 8, "path": PATH})
    assert tidegate("rescale", "flights", "--parallelism", "1").code == 0
    assert tidegate.launched[0].options["parallelism"] == 1


@pytest.mark.parametrize("parallelism", ["0", "9"])
def test_what_cannot_be_is_refused_before_the_job_is_stopped(
    tidegate: Caller, driver: Driver, parallelism: str
) -> None:
    """S5.1."""
    answer = tidegate("rescale", "flights", "--parallelism", parallelism)
    assert answer.code == 2 and "Pass a number from 1 to 8" in answer.err
    assert driver.waiting_commands() == [] and tidegate.launched == []


@pytest.mark.parametrize("status", ["FINISHED", "CANCELED"])
def test_a_job_that_ended_otherwise_is_not_suspended(tidegate: Caller, driver: Driver, status: str) -> None:
    driver.status(status)
    answer = tidegate("rescale", "flights", "--parallelism", "4")
    assert answer.code == 7 and f"it is {status}, not suspended" in answer.err
    assert tidegate.launched == []
