"""Another parallelism: the job runs at it or at the old one, however often Airflow is interrupted (S5.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.operators.rescale import TidegateRescaleJobOperator
from airflow_tidegate.version_compat import AirflowFailException
from tidegate.jobs.records import RestoreFrom

Steps = list[Callable[[], None]]
OPTIONS = {"parallelism": 2, "checkpoint_interval": "10 s", "max_parallelism": 8}


class World:
    """A job at parallelism 2 whose drivers do what the test says."""

    def __init__(self, job: Job) -> None:
        self.client = job.client
        self.drivers: list[ScriptedDriver] = []
        self.on_new: Callable[[ScriptedDriver], None] = lambda driver: driver.status("RUNNING")
        job.submit(options=OPTIONS)
        job.on_launch = self.launched
        self.launched(1, 1)
        self.drivers[0].status("RUNNING")
        self.drivers[0].checkpoint(1)

    def launched(self, spec: int, attempt: int) -> None:
        self.drivers.append(ScriptedDriver(self.client, spec, attempt))
        if spec > 1:
            self.on_new(self.drivers[-1])

    def suspends(self) -> None:
        """The driver carries out the one stop that waits."""
        [command] = [c for c in self.drivers[-1].commands() if self.client.result(c) is None]
        self.drivers[-1].checkpoint(2, "stop-savepoint")
        data = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 2, "path": self.savepoint}
        self.drivers[-1].answer(command, **data)
        self.drivers[-1].status("STOPPED", stop=data)

    @property
    def savepoint(self) -> str:
        return self.client.layout.checkpoint(2, 1)


@pytest.fixture
def world(job: Job, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(job)
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    return made


def rescale(parallelism: Any = 4, **changes: Any) -> TidegateRescaleJobOperator:
    return TidegateRescaleJobOperator(**{"task_id": "r", "job_id": "j1", "parallelism": parallelism, **changes})


def test_the_job_goes_on_from_its_savepoint_at_the_other_parallelism(
    job: Job, world: World, between_looks: Steps
) -> None:
    between_looks += [world.suspends, lambda: world.drivers[1].checkpoint(3)]
    result = rescale("4").execute(job.context("r"))
    assert result == {
        "job_id": "j1",
        "spec": 2,
        "generation": 2,
        "status": "RUNNING",
        "parallelism": 4,
        "rescaled_from": 2,
        "savepoint": world.savepoint,
        "checkpoint_id": 3,
        "path": world.client.layout.checkpoint(3, 2),
    }
    old, new = job.client.specs()
    assert new.options == {**old.options, "parallelism": 4} and new.options["checkpoint_interval"] == "10 s"
    assert (new.artifact, new.arguments, new.lineage) == (old.artifact, old.arguments, old.lineage)
    assert new.restore == RestoreFrom("savepoint", world.savepoint, 2)
    assert rescale().execute(job.context("r")) == result, "a retry finds what was done"
    assert job.launches == [2] and len(world.drivers[0].commands()) == 1


def test_a_job_that_has_it_is_left_as_it_is(job: Job, world: World) -> None:
    found = rescale(2).execute(job.context("r"))
    assert (found["parallelism"], found["rescaled_from"], found["savepoint"]) == (2, 2, None)
    assert world.drivers[0].commands() == [] and len(job.client.specs()) == 1


def test_a_clear_of_a_rescale_that_was_done_does_nothing(job: Job, world: World, between_looks: Steps) -> None:
    between_looks += [world.suspends, lambda: world.drivers[1].checkpoint(3)]
    rescale().execute(job.context("r"))
    again = rescale().execute(job.context("r", clear_number=1))
    assert (again["spec"], again["rescaled_from"], again["savepoint"]) == (2, 4, None)
    assert len(job.client.specs()) == 2


def test_a_job_that_does_not_come_up_goes_back_to_what_it_was(job: Job, world: World, between_looks: Steps) -> None:
    def fails(driver: ScriptedDriver) -> None:
        driver.status("FAILED", reason="6 of 8 slots after 10 min")
        world.on_new = lambda back: back.status("RUNNING")

    world.on_new = fails
    between_looks.append(world.suspends)
    with pytest.raises(AirflowFailException, match="6 of 8 slots.*submission 3 runs the old version"):
        rescale().execute(job.context("r"))
    old, _, back = job.client.specs()
    assert back.options == old.options and back.restore == RestoreFrom("savepoint", world.savepoint, 2)


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (lambda: rescale(9), "more than the job's max_parallelism, 8"),
        (lambda: rescale(0), "must be an integer of 1 or more"),
        (lambda: rescale(4, options={"checkpoint_interval": "1 s"}), "can change only the parallelism"),
    ],
)
def test_what_cannot_be_is_refused_before_the_job_is_stopped(
    job: Job, world: World, operator: Callable[[], TidegateRescaleJobOperator], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        operator().execute(job.context("r"))
    assert world.drivers[0].commands() == []
