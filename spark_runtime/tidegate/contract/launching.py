"""Starting a driver on this machine, and finding it again after whoever started it has died.

The launch is recorded before the start, so that no driver runs that the job directory knows nothing of, and its process
after it. Two launchers at once are told apart by create-only attempts; what slips through is fenced by the decision
log.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate.contract.clock import now_iso
from tidegate.contract.errors import AlreadyExistsError, EnvironmentProblemError, NotFoundError, StoreError
from tidegate.contract.layout import JobLayout
from tidegate.contract.processes import host_name, is_running, process_space, process_started, send_signal
from tidegate.contract.records import Launch, Spec, decode, encode
from tidegate.contract.store import Store

if TYPE_CHECKING:
    from tidegate.contract.client import JobClient

DRIVER_MODULE = "tidegate.spark.driver"
STORAGE_OPTIONS_VARIABLE = "TIDEGATE_STORAGE_OPTIONS"
"""Environment variable of a driver and of the command line: JSON of the root's storage options, with references to
secrets."""
CALLER_VARIABLE = "TIDEGATE_CALLER"
"""Environment variable of the command line: on whose behalf it is called, as the job directory shall say it."""
MAX_LAUNCH_RACES = 100
"""Attempts that other launchers may take first."""
UNFINISHED_LAUNCH_S = 5.0
"""How long another launcher on this machine may take from recording a launch to recording its process, seconds."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class RunningDriver:
    """A driver's process on this machine, alive when it was looked at.

    Attributes:
        launch: with pid, start time and log.
    """

    launch: Launch

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.launch.pid is not None
        return self.launch.pid

    def is_running(self) -> bool:
        """Whether it still is."""
        return is_running(self.pid, self.launch.process_started)

    def kill(self, number: signal.Signals = signal.SIGTERM) -> bool:
        """Send it a signal, SIGTERM asking for a graceful end; False when it is gone. A process that has taken over its
        pid is never touched."""
        return send_signal(self.pid, self.launch.process_started, number)


def driver_command(python: str, root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """Arguments of a driver's process."""
    numbers = ("--spec", str(launch.spec), "--launch", str(launch.attempt))
    return (python, "-m", DRIVER_MODULE, "--root", root, "--job", job_id, *numbers)


def record_launch(
    client: JobClient,
    spec: Spec,
    *,
    launcher: str,
    command: Callable[[Launch], Sequence[str]] | None = None,
    host: str | None = None,
) -> Launch:
    """Record an attempt to start a driver for `spec`, before the start.

    Args:
        launcher: kind, for example "local".
        command: gives the process's arguments for the attempt; they are stored: no secrets.
        host: where it will run; this machine when None.

    Raises:
        StoreError: the store cannot write, or others keep launching.
    """
    store, layout = client.store, client.layout
    launch = Launch(
        spec=spec.number,
        attempt=1,
        launcher=launcher,
        host=host_name() if host is None else host,
        launched_at=now_iso(),
        command=(),
        nonce=secrets.token_hex(16),
        process_space=process_space() if host is None else "",
    )
    for _ in range(MAX_LAUNCH_RACES):
        attempts = [attempt for number, attempt in _launches(store, layout) if number == spec.number]
        launch = replace(launch, attempt=max(attempts, default=0) + 1)
        launch = replace(launch, command=tuple(command(launch)) if command is not None else ())
        try:
            store.create(layout.launch(spec.number, launch.attempt), encode(launch))
        except AlreadyExistsError:
            continue
        return launch
    raise StoreError("others keep launching this submission", where=layout.launches, remedy="Find out who does")


def launch_local(
    client: JobClient,
    spec: Spec,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Launch:
    """Start a driver for `spec` as a detached process of this machine, or find the one that runs already.

    Args:
        python: interpreter with tidegate and pyspark.
        env: environment variables besides this process's own.
        sleep: for waiting until another launcher has recorded its process.

    Returns:
        The launch with pid, start time and the local path of the log.

    Raises:
        EnvironmentProblemError: the process cannot be started.
        StoreError: the store cannot write.
    """
    living = _settled_local(client, spec, sleep)
    if living is not None:
        return living.launch
    launch = record_launch(
        client,
        spec,
        launcher="local",
        command=lambda attempt: driver_command(python, client.root, attempt, spec.job_id),
    )
    log = _log_path(client, launch)
    environment = {
        **os.environ,
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
                start_new_session=True,
                env=environment,
            )
    except OSError as error:
        raise EnvironmentProblemError(
            "the driver's process cannot be started",
            where=f"job {spec.job_id}, {launch.command[0]}",
            cause=str(error),
            remedy="Check the path of the Python interpreter",
        ) from error
    started = process_started(process.pid)
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    launch = replace(launch, pid=process.pid, process_started=started, log=log)
    client.store.create(client.layout.launched_process(launch.spec, launch.attempt), encode(launch))
    return launch


def find_local(client: JobClient, spec: Spec) -> RunningDriver | None:
    """The newest driver of `spec` that runs on this machine; None when there is none."""
    for launch in launched_processes(client.store, client.layout, spec.number):
        if _is_here(launch) and launch.pid is not None and is_running(launch.pid, launch.process_started):
            return RunningDriver(launch)
    return None


def local_death(client: JobClient, spec: Spec) -> Launch | None:
    """The newest launch of `spec` when its process was on this machine and is gone: a certain death. None: it lives,
    runs elsewhere, or was never launched."""
    for number, attempt in reversed(_launches(client.store, client.layout)):
        if number == spec.number:
            launch = _process_of(client.store, client.layout, number, attempt)
            if launch is None or not _is_here(launch) or launch.pid is None:
                return None
            return None if is_running(launch.pid, launch.process_started) else launch
    return None


def launched_processes(store: Store, layout: JobLayout, spec_number: int) -> list[Launch]:
    """Launches of a submission whose process was recorded, newest first."""
    found: list[Launch] = []
    for number, attempt in reversed(_launches(store, layout)):
        launch = _process_of(store, layout, number, attempt) if number == spec_number else None
        if launch is not None:
            found.append(launch)
    return found


def _settled_local(client: JobClient, spec: Spec, sleep: Callable[[float], None]) -> RunningDriver | None:
    """`find_local`, giving another launcher on this machine the time to record its process."""
    store, layout = client.store, client.layout
    for _ in range(round(UNFINISHED_LAUNCH_S / _POLL_S)):
        living = find_local(client, spec)
        attempts = [attempt for number, attempt in _launches(store, layout) if number == spec.number]
        if living is not None or not attempts or _process_of(store, layout, spec.number, attempts[-1]) is not None:
            return living
        path = layout.launch(spec.number, attempts[-1])
        if not _is_here(decode(store.read(path), Launch, path)):
            return None
        sleep(_POLL_S)
    return None


def _launches(store: Store, layout: JobLayout) -> list[tuple[int, int]]:
    return layout.launch_numbers(store.list(layout.launches))


def _process_of(store: Store, layout: JobLayout, number: int, attempt: int) -> Launch | None:
    path = layout.launched_process(number, attempt)
    try:
        return decode(store.read(path), Launch, path)
    except NotFoundError:
        return None


def _is_here(launch: Launch) -> bool:
    return launch.host == host_name() and launch.process_space == process_space()


def _log_path(client: JobClient, launch: Launch) -> str:
    """Where the process writes: in the job directory when that is local, else in a private temporary folder."""
    name = client.layout.launch_log(launch.spec, launch.attempt)
    path = client.store.local_path(name)
    if path is None:
        path = os.path.join(tempfile.mkdtemp(prefix=f"tidegate-{client.layout.job_id}-"), os.path.basename(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
