"""Drivers in YARN's ApplicationMaster. The `external_id` of a launch is the application's id.

`yarn_command` lists the settings that Spark's documentation requires (4.x: "Running Spark on YARN"). Tested on a
cluster of one node. If the launching process dies before it has recorded the application, the application can be found
by its tag, which follows from the launch's record.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch import driver_entry
from tidegate.jobs.launch.cluster import STATUS_TIMEOUT_S, TAIL, ClusterLauncher, no_answer
from tidegate.jobs.launch.launcher import (
    Check,
    DriverState,
    LauncherSetting,
    LauncherSettings,
    World,
    recorded_place,
)
from tidegate.jobs.launch.launcher_checks import check_spark_submit, fits_launcher
from tidegate.jobs.launch.spark_submit_command import command_conf, submit_command, wrong_master
from tidegate.jobs.launches import record_process
from tidegate.jobs.process_environment import STORAGE_OPTIONS_VARIABLE, storage_options_text
from tidegate.jobs.records import Launch, Spec

YARN = LauncherSetting(
    name="yarn", label="yarn", description="Path of YARN's command line; default: yarn.", default="yarn"
)

_APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")
_STATE = re.compile(r"^\s*State\s*:\s*(\w+)\s*$", re.MULTILINE)
_OVER = frozenset({"FINISHED", "FAILED", "KILLED"})


class YarnLauncher(ClusterLauncher):
    """Launches each driver in YARN's ApplicationMaster. `external_id` is the application's id."""

    kind: ClassVar[str] = "yarn"
    settings: ClassVar[tuple[LauncherSetting, ...]] = (YARN,)

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        entry = os.path.abspath(driver_entry.__file__)
        launch = self._record(
            job, spec, attempt, lambda made: yarn_command(self._settings, spec, made, job.root, entry)
        )
        answer = self._submit(spec, launch)
        application = yarn_application(answer.text) or self._by_tag(launch)
        if application is None:
            raise EnvironmentProblemError(
                "spark-submit printed no YARN application id, so it is unknown whether a driver runs",
                where=f"job {spec.job_id}",
                cause=answer.text[-TAIL:].strip(),
                remedy=f"Search YARN for an application with the tag {yarn_tag(launch)}. If there is none, start or "
                "restore the job again",
            )
        return record_process(job.store, job.layout, replace(launch, external_id=application))

    def state(self, launch: Launch) -> DriverState:
        """See `Launcher.state`."""
        application = self._application(launch)
        if application is None:
            return DriverState.GONE
        answer = self._run(yarn_status_command(self._settings, application), STATUS_TIMEOUT_S)
        state = yarn_state(answer.text)
        if state is DriverState.UNKNOWN and answer.code != 0:
            raise no_answer("YARN", answer)
        return state

    def log(self, launch: Launch) -> str:
        """See `Launcher.log`."""
        application = self._application(launch)
        if application is None:
            return ""
        return self._run(yarn_log_command(self._settings, application), STATUS_TIMEOUT_S).text

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`. YARN has no graceful end. For a savepoint, send a stop command first."""
        application = self._application(launch)
        if application is None or self.state(launch) is DriverState.GONE:
            return False
        return self._run(yarn_kill_command(self._settings, application), STATUS_TIMEOUT_S).code == 0

    def check(self, master: str, spark_conf: Mapping[str, str], world: World) -> list[Check]:
        """See `Launcher.check`."""
        checks = [fits_launcher(self.kind, master == "yarn", master), check_spark_submit(self._settings)]
        program, problems = self._settings.value(YARN), []
        if shutil.which(program) is None:
            what = (
                f"yarn: {program} does not exist, so running drivers could not be found. Name the path of the program"
            )
            problems.append(Check(False, what))
        if not world.environment.get("HADOOP_CONF_DIR") and not world.environment.get("YARN_CONF_DIR"):
            what = "yarn: Spark finds no configuration of the cluster. Set HADOOP_CONF_DIR or YARN_CONF_DIR"
            problems.append(Check(False, what))
        return [*checks, *(problems or [Check(True, f"yarn is {program}")])]

    @staticmethod
    def log_place(launch: Launch) -> str:
        """See `Launcher.log_place`."""
        if launch.external_id is None:
            return recorded_place(launch)
        return f"{launch.external_id}: `yarn logs -applicationId {launch.external_id}` shows its log"

    def _application(self, launch: Launch) -> str | None:
        return launch.external_id or self._by_tag(launch)

    def _by_tag(self, launch: Launch) -> str | None:
        answer = self._run(yarn_list_command(self._settings, launch), STATUS_TIMEOUT_S)
        if answer.code != 0:
            raise no_answer("YARN", answer)
        return yarn_application(answer.text)


def yarn_command(settings: LauncherSettings, spec: Spec, launch: Launch, root: str, entry: str) -> tuple[str, ...]:
    """Return the command that starts the driver in YARN's ApplicationMaster.

    - `spark.yarn.submit.waitAppCompletion=false`: spark-submit ends when the application is submitted.
    - `spark.yarn.maxAppAttempts=1`: the job's supervisor relaunches a dead driver with a new launch, so YARN must not
      start a second one for the same launch. `spark_conf` may override it.
    - `spark.yarn.tags`: finds the application if spark-submit's answer is lost.
    - `spark.yarn.appMasterEnv.NAME`: environment variables of the driver.
    - `spark.archives` (and `spark.submit.pyFiles`) in `spark_conf` bring the code. The interpreter is then in the
      archive, such as `./environment/bin/python`.

    Raises OptionError when master is not `yarn`.
    """
    if spec.master != "yarn":
        raise wrong_master(spec, "yarn", "yarn")
    python = {"spark.pyspark.python": settings.python} if settings.python else {}
    own = {
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.tags": _with_tag(spec, launch),
        f"spark.yarn.appMasterEnv.{STORAGE_OPTIONS_VARIABLE}": storage_options_text(spec.storage_options),
    }
    # The own settings come last. Without them, the application could not be found again.
    conf = {"spark.yarn.maxAppAttempts": "1", **python, **command_conf(spec), **own}
    return submit_command(settings, spec, launch, root, "cluster", conf, entry)


def yarn_tag(launch: Launch) -> str:
    """Return the tag that identifies the application of a launch."""
    return f"tidegate-{launch.nonce}"


def yarn_list_command(settings: LauncherSettings, launch: Launch) -> tuple[str, ...]:
    """Return the command that lists the application of a launch, in any state."""
    return (settings.value(YARN), "application", "-list", "-appStates", "ALL", "-appTags", yarn_tag(launch))


def yarn_status_command(settings: LauncherSettings, application: str) -> tuple[str, ...]:
    """Return the command that prints an application's state."""
    return (settings.value(YARN), "application", "-status", application)


def yarn_kill_command(settings: LauncherSettings, application: str) -> tuple[str, ...]:
    """Return the command that ends an application."""
    return (settings.value(YARN), "application", "-kill", application)


def yarn_log_command(settings: LauncherSettings, application: str) -> tuple[str, ...]:
    """Return the command that prints the ApplicationMaster's output, which is the driver's output."""
    return (settings.value(YARN), "logs", "-applicationId", application, "-am", "ALL")


def yarn_application(output: str) -> str | None:
    """Return the application's id in the output of spark-submit or `yarn application -list`; None: there is none."""
    found = _APPLICATION.search(output)
    return found[0] if found else None


def yarn_state(output: str) -> DriverState:
    """Parse the output of `yarn application -status`. An application in a queue is RUNNING, because it exists."""
    found = _STATE.search(output)
    if found is None:
        return DriverState.GONE if "doesn't exist" in output else DriverState.UNKNOWN
    return DriverState.GONE if found[1] in _OVER else DriverState.RUNNING


def _with_tag(spec: Spec, launch: Launch) -> str:
    given = command_conf(spec).get("spark.yarn.tags")
    return f"{given},{yarn_tag(launch)}" if given else yarn_tag(launch)
