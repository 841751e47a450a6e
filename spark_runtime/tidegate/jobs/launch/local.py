"""Drivers as detached processes of this host: how to start one, and the launcher that starts Python directly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from tidegate.errors import AlreadyExistsError, EnvironmentProblemError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.driver_secrets import require_driver_secrets
from tidegate.jobs.launch.desired_state import read_desired, stop_requested_by
from tidegate.jobs.launch.launcher import (
    Check,
    DriverState,
    LauncherSetting,
    LauncherSettings,
    World,
    driver_arguments,
    recorded_place,
)
from tidegate.jobs.launch.launcher_checks import check_interpreter, check_master
from tidegate.jobs.launches import (
    LocalDriver,
    find_local_driver,
    is_on_this_host,
    launched_process,
    newest_attempt,
    read_launch,
    record_launch,
    record_process,
)
from tidegate.jobs.os_processes import process_start_time
from tidegate.jobs.process_environment import STORAGE_OPTIONS_VARIABLE
from tidegate.jobs.process_output import output_tail
from tidegate.jobs.records import Launch, Spec

DRIVER_MODULE = "tidegate.spark.driver"
"""Module that a driver's Python runs."""
UNFINISHED_LAUNCH_S = 5.0
"""How long another launcher on this machine may take between the records of a launch and its process, in seconds."""
_POLL_S = 0.1
_GATEWAY = "PYSPARK_GATEWAY_"
"""Prefix of the variables by which a program under spark-submit finds its JVM."""


def driver_command(python: str, root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """Return the arguments of a driver's process on this machine."""
    return (python, "-m", DRIVER_MODULE, *driver_arguments(root, launch, job_id))


def launch_local(
    job: JobDirectory,
    spec: Spec,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Launch:
    """Start a driver for `spec` as a detached process of this machine, or find the running one.

    Args:
        python: interpreter with tidegate[spark].
        env: environment variables in addition to this process's own.
        sleep: pauses while another launcher records its process.

    Returns:
        The launch with pid, start time and the local path of the log.

    Raises:
        EnvironmentProblemError: the process cannot be started, or a secret of the submission is missing.
        StoreError: the store cannot write.
    """
    living = find_local_driver_settled(job, spec, sleep)
    if living is not None:
        return living.launch
    return _start_python(job, spec, python, env=env)


def launch_successor(job: JobDirectory, spec: Spec, attempt: int) -> Launch | None:
    """Start the driver that follows this process, which is the driver of launch `attempt` and must end.

    Only for drivers that `LocalLauncher` has started, and that nobody supervises: an agent launches drivers itself, and
    its budget counts them.

    Returns:
        The launch; None: another launcher is responsible, or the job is to end.

    Raises:
        EnvironmentProblemError: the process cannot be started.
        StoreError: the store cannot be read, or cannot write.
    """
    own = read_launch(job.store, job.layout, spec.number, attempt)
    desired = read_desired(job)
    supervised = desired is not None and (desired.state, desired.spec) == ("running", spec.number)
    if own.launcher != LocalLauncher.kind or supervised or stop_requested_by(job, spec.number):
        return None
    try:
        return _start_python(job, spec, sys.executable, attempt=attempt + 1)
    except AlreadyExistsError:
        return None


def _start_python(
    job: JobDirectory, spec: Spec, python: str, *, env: Mapping[str, str] | None = None, attempt: int | None = None
) -> Launch:
    require_secrets(spec, env)
    launch = record_launch(
        job.store,
        job.layout,
        spec.number,
        launcher=LocalLauncher.kind,
        command=lambda made: driver_command(python, job.root, made, spec.job_id),
        attempt=attempt,
    )
    return start_process(job, spec, launch, env)


def require_secrets(spec: Spec, env: Mapping[str, str] | None) -> None:
    """Check, before a launch is recorded, that a process of this machine would have the submission's secrets.

    Args:
        env: environment variables in addition to this process's own.

    Raises:
        EnvironmentProblemError: a secret is missing.
    """
    where = f"job {spec.job_id}, submission {spec.number}"
    require_driver_secrets(spec.secrets, {**os.environ, **(env or {})}, where=where)


def start_process(job: JobDirectory, spec: Spec, launch: Launch, env: Mapping[str, str] | None = None) -> Launch:
    """Start a recorded launch as a detached process of this machine, in its own session, and record the process.

    If this process runs under spark-submit, for example in a notebook, the driver does not use its JVM.

    Args:
        launch: launch as `record_launch` returned it.
        env: environment variables in addition to this process's own. They may be secrets: only the process's
            environment holds them.

    Returns:
        The launch with pid, start time and the local path of the log.

    Raises:
        EnvironmentProblemError: the process cannot be started.
    """
    log = _log_path(job, launch)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(_GATEWAY)},
        **(env or {}),
        STORAGE_OPTIONS_VARIABLE: json.dumps(dict(spec.storage_options), sort_keys=True),
    }
    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Otherwise a Ctrl-C in the terminal, or its end, would end the driver too.
                start_new_session=True,
                env=environment,
            )
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        raise EnvironmentProblemError(
            "the driver's process cannot be started",
            where=f"job {spec.job_id}, {launch.command[0]}",
            cause=str(error),
            remedy="Check the path of the Python interpreter, or of spark-submit",
        ) from error
    # Before the thread below waits: a process that has been collected has no start time any more.
    started = process_start_time(process.pid)
    # without a wait, an ended driver would stay a zombie process of this process
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return record_process(job.store, job.layout, replace(launch, pid=process.pid, process_started=started, log=log))


def find_local_driver_settled(
    job: JobDirectory, spec: Spec, sleep: Callable[[float], None] = time.sleep
) -> LocalDriver | None:
    """Call `find_local_driver`, but wait for another launcher on this machine to record its process."""
    store, layout = job.store, job.layout
    for _ in range(round(UNFINISHED_LAUNCH_S / _POLL_S)):
        living = find_local_driver(store, layout, spec.number)
        newest = newest_attempt(store, layout, spec.number)
        if living is not None or not newest or launched_process(store, layout, spec.number, newest) is not None:
            return living
        if not is_on_this_host(read_launch(store, layout, spec.number, newest)):
            return None
        sleep(_POLL_S)
    return None


def _log_path(job: JobDirectory, launch: Launch) -> str:
    """Return the path of the process's output: in a local job directory, or else in a private temporary folder."""
    name = job.layout.launch_log(launch.spec, launch.attempt)
    path = job.store.local_path(name)
    if path is None:
        path = os.path.join(tempfile.mkdtemp(prefix=f"tidegate-{job.layout.job_id}-"), os.path.basename(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


class ProcessLauncher:
    """Base of launchers whose drivers are processes of this host."""

    kind: ClassVar[str] = ""
    settings: ClassVar[tuple[LauncherSetting, ...]] = ()
    runs_on_this_host: ClassVar[bool] = True
    passes_environment: ClassVar[bool] = True

    def __init__(self, settings: LauncherSettings) -> None:
        self._settings = settings

    def state(self, launch: Launch) -> DriverState:
        """See `Launcher.state`. UNKNOWN for another machine's process, and for one that was never recorded."""
        if not is_on_this_host(launch) or launch.pid is None:
            return DriverState.UNKNOWN
        return DriverState.RUNNING if LocalDriver(launch).is_running() else DriverState.GONE

    def log(self, launch: Launch) -> str:
        """See `Launcher.log`. Returns the last lines of the output."""
        return output_tail(launch)

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`."""
        if not is_on_this_host(launch) or launch.pid is None:
            return False
        return LocalDriver(launch).kill(signal.SIGTERM) if graceful else LocalDriver(launch).destroy()

    @staticmethod
    def log_place(launch: Launch) -> str:
        """See `Launcher.log_place`."""
        return recorded_place(launch)


class LocalLauncher(ProcessLauncher):
    """Launches drivers as Python processes of this machine."""

    kind: ClassVar[str] = "local"

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        python, env = self._settings.python or sys.executable, self._settings.environment
        return _start_python(job, spec, python, env=env, attempt=attempt)

    def check(self, master: str, spark_conf: Mapping[str, str], world: World) -> list[Check]:
        """See `Launcher.check`."""
        return [check_interpreter(self._settings, world), *check_master(master, world)]
