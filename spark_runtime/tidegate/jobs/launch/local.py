"""Drivers as detached processes of this machine: Python itself, or spark-submit in client mode.

Python applications are refused in cluster mode by a standalone cluster; so a detached client is what a standalone
cluster offers. Under spark-submit the recorded process is the JVM's, which ends with the Python program below it, and
takes its settings from the Spark installation (SPARK_HOME, spark-defaults.conf).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import ClassVar

from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch import driver_entry
from tidegate.jobs.launch.cluster_commands import client_command
from tidegate.jobs.launch.launcher import DriverState, LauncherSettings
from tidegate.jobs.launches import RunningDriver, driver_command, is_here, record_launch, start_process
from tidegate.jobs.process_output import output_tail
from tidegate.jobs.records import Launch, Spec


class _Processes:
    """What both have in common."""

    kind: ClassVar[str] = ""

    def __init__(self, settings: LauncherSettings) -> None:
        self._settings = settings

    def state(self, launch: Launch) -> DriverState:
        """See `Launcher.state`: UNKNOWN of another machine's, and of one whose process was never recorded."""
        if not is_here(launch) or launch.pid is None:
            return DriverState.UNKNOWN
        return DriverState.RUNNING if RunningDriver(launch).is_running() else DriverState.GONE

    def log(self, launch: Launch) -> str:
        """See `Launcher.log`: the last lines of its output."""
        return output_tail(launch)

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`."""
        if not is_here(launch) or launch.pid is None:
            return False
        return RunningDriver(launch).kill(signal.SIGTERM if graceful else signal.SIGKILL)


class LocalLauncher(_Processes):
    """A Python process of this machine."""

    kind: ClassVar[str] = "local"

    def launch(self, client: JobClient, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        python = self._settings.python or sys.executable
        launch = record_launch(
            client,
            spec,
            launcher=self.kind,
            command=lambda made: driver_command(python, client.root, made, spec.job_id),
            attempt=attempt,
        )
        return start_process(client, spec, launch)


class SparkSubmitLauncher(_Processes):
    """spark-submit on this machine, the driver in client mode: for `spark://host:port`."""

    kind: ClassVar[str] = "spark-submit"

    def launch(self, client: JobClient, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        if spec.master.startswith(("yarn", "k8s://")):
            raise OptionError(
                f"master {spec.master} does not go with the launcher spark-submit",
                where=f"job {spec.job_id}, launcher",
                cause="it runs the driver here, in client mode",
                remedy="Use the launcher yarn or kubernetes, which run it on the cluster",
            )
        entry = os.path.abspath(driver_entry.__file__)
        launch = record_launch(
            client,
            spec,
            launcher=self.kind,
            command=lambda made: client_command(self._settings, spec, made, client.root, entry),
            attempt=attempt,
        )
        # The spark-submit of a Python environment asks Python where Spark is, and must ask the right one.
        python = self._settings.python or sys.executable
        env = {"PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", python)}
        return start_process(client, spec, launch, env)
