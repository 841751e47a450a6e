"""The spark-submit launcher: the driver runs on this host, in client mode.

A standalone cluster refuses Python applications in cluster mode, so the driver is a detached client. The recorded
process is the JVM, which ends with the Python program below it. It reads the settings of the Spark installation
(SPARK_HOME, spark-defaults.conf).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import ClassVar

from tidegate.errors import OptionError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch import driver_entry
from tidegate.jobs.launch.launcher import Check, LauncherSettings, World
from tidegate.jobs.launch.launcher_checks import check_interpreter, check_master, check_spark_submit
from tidegate.jobs.launch.local import ProcessLauncher, require_secrets, start_process
from tidegate.jobs.launch.spark_submit_command import command_conf, submit_command
from tidegate.jobs.launches import record_launch
from tidegate.jobs.records import Launch, Spec


class SparkSubmitLauncher(ProcessLauncher):
    """Launches drivers with spark-submit on this machine in client mode, for `spark://host:port`."""

    kind: ClassVar[str] = "spark-submit"

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        if spec.master.startswith(("yarn", "k8s://")):
            raise OptionError(
                f"master {spec.master} cannot be used with the launcher spark-submit",
                where=f"job {spec.job_id}, launcher",
                cause="the launcher spark-submit runs the driver on this host, in client mode",
                remedy="Use the launcher yarn or kubernetes, which run the driver on the cluster",
            )
        require_secrets(spec, self._settings.environment)
        entry = os.path.abspath(driver_entry.__file__)
        launch = record_launch(
            job.store,
            job.layout,
            spec.number,
            launcher=self.kind,
            command=lambda made: client_command(self._settings, spec, made, job.root, entry),
            attempt=attempt,
        )
        # A spark-submit script in a Python environment finds Spark through Python, so it must use the drivers' Python.
        python = self._settings.python or sys.executable
        env = {"PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", python)}
        return start_process(job, spec, launch, {**self._settings.environment, **env})

    def check(self, master: str, spark_conf: Mapping[str, str], world: World) -> list[Check]:
        """See `Launcher.check`."""
        submit, python = check_spark_submit(self._settings), check_interpreter(self._settings, world)
        return [submit, python, *check_master(master, world)]


def client_command(settings: LauncherSettings, spec: Spec, launch: Launch, root: str, entry: str) -> tuple[str, ...]:
    """Return the command that starts the driver in client mode. `spark.pyspark.driver.python` runs it; workers use the
    same Python by default."""
    conf = {"spark.pyspark.driver.python": settings.python or sys.executable, **command_conf(spec)}
    return submit_command(settings, spec, launch, root, "client", conf, entry)
