"""An agent and the job directories it looks after; drivers that do only what the test scripts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import ClassVar

import pytest
from scripted_contract import FakeTime, ScriptedDriver

from tidegate.errors import EnvironmentProblemError, OptionError, StoreError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch import agent as agents
from tidegate.jobs.launch.agent import Agent
from tidegate.jobs.launch.desired_state import read_desired, request_running, request_stopped
from tidegate.jobs.launch.launcher import DriverState
from tidegate.jobs.launch.relaunch import LAUNCH_GRACE_S, RelaunchBudget
from tidegate.jobs.launch.replaced_drivers import REPLACED_GRACE_S
from tidegate.jobs.launches import record_launch, record_process
from tidegate.jobs.os_processes import process_start_time
from tidegate.jobs.records import Launch, Spec

DEATH_S = 60.0


class Place:
    """A launcher, and what runs there."""

    kind: ClassVar[str] = "local"

    def __init__(self) -> None:
        self.states: dict[int, DriverState] = {}
        self.refusal: Exception | None = None
        self.before_launch: Callable[[], object] = lambda: None
        self.while_handing_over: Callable[[], object] = lambda: None
        self.absent = DriverState.UNKNOWN
        self.process: tuple[int | None, str | None] = None, None
        self.killed: list[tuple[int, bool]] = []

    def launch(self, client: JobClient, spec: Spec, attempt: int | None = None) -> Launch:
        self.before_launch()
        if isinstance(self.refusal, OptionError):
            raise self.refusal
        launch = record_launch(client.store, client.layout, spec.number, launcher=self.kind, attempt=attempt)
        if self.refusal is not None:
            raise self.refusal
        self.while_handing_over()
        self.states[launch.attempt] = DriverState.RUNNING
        pid, started = self.process
        launch = replace(launch, external_id=f"x-{launch.attempt}", pid=pid, process_started=started)
        return record_process(client.store, client.layout, launch)

    def state(self, launch: Launch) -> DriverState:
        return self.states.get(launch.attempt, self.absent)

    def log(self, launch: Launch) -> str:
        return ""

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        self.killed.append((launch.attempt, graceful))
        self.states[launch.attempt] = DriverState.GONE
        return True


class World:
    """An agent over a root."""

    def __init__(self, client: JobClient, spec: Spec, clock: FakeTime) -> None:
        self.client, self.spec, self.clock = client, spec, clock
        self.place = Place()
        self.said: list[str] = []
        self.agent = self.new_agent()

    def new_agent(self) -> Agent:
        return Agent(
            self.client.root,
            {},
            kind="local",
            launchers={"local": self.place},
            budget=RelaunchBudget(2, 3600.0),
            say=self.said.append,
            monotonic=self.clock.monotonic,
        )

    @property
    def launches(self) -> list[tuple[int, int]]:
        return self.client.launches()

    def begins(self, attempt: int) -> ScriptedDriver:
        """The driver of a launch begins."""
        driver = ScriptedDriver(self.client, self.spec, launch=attempt)
        driver.status("RUNNING")
        driver.beat()
        return driver

    def dies(self, attempt: int) -> None:
        """And is seen to be gone, which takes two looks."""
        self.place.states[attempt] = DriverState.GONE
        self.agent.round()


@pytest.fixture
def world(client: JobClient, spec: Spec, clock: FakeTime) -> World:
    return World(client, spec, clock)


def test_an_agent_launches_what_is_wanted_once(world: World) -> None:
    assert not world.agent.round()
    assert world.launches == []
    request_running(world.client, world.spec, by="airflow")
    assert world.agent.round()
    assert not world.agent.round()
    world.begins(1)
    assert not world.agent.round()
    assert world.launches == [(1, 1)]
    assert world.said == ["flights: submission 1, launch 1: x-1 (requested by airflow)"]


def test_saying_again_that_it_is_wanted_changes_nothing_until_it_is_launched(world: World) -> None:
    first = request_running(world.client, world.spec, by="airflow")
    world.clock.sleep(5)
    assert request_running(world.client, world.spec, by="somebody else") == first == read_desired(world.client)
    world.agent.round()
    assert request_running(world.client, world.spec, by="airflow").launch == 1
    assert request_running(world.client, world.spec, by="airflow", anew=True).launch == 2


def test_a_driver_that_is_on_its_way_is_not_launched_again_when_it_is_wanted_again(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.clock.sleep(3600)
    request_running(world.client, world.spec, by="airflow")
    assert not world.agent.round()
    assert world.launches == [(1, 1)]


def test_a_dead_driver_is_launched_anew_at_the_second_look_and_not_beyond_the_budget(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    for attempt in (1, 2, 3):
        world.begins(attempt)
        assert not world.agent.round()
        world.dies(attempt)
        assert world.launches[-1] == (1, attempt)
        world.agent.round()
    assert world.launches == [(1, 1), (1, 2), (1, 3)]
    assert (
        "the agent stops relaunching the driver: the driver is dead, and was relaunched 2 times within 3600 s"
        in world.said[-1]
    )
    said = len(world.said)
    for _ in range(3):
        assert not world.agent.round()
    assert len(world.said) == said
    world.clock.sleep(1)
    request_running(world.client, world.spec, by="airflow")
    assert world.agent.round()
    assert world.launches[-1] == (1, 4)


def test_a_driver_that_says_its_last_words_while_it_ends_is_not_launched_anew(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    driver = world.begins(1)
    world.dies(1)
    driver.status("STOPPED")
    assert not world.agent.round()
    assert world.launches == [(1, 1)]


@pytest.mark.parametrize("status", ["STOPPED", "FINISHED", "CANCELED", "FAILED"])
def test_a_job_that_has_ended_is_not_launched_again(world: World, status: str) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1).status(status)
    world.dies(1)
    for _ in range(3):
        assert not world.agent.round()
    assert world.launches == [(1, 1)]


def test_a_failed_job_is_launched_again_when_somebody_wants_it(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1).status("FAILED")
    world.dies(1)
    request_running(world.client, world.spec, by="airflow", anew=True)
    assert world.agent.round()
    assert world.launches == [(1, 1), (1, 2)]


def test_a_driver_of_a_job_that_is_to_be_stopped_is_not_launched_anew(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1)
    request_stopped(world.client, by="alice")
    world.dies(1)
    world.agent.round()
    assert world.launches == [(1, 1)]


def test_a_driver_that_died_while_it_was_being_stopped_is_not_launched_anew(world: World) -> None:
    """As nobody who supervises a job does."""
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1)
    world.client.send("stop", issued_by="alice", expires_in=timedelta(days=36500))
    world.dies(1)
    assert not world.agent.round()
    assert world.launches == [(1, 1)]


def test_a_silent_driver_is_launched_anew_wherever_it_runs(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    driver = world.begins(1)
    world.place.states.clear()
    for _ in range(3):
        world.clock.sleep(20)
        driver.beat()
        assert not world.agent.round()
    world.clock.sleep(30)
    assert world.agent.round()
    assert world.launches == [(1, 1), (1, 2)]


def test_an_agent_that_was_killed_finds_its_driver_again(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1)
    world.agent = world.new_agent()
    for _ in range(3):
        assert not world.agent.round()
    assert world.launches == [(1, 1)]


def test_two_agents_launch_once(world: World) -> None:
    other = world.new_agent()
    request_running(world.client, world.spec, by="airflow")

    def the_other_is_faster() -> None:
        world.place.before_launch = lambda: None
        assert other.round()

    world.place.before_launch = the_other_is_faster
    assert not world.agent.round()
    assert world.launches == [(1, 1)]
    assert len(world.said) == 1


def test_an_agent_leaves_a_launch_to_the_one_that_is_at_it(world: World) -> None:
    """A cluster that can be asked knows nothing of it until spark-submit is through with it. Each agent superseded the
    other's launch, whose driver then never began, until both had given the job up."""
    other = world.new_agent()
    world.place.absent = DriverState.GONE
    request_running(world.client, world.spec, by="airflow")

    def looks_on() -> None:
        for _ in range(10):
            world.clock.sleep(30)
            assert not other.round()

    world.place.while_handing_over = looks_on
    assert world.agent.round()
    assert not world.agent.round() and not other.round()
    assert world.launches == [(1, 1)]


def test_a_launch_on_a_cluster_that_failed_is_made_anew_at_once_by_the_agent_that_saw_it(world: World) -> None:
    world.place.absent = DriverState.GONE
    request_running(world.client, world.spec, by="airflow")
    world.place.refusal = EnvironmentProblemError("no such queue")
    world.agent.round()
    world.place.refusal = None
    assert [world.agent.round() for _ in range(3)] == [False, True, False]
    assert world.launches == [(1, 1), (1, 2)]


def test_a_launch_that_its_agent_did_not_live_to_make_is_made_anew_after_a_while(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    record_launch(world.client.store, world.client.layout, world.spec.number, launcher="local")
    assert not world.agent.round()
    world.clock.sleep(LAUNCH_GRACE_S)
    assert world.agent.round()
    assert world.launches == [(1, 1), (1, 2)]


def test_a_launch_that_fails_is_told_here_and_in_the_jobs_log_and_tried_within_the_budget(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.place.refusal = EnvironmentProblemError("no such python")
    world.agent.round()
    world.agent.round()
    assert world.said == ["flights: no such python"]
    log = world.client.store.read(world.client.layout.launch_log(1, 1))
    assert log == b"no such python\n"
    for _ in range(5):
        world.clock.sleep(LAUNCH_GRACE_S)
        world.agent.round()
    assert world.launches == [(1, 1), (1, 2), (1, 3)]
    assert "stops relaunching" in world.said[-1]


def test_a_submission_that_cannot_be_launched_so_is_given_up_at_once(world: World) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.place.refusal = OptionError("master local[*] does not go with the launcher yarn")
    for _ in range(3):
        world.agent.round()
    assert world.said == ["flights: master local[*] does not go with the launcher yarn"]
    assert world.launches == []
    assert b"does not go" in world.client.store.read(world.client.layout.launch_log(1, 1))


def test_a_newer_submission_that_nobody_wants_launched_by_an_agent_is_left_alone(world: World, pipeline: str) -> None:
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1).status("FINISHED")
    world.client.submit(pipeline=pipeline, fresh=True)
    world.agent.round()
    assert world.launches == [(1, 1)]


def test_one_job_that_cannot_be_read_keeps_nobody_else_from_being_launched(
    world: World, pipeline: str, root: str
) -> None:
    other = JobClient(root, "aaa")
    request_running(other, other.submit(pipeline=pipeline), by="airflow")
    other.store.replace(other.layout.desired, b"?")
    request_running(world.client, world.spec, by="airflow")
    assert world.agent.round()
    assert world.launches == [(1, 1)]
    assert world.said[0].startswith("aaa: the record 'desired' cannot be read")


def test_a_job_that_nobody_wants_or_that_is_over_costs_one_request_a_round(
    world: World, pipeline: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    JobClient(root, "aaa").submit(pipeline=pipeline)
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1).status("FINISHED")
    world.agent.round()
    read: list[str] = []
    store = world.agent._jobs["flights"].store
    original = type(store).read

    def counting(self: object, path: str) -> bytes:
        read.append(path)
        return original(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store), "read", counting)
    world.agent.round()
    assert read == ["aaa/desired.json", "flights/desired.json"]


def test_one_job_whose_launch_fails_in_an_unforeseen_way_keeps_nobody_else_from_being_launched(
    world: World, pipeline: str, root: str
) -> None:
    other = JobClient(root, "aaa")
    request_running(other, other.submit(pipeline=pipeline), by="airflow")
    request_running(world.client, world.spec, by="airflow")

    def fails_once() -> None:
        world.place.before_launch = lambda: None
        raise KeyError("pod.name")

    world.place.before_launch = fails_once
    assert world.agent.round()
    assert world.launches == [(1, 1)]
    assert world.said[0] == "aaa: KeyError: 'pod.name'"


def test_the_pauses_grow_while_nothing_happens_and_a_root_that_is_away_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []
    over = threading.Event()

    def wait(seconds: float) -> bool:
        world.clock.sleep(seconds)
        return over.is_set()

    def away(names: list[str]) -> list[str]:
        rounds.append(world.clock.monotonic())
        if len(rounds) == 4:
            request_running(world.client, world.spec, by="airflow")
        if len(rounds) == 10:
            over.set()
        if 6 <= len(rounds) < 9:
            raise StoreError("away")
        return names

    monkeypatch.setattr(over, "wait", wait)
    monkeypatch.setattr(agents, "job_ids", away)
    world.agent.run(over)
    assert [later - one for one, later in pairwise(rounds)] == [2, 4, 8, 1, 2, 4, 8, 15, 15]
    assert world.said[1:] == ["agent: the root cannot be read, and is read again in up to 15 s: away"]


def test_the_death_of_a_driver_on_its_own_host_ends_a_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    world.place.process = os.getpid(), process_start_time(os.getpid())
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1)

    def wait(seconds: float) -> bool:
        world.clock.sleep(seconds)
        if world.clock.monotonic() == DEATH_S:
            monkeypatch.setattr(agents, "is_running", lambda pid, started: False)
            world.place.states[1] = DriverState.GONE
        if world.said[1:]:
            over.set()
        return over.is_set()

    monkeypatch.setattr(over, "wait", wait)
    world.agent.run(over)
    assert len(world.said) == 2
    assert world.said[1].endswith("(the driver is dead)")
    assert world.clock.monotonic() <= DEATH_S + 3


def test_the_silence_of_a_driver_during_an_outage_of_the_store_is_not_held_against_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.2: it could not write its heartbeat while the agent could not read."""
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1)
    assert not world.agent.round()
    with monkeypatch.context() as outage:

        def away(job: JobClient) -> object:
            raise StoreError("away")

        outage.setattr("tidegate.jobs.client.job_directory.JobDirectory.view", away)
        world.clock.sleep(DEATH_S)
        assert not world.agent.round()
    assert not world.agent.round()
    world.clock.sleep(DEATH_S)
    assert world.agent.round(), "it stays silent after the outage"
    assert world.launches == [(1, 1), (1, 2)]


def test_a_replaced_driver_that_still_runs_is_ended_once_its_successor_has_begun(world: World) -> None:
    """S9.2: it is frozen, and the resource manager keeps its cores for it."""
    request_running(world.client, world.spec, by="airflow")
    world.agent.round()
    world.begins(1)
    assert not world.agent.round()
    world.clock.sleep(DEATH_S)
    assert world.agent.round(), "it is silent, though its place says that it runs"
    world.clock.sleep(REPLACED_GRACE_S)
    assert not world.agent.round()
    assert world.place.killed == [], "not before the fence: it may still be alive"
    world.begins(2)
    assert not world.agent.round()
    assert world.place.killed == [], "a living driver may end by itself"
    world.clock.sleep(REPLACED_GRACE_S)
    for _ in range(3):
        assert not world.agent.round()
    assert world.place.killed == [(1, False)]
    assert world.said[-1] == "flights: ended the replaced driver of launch 1, x-1, which still ran"
