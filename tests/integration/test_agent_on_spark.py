"""A real `tidegate agent` with a job on local Spark: it launches, is killed, finds its driver again, launches anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PIPELINE, RealJob
from pipelines.counting import expected

from tidegate.jobs.launch.desired_state import request_running
from tidegate.jobs.launches import find_local_driver

ROWS = 24_000
RATE = 4_000.0


class AgentProcess:
    """`tidegate agent`, started and ended by its process id."""

    def __init__(self, root: str) -> None:
        command = [sys.executable, "-m", "tidegate.cli.main", "agent", "--root", root, "--restarts", "1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def line(self) -> str:
        """The next line it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self, number: signal.Signals) -> int:
        """Its exit code."""
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        return self._process.wait(30)


class WantedJob(RealJob):
    """A job that is only submitted and wanted; its agents launch it."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, "local[2]")
        self._agents: list[AgentProcess] = []

    def submit(self) -> None:
        spec = self.client.submit(
            pipeline=f"{PIPELINE}:build",
            arguments={"rows": ROWS, "rate": RATE, "out": self.out},
            options=self.options,
            master=self.master,
        )
        request_running(self.client, spec, by="test")

    def agent(self) -> AgentProcess:
        started = AgentProcess(self.root)
        self._agents.append(started)
        assert "supervises" in started.line()
        return started

    def end(self) -> None:
        for agent in self._agents:
            agent.end(signal.SIGKILL)
        driver = find_local_driver(self.client.store, self.client.layout, self.client.specs()[-1].number)
        if driver is not None:
            driver.kill(signal.SIGKILL)


@pytest.fixture
def wanted_job(tmp_path: Path) -> Iterator[WantedJob]:
    job = WantedJob(tmp_path)
    yield job
    job.end()


@pytest.mark.slow
def test_an_agent_launches_is_killed_finds_its_driver_again_and_launches_anew_when_that_dies(
    wanted_job: WantedJob,
) -> None:
    """S9.2: and at last the output is exact."""
    job = wanted_job
    job.submit()
    agent = job.agent()
    assert "launch 1: process" in agent.line()
    job.completed(1)
    assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    agent = job.agent()
    seen = len(job.client.view().completed)
    job.completed(seen + 2)
    assert job.client.launches() == [(1, 1)]
    os.kill(job.driver_pid(), signal.SIGKILL)
    assert "launch 2: process" in agent.line()
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.generation == 2
    assert job.output() == expected(ROWS)
    assert agent.end(signal.SIGTERM) == 0
    assert "the drivers keep running" in agent.line()
