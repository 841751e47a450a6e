"""Starting a driver's process, and finding it again. A stand-in for the driver says who it is and waits for its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_contract import ScriptedDriver

from tidegate.errors import DriverLostError, EnvironmentProblemError, JobExistsError
from tidegate.jobs import os_processes
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch import local
from tidegate.jobs.launch.local import driver_command, launch_local
from tidegate.jobs.launches import find_local_driver, local_driver_death, record_launch
from tidegate.jobs.records import Launch, Spec, decode, encode

STAND_IN = """
import json, os, signal, sys
print(json.dumps({"argv": sys.argv[1:], "options": os.environ["TIDEGATE_STORAGE_OPTIONS"],
                  "extra": os.environ.get("EXTRA"), "stdin": sys.stdin.read(),
                  "gateway": os.environ.get("PYSPARK_GATEWAY_PORT")}), flush=True)
open(os.environ["READY"], "w").close()
signal.pause()
"""


class Machine:
    """Starts stand-ins and waits for what they do."""

    def __init__(self, folder: Path) -> None:
        self.ready = str(folder / "ready")
        self.started: list[Launch] = []
        os.mkfifo(self.ready)

    def launch(self, client: JobClient, spec: Spec) -> Launch:
        """Launch a stand-in and wait until it is up."""
        launch = launch_local(client, spec, env={"READY": self.ready, "EXTRA": "yes"})
        self.started.append(launch)
        with open(self.ready):
            return launch

    def end(self, launch: Launch) -> None:
        """Kill a stand-in and wait until it is gone."""
        assert launch.pid is not None
        os_processes.send_signal(launch.pid, launch.process_started, signal.SIGKILL)
        while os_processes.is_running(launch.pid, launch.process_started):
            os.sched_yield()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(local, "DRIVER_MODULE", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = Machine(tmp_path)
    yield started
    for launch in started.started:
        started.end(launch)


@pytest.fixture
def local_client(tmp_path: Path) -> JobClient:
    return JobClient(str(tmp_path / "root"), "flights", {"key": "secret:env/KEY"})


@pytest.fixture
def local_spec(local_client: JobClient, pipeline: str) -> Spec:
    return local_client.submit(pipeline=pipeline)


def test_a_driver_is_started_detached_with_its_numbers_and_references(
    machine: Machine, local_client: JobClient, local_spec: Spec
) -> None:
    launch = machine.launch(local_client, local_spec)
    assert launch.pid is not None and launch.log is not None
    told = json.loads(Path(launch.log).read_text())
    root = local_client.root
    assert told["argv"] == ["--root", root, "--job", "flights", "--spec", "1", "--launch", "1"]
    assert (json.loads(told["options"]), told["extra"], told["stdin"]) == ({"key": "secret:env/KEY"}, "yes", "")
    assert os.getsid(launch.pid) == launch.pid
    assert launch.command == driver_command(sys.executable, root, launch, "flights")
    assert launch.log == f"{root}/flights/logs/launch-000001-1.log"


def test_a_driver_that_is_launched_from_below_spark_submit_does_not_get_that_programs_jvm(
    machine: Machine, local_client: JobClient, local_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a notebook: it takes a gateway in its environment for its own, with the master set."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    launch = machine.launch(local_client, local_spec)
    assert launch.log is not None
    assert json.loads(Path(launch.log).read_text())["gateway"] is None


def test_the_launch_is_recorded_before_the_start_and_the_process_after_it(
    machine: Machine, local_client: JobClient, local_spec: Spec
) -> None:
    launch = machine.launch(local_client, local_spec)
    layout, store = local_client.layout, local_client.store
    before = decode(store.read(layout.launch(1, 1)), Launch)
    after = decode(store.read(layout.launched_process(1, 1)), Launch)
    assert after == launch
    assert before == replace(launch, pid=None, process_started=None, log=None)


def test_a_living_driver_is_found_again_by_another_client(
    machine: Machine, local_client: JobClient, local_spec: Spec
) -> None:
    launch = machine.launch(local_client, local_spec)
    other = JobClient(local_client.root, "flights")
    found = find_local_driver(other.store, other.layout, local_spec.number)
    assert found is not None and found.pid == launch.pid and found.is_running()
    assert other.is_alive()
    assert local_driver_death(other.store, other.layout, local_spec.number) is None


def test_a_second_launch_gives_the_living_driver(machine: Machine, local_client: JobClient, local_spec: Spec) -> None:
    launch = machine.launch(local_client, local_spec)
    assert launch_local(local_client, local_spec) == launch
    assert local_client.launches() == [(1, 1)]


def test_a_job_that_is_being_started_cannot_be_submitted_again(
    machine: Machine, local_client: JobClient, local_spec: Spec, pipeline: str
) -> None:
    launch = machine.launch(local_client, local_spec)
    with pytest.raises(JobExistsError, match=f"is being started.*process {launch.pid}"):
        local_client.submit(pipeline=pipeline)


def test_after_a_death_the_next_launch_is_a_new_attempt(
    machine: Machine, local_client: JobClient, local_spec: Spec
) -> None:
    first = machine.launch(local_client, local_spec)
    machine.end(first)
    assert find_local_driver(local_client.store, local_client.layout, local_spec.number) is None
    assert local_driver_death(local_client.store, local_client.layout, local_spec.number) == first
    assert not local_client.is_alive()
    second = machine.launch(local_client, local_spec)
    assert (second.attempt, second.pid != first.pid) == (2, True)
    assert local_driver_death(local_client.store, local_client.layout, local_spec.number) is None


def test_a_wait_shows_the_last_words_of_a_driver_that_died_before_it_began(
    machine: Machine, local_client: JobClient, local_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.end(machine.launch(local_client, local_spec))
    pauses: list[float] = []
    client = JobClient(local_client.root, "flights", sleep=pauses.append)
    with pytest.raises(DriverLostError, match=r"its process has ended(?s:.*)--launch"):
        client.wait_status({"RUNNING"})
    assert len(pauses) == 1
    assert list(client.logs()) == ["launch-000001-1.log"]


def test_killing_reaches_this_very_process_only(machine: Machine, local_client: JobClient, local_spec: Spec) -> None:
    launch = machine.launch(local_client, local_spec)
    assert launch.pid is not None
    assert not os_processes.send_signal(launch.pid, "another process of this pid", signal.SIGKILL)
    found = find_local_driver(local_client.store, local_client.layout, local_spec.number)
    assert found is not None and found.kill(signal.SIGKILL)
    machine.end(launch)
    assert not found.kill() and not found.is_running()


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"process_space": "pid:[another container]"}])
@pytest.mark.parametrize("alive_here", [True, False])
def test_a_driver_of_another_machine_is_neither_found_nor_declared_dead(
    local_client: JobClient, local_spec: Spec, elsewhere: dict[str, Any], alive_here: bool
) -> None:
    launch = record_launch(local_client.store, local_client.layout, local_spec.number, launcher="local")
    started = os_processes.process_start_time(os.getpid()) if alive_here else "long ago"
    recorded = replace(launch, pid=os.getpid(), process_started=started, **elsewhere)
    local_client.store.create(local_client.layout.launched_process(1, 1), encode(recorded))
    assert find_local_driver(local_client.store, local_client.layout, local_spec.number) is None
    assert local_driver_death(local_client.store, local_client.layout, local_spec.number) is None


def test_a_driver_that_died_on_this_machine_is_known_to_be_dead_without_watching(
    machine: Machine, local_client: JobClient, local_spec: Spec
) -> None:
    driver = ScriptedDriver(local_client, local_spec)
    driver.status("RUNNING")
    driver.beat()
    machine.end(machine.launch(local_client, local_spec))
    pauses: list[float] = []
    assert not JobClient(local_client.root, "flights", sleep=pauses.append).is_alive()
    assert pauses == []


def test_a_launcher_waits_for_another_that_has_not_recorded_its_process_yet(
    local_client: JobClient, local_spec: Spec
) -> None:
    launch = record_launch(local_client.store, local_client.layout, local_spec.number, launcher="local")
    mine = replace(launch, pid=os.getpid(), process_started=os_processes.process_start_time(os.getpid()))

    def the_other_goes_on(_seconds: float) -> None:
        local_client.store.create(local_client.layout.launched_process(1, 1), encode(mine))

    assert launch_local(local_client, local_spec, sleep=the_other_goes_on) == mine
    assert local_client.launches() == [(1, 1)]


def test_a_launch_whose_launcher_died_in_between_is_given_up(
    machine: Machine, local_client: JobClient, local_spec: Spec
) -> None:
    record_launch(local_client.store, local_client.layout, local_spec.number, launcher="local")
    pauses: list[float] = []
    launch = launch_local(local_client, local_spec, env={"READY": machine.ready}, sleep=pauses.append)
    machine.started.append(launch)
    assert launch.attempt == 2
    assert sum(pauses) == pytest.approx(local.UNFINISHED_LAUNCH_S)


def test_launchers_at_once_get_attempts_of_their_own(local_client: JobClient, local_spec: Spec) -> None:
    attempts = [
        record_launch(local_client.store, local_client.layout, local_spec.number, launcher="x").attempt
        for _ in range(3)
    ]
    assert attempts == [1, 2, 3]


def test_an_interpreter_that_is_not_there_gives_a_clear_error(local_client: JobClient, local_spec: Spec) -> None:
    with pytest.raises(EnvironmentProblemError, match="cannot be started.*no/such/python"):
        launch_local(local_client, local_spec, python="/no/such/python")


def test_a_process_that_waits_for_its_parent_counts_as_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert os_processes.process_start_time(process.pid) is None
    process.wait()


def test_a_process_without_proc_is_told_by_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[str], bool] = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self" and real(path))
    started = os_processes.process_start_time(os.getpid())
    assert started is not None and started == os_processes.process_start_time(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert os_processes.process_start_time(process.pid) is None
