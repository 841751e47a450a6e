"""S9.2: a driver that was fenced off and still runs is ended, so that its cores are free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from scripted_contract import ScriptedDriver

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.launcher import DriverState
from tidegate.jobs.launch.replaced_drivers import end_by_launchers, end_on_this_host, replaced_launches
from tidegate.jobs.launches import LocalDriver, record_launch, record_process
from tidegate.jobs.os_processes import is_running, process_start_time
from tidegate.jobs.records import Launch, Spec

WAIT_S = 60.0
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


class Processes:
    """Drivers that only exist, each with a child as a driver has its JVM."""

    def __init__(self, client: JobClient, resources: ExitStack) -> None:
        self.client = client
        self._resources = resources
        self.parents: dict[int, subprocess.Popen[str]] = {}
        self.children: dict[int, tuple[int, str | None]] = {}

    def launch(self, spec: int, host: str | None = None) -> Launch:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._resources.callback(process.wait, WAIT_S)
        self._resources.callback(_kill_group, process.pid)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        store, layout = self.client.store, self.client.layout
        launch = record_launch(store, layout, spec, launcher="local", host=host)
        self.parents[launch.attempt] = process
        self.children[launch.attempt] = child, process_start_time(child)
        started = process_start_time(process.pid)
        return record_process(store, layout, replace(launch, pid=process.pid, process_started=started))

    def replaced(self) -> list[Launch]:
        return replaced_launches(self.client, self.client.decisions())

    def freeze(self, attempt: int) -> None:
        os.killpg(self.parents[attempt].pid, signal.SIGSTOP)


def _kill_group(leader: int) -> None:
    """End a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@pytest.fixture
def processes(client: JobClient) -> Iterator[Processes]:
    with ExitStack() as resources:
        yield Processes(client, resources)


def test_a_frozen_driver_and_its_jvm_are_ended_after_the_fence(processes: Processes, spec: Spec) -> None:
    for attempt in (1, 2):
        processes.launch(spec.number)
        ScriptedDriver(processes.client, spec, launch=attempt)
    processes.freeze(1)
    assert [launch.attempt for launch in end_on_this_host(processes.replaced())] == [1]
    assert processes.parents[1].wait(WAIT_S) == -signal.SIGKILL
    child, started = processes.children[1]
    deadline = time.monotonic() + WAIT_S
    while is_running(child, started):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert processes.parents[2].poll() is None
    assert end_on_this_host(processes.replaced()) == [], "it has ended"


def test_nothing_is_ended_before_the_fence_nor_on_another_host(processes: Processes, spec: Spec) -> None:
    processes.launch(spec.number, host="elsewhere")
    ScriptedDriver(processes.client, spec, launch=1)
    processes.launch(spec.number)
    assert processes.replaced() == []
    ScriptedDriver(processes.client, spec, launch=2)
    assert [launch.attempt for launch in processes.replaced()] == [1]
    assert end_on_this_host(processes.replaced()) == []


def test_launches_between_two_fences_that_never_began_are_replaced_too(processes: Processes, spec: Spec) -> None:
    store, layout = processes.client.store, processes.client.layout
    for attempt in range(1, 5):
        record_launch(store, layout, spec.number, launcher="local")
        if attempt != 3:
            ScriptedDriver(processes.client, spec, launch=attempt)
    assert [launch.attempt for launch in processes.replaced()] == [2, 3]


class Place:
    """A launcher whose drivers are in the states that the test sets."""

    def __init__(self, states: dict[int, DriverState]) -> None:
        self.states = states
        self.killed: list[tuple[int, bool]] = []

    def state(self, launch: Launch) -> DriverState:
        return self.states[launch.attempt]

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        self.killed.append((launch.attempt, graceful))
        return True


def test_launchers_end_only_what_runs_at_their_place(client: JobClient, spec: Spec) -> None:
    launches = [record_launch(client.store, client.layout, spec.number, launcher="local") for _ in range(3)]
    other = replace(launches[0], launcher="another-kind")
    place = Place({1: DriverState.RUNNING, 2: DriverState.GONE, 3: DriverState.UNKNOWN})
    killed = end_by_launchers([*launches, other], {"local": place})  # type: ignore[dict-item]
    assert [launch.attempt for launch in killed] == [1]
    assert place.killed == [(1, False)]


def test_a_process_in_the_group_of_another_is_ended_alone(processes: Processes, spec: Spec) -> None:
    """A driver that this program has not started: its group may be a whole terminal session."""
    launch = processes.launch(spec.number)
    child, started = processes.children[1]
    assert LocalDriver(replace(launch, pid=child, process_started=started)).destroy()
    assert processes.parents[1].poll() is None
