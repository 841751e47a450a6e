"""Drivers in a real YARN: submitted, found again by their tag, read, killed, launched anew, stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import PIPELINE, RealJob
from pipelines.counting import expected
from yarn_cluster import YarnCluster

from tidegate.jobs.launch.launcher import DriverState, LauncherSettings
from tidegate.jobs.launch.launcher_registry import RunningDriver, find_running_driver, make_launchers
from tidegate.jobs.records import Launch, RestoreFrom

ROWS = 24_000
RATE = 250.0
RUNTIME = str(Path(__file__).resolve().parents[2] / "spark_runtime")
GONE_S = 90.0
CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    # What an archive or an image would bring along lies on this machine already; and nothing listens beyond loopback.
    **{f"spark.{where}.PYTHONPATH": RUNTIME for where in ("yarn.appMasterEnv", "executorEnv")},
    **{f"spark.{where}.SPARK_LOCAL_IP": "127.0.0.1" for where in ("yarn.appMasterEnv", "executorEnv")},
    **{f"spark.{where}.SPARK_LOCAL_HOSTNAME": "127.0.0.1" for where in ("yarn.appMasterEnv", "executorEnv")},
}


class YarnJob(RealJob):
    """A job whose drivers are YARN's."""

    settings: LauncherSettings

    def submit(self) -> None:
        """Submit."""
        self.client.submit(
            pipeline=f"{PIPELINE}:build",
            arguments={"rows": ROWS, "rate": RATE, "out": self.out},
            options=self.options,
            master=self.master,
            spark_conf=CONF,
        )

    def launch(self) -> Launch:
        """Launch a driver of the newest submission."""
        return make_launchers(self.settings)["yarn"].launch(self.client, self.client.specs()[-1])

    def found(self) -> RunningDriver | None:
        """By a launcher that knows the job directory and the cluster."""
        return find_running_driver(self.client, self.client.specs()[-1], make_launchers(self.settings))

    def until_gone(self, driver: RunningDriver) -> None:
        """Until YARN says so."""
        deadline = time.monotonic() + GONE_S
        while driver.launcher.state(driver.launch) is not DriverState.GONE:
            assert time.monotonic() < deadline, driver.launcher.log(driver.launch)[-4000:]
            time.sleep(0.5)


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnCluster]:
    """A cluster of one node."""
    cluster = YarnCluster()
    try:
        cluster.start()
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_lives_in_yarn_its_driver_is_found_by_its_tag_killed_and_followed_by_the_next(
    yarn: YarnCluster, tmp_path: Path
) -> None:
    """S9.2: and at last the output is exact."""
    job = YarnJob(tmp_path, "yarn")
    job.settings = LauncherSettings("yarn", python=sys.executable, extra={"yarn": str(yarn.yarn)})
    job.submit()
    launch = job.launch()
    assert launch.external_id is not None and launch.external_id.startswith("application_")
    job.completed(2)
    driver = job.found()
    assert driver is not None and driver.launch.external_id == launch.external_id
    unrecorded = replace(launch, external_id=None)  # whoever submitted it died before it noted the application
    assert driver.launcher.state(unrecorded) is DriverState.RUNNING
    assert driver.launcher.kill(unrecorded)
    job.until_gone(driver)
    assert not driver.launcher.kill(launch) and job.found() is None and not job.client.is_alive()

    second = job.launch()
    job.until(lambda view: view.completed[-1].generation == 2, "a checkpoint of the second driver")
    job.client.send("stop", {"mode": "suspend"}, command_id="stop-1", issued_by="test")
    view = job.until_status("STOPPED", "FAILED")
    assert view.stop is not None and view.stop["outcome"] == "committed", view.failure
    driver = RunningDriver(second, driver.launcher)
    job.until_gone(driver)
    assert "generation 2 of job counting" in driver.launcher.log(second)

    job.client.submit(
        options=job.options,
        arguments={"rows": ROWS, "rate": 50_000.0, "out": job.out},
        restore=RestoreFrom("latest"),
        pipeline=None,
    )
    job.launch()
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(ROWS)
