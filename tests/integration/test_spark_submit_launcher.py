"""spark-submit in client mode to a real standalone cluster: its launcher dies; it is found again, read, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PIPELINE, RealJob
from pipelines.counting import expected

from tidegate.jobs.launch.launcher import DriverState, LauncherSettings
from tidegate.jobs.launch.launcher_registry import RunningDriver, find_running_driver, make_launchers
from tidegate.jobs.launches import record_launch
from tidegate.jobs.records import RestoreFrom

ROWS = 24_000
RATE = 4_000.0
LAUNCH_AND_HANG = """
import sys, threading
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.local import SparkSubmitLauncher
client = JobClient(sys.argv[1], sys.argv[2])
SparkSubmitLauncher(LauncherSettings("spark-submit")).launch(client, client.specs()[-1])
print("launched", flush=True)
threading.Event().wait()
"""
GONE_S = 60.0
"""How long a driver that was told to end may take until its JVM is gone, seconds."""


class SubmittedJob(RealJob):
    """A job whose drivers are launched by spark-submit, by a process of its own that is killed afterwards."""

    def submit(self, restore: RestoreFrom | None = None, rate: float = RATE) -> None:
        """Submit, launch, and kill -9 the launcher."""
        self.client.submit(
            pipeline=f"{PIPELINE}:build",
            arguments={"rows": ROWS, "rate": rate, "out": self.out},
            options=self.options,
            master=self.master,
            spark_conf={"spark.driver.memory": "512m"},
            restore=restore,
        )
        command = [sys.executable, "-c", LAUNCH_AND_HANG, self.root, self.client.job_id]
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"launched\n"
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        self._pids.append(self.driver_pid())

    def found(self) -> RunningDriver | None:
        """By a launcher that knows nothing but the job directory."""
        return find_running_driver(self.client, self.client.specs()[-1], make_launchers(LauncherSettings()))

    def until_gone(self, driver: RunningDriver) -> None:
        """Until its process is."""
        deadline = time.monotonic() + GONE_S
        while driver.launcher.state(driver.launch) is not DriverState.GONE:
            assert time.monotonic() < deadline, self.logs()[-4000:]
            time.sleep(0.1)

    def end(self) -> None:
        """See RealJob."""
        if self.client.specs() and (driver := self.found()) is not None:
            driver.launcher.kill(driver.launch, graceful=False)


@pytest.fixture
def submitted_job(standalone_cluster: str, tmp_path: Path) -> Iterator[SubmittedJob]:
    """A job on the standalone cluster."""
    job = SubmittedJob(tmp_path, standalone_cluster)
    yield job
    job.end()


@pytest.mark.slow
def test_a_submitted_driver_outlives_its_launcher_is_found_read_and_stopped_and_the_next_one_goes_on(
    submitted_job: SubmittedJob,
) -> None:
    """S9.2: and at last the output is exact."""
    job = submitted_job
    job.submit()
    job.completed(2)
    driver = job.found()
    assert driver is not None and driver.launch.launcher == "spark-submit"
    assert "--deploy-mode" in driver.launch.command and job.client.is_alive()
    assert "generation 1 of job counting" in job.logs()
    assert driver.launcher.kill(driver.launch)
    view = job.until_status("STOPPED", "FAILED")
    assert view.stop is not None and view.stop["mode"] == "suspend", view.failure
    job.until_gone(driver)
    assert job.found() is None
    job.submit(RestoreFrom("latest"), rate=50_000.0)
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(ROWS)


@pytest.mark.slow
def test_a_submitted_driver_killed_at_once_is_known_dead_and_one_given_up_before_it_began_does_not_begin(
    submitted_job: SubmittedJob,
) -> None:
    """S9.2."""
    job = submitted_job
    job.submit()
    job.completed(1)
    driver = job.found()
    assert driver is not None
    assert driver.launcher.kill(driver.launch, graceful=False)
    job.until_gone(driver)
    assert not job.client.is_alive()
    spec = job.client.specs()[-1]
    late = driver.launcher.launch(job.client, spec)
    record_launch(job.client.store, job.client.layout, spec.number, launcher="spark-submit")
    job.until_gone(RunningDriver(late, driver.launcher))
    assert "launch 2 of submission 1 was replaced by a newer one before its driver began" in driver.launcher.log(late)
    assert job.client.view().generation == 1
