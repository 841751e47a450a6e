"""Starting a driver on this machine, and finding it again after whoever started it has died.

The launch is recorded before the start, so that no driver runs that the job directory knows nothing of, and its process
after it. Two launchers at once are told apart by create-only attempts; what slips through is fenced by the decision
log.
"""

from __future__ import annotations

import base64
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
from typing import TYPE_CHECKING, Any

from tidegate.clock import now_iso
from tidegate.errors import AlreadyExistsError, EnvironmentProblemError, FencedError, NotFoundError, StoreError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.os_processes import children, host_name, is_running, process_space, process_started, send_signal
from tidegate.jobs.records import Launch, Spec, decode, encode
from tidegate.jobs.stores.store import Store

if TYPE_CHECKING:
    from tidegate.jobs.client.job_client import JobClient

DRIVER_MODULE = "tidegate.spark.driver"
DRIVER_ENTRY = "driver_entry.py"
"""Name of the program that spark-submit is given."""
STORAGE_OPTIONS_VARIABLE = "TIDEGATE_STORAGE_OPTIONS"
"""Environment variable of a driver and of the command line: JSON of the root's storage options, with references to
secrets."""
CALLER_VARIABLE = "TIDEGATE_CALLER"
"""Environment variable of the command line: on whose behalf it is called, as the job directory shall say it."""
BASE64 = "base64:"
"""Begins a value of it that is not the JSON itself."""
MAX_LAUNCH_RACES = 100
"""Attempts that other launchers may take first."""
UNFINISHED_LAUNCH_S = 5.0
"""How long another launcher on this machine may take from recording a launch to recording its process, seconds."""
_POLL_S = 0.1
_GATEWAY = "PYSPARK_GATEWAY_"
"""Begins the variables by which a program below spark-submit finds its JVM."""


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
        pid is never touched. Of spark-submit the Python program below it is told first: the JVM knows no graceful
        end, and ends with it."""
        programs = children(self.pid, DRIVER_ENTRY) if self.is_running() else ()
        for pid, started in programs:
            send_signal(pid, started, number)
        if programs and number is not signal.SIGKILL:
            return True
        return send_signal(self.pid, self.launch.process_started, number)


def driver_arguments(root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """What a driver is told on its command line, whoever starts it."""
    return ("--root", root, "--job", job_id, "--spec", str(launch.spec), "--launch", str(launch.attempt))


def driver_command(python: str, root: str, launch: Launch, job_id: str) -> tuple[str, ...]:
    """Arguments of a driver's process on this machine."""
    return (python, "-m", DRIVER_MODULE, *driver_arguments(root, launch, job_id))


def record_launch(
    client: JobClient,
    spec: Spec,
    *,
    launcher: str,
    command: Callable[[Launch], Sequence[str]] | None = None,
    host: str | None = None,
    attempt: int | None = None,
) -> Launch:
    """Record an attempt to start a driver for `spec`, before the start.

    Args:
        launcher: kind, for example "local".
        command: gives the process's arguments for the attempt; they are stored: no secrets.
        host: where it will run; this machine when None.
        attempt: this one, or none: for who has judged the attempts before it; None: the next.

    Raises:
        AlreadyExistsError: `attempt` is somebody else's.
        StoreError: the store cannot write, or others keep launching.
    """
    store, layout = client.store, client.layout
    launch = Launch(
        spec=spec.number,
        attempt=attempt or 1,
        launcher=launcher,
        host=host_name() if host is None else host,
        launched_at=now_iso(),
        command=(),
        nonce=secrets.token_hex(16),
        process_space=process_space() if host is None else "",
    )
    for _ in range(MAX_LAUNCH_RACES):
        if attempt is None:
            launch = replace(launch, attempt=newest_attempt(store, layout, spec.number) + 1)
        launch = replace(launch, command=tuple(command(launch)) if command is not None else ())
        try:
            store.create(layout.launch(spec.number, launch.attempt), encode(launch))
        except AlreadyExistsError:
            if attempt is not None:
                raise
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
    living = settled_local(client, spec, sleep)
    if living is not None:
        return living.launch
    launch = record_launch(
        client,
        spec,
        launcher="local",
        command=lambda attempt: driver_command(python, client.root, attempt, spec.job_id),
    )
    return start_process(client, spec, launch, env)


def start_process(client: JobClient, spec: Spec, launch: Launch, env: Mapping[str, str] | None = None) -> Launch:
    """Start a recorded launch as a detached process of this machine, in a session of its own, and record the process.
    A launch from a program below spark-submit, such as a notebook, does not get that one's JVM.

    Args:
        launch: as `record_launch` gave it.
        env: environment variables besides this process's own.

    Returns:
        The launch with pid, start time and the local path of the log.

    Raises:
        EnvironmentProblemError: the process cannot be started.
    """
    log = _log_path(client, launch)
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
    started = process_started(process.pid)
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return record_process(client, replace(launch, pid=process.pid, process_started=started, log=log))


def record_process(client: JobClient, launch: Launch) -> Launch:
    """Record what a launch has started: a process of this machine, or a driver that a cluster runs."""
    client.store.create(client.layout.launched_process(launch.spec, launch.attempt), encode(launch))
    return launch


def refuse_if_superseded(store: Store, layout: JobLayout, spec: int, attempt: int) -> None:
    """Raise FencedError when a newer submission, or a newer launch of this one, is recorded: for a driver that is about
    to begin. Whoever launched anew has given it up. Once it reigns, the decision log alone judges (S9.2)."""
    newest = max(_launches(store, layout), default=(spec, attempt))
    if newest > (spec, attempt):
        cause, remedy = f"launch {newest[1]} of submission {newest[0]}", "Nothing: the newer launch's driver carries on"
    elif store.exists(layout.spec(spec + 1)):
        cause, remedy = f"submission {spec + 1}", "Nothing: that is what the job does now, once it is launched"
    else:
        return
    raise FencedError(
        f"launch {attempt} of submission {spec} was given up before it began",
        where=f"job {layout.job_id}",
        cause=f"{cause} is recorded",
        remedy=remedy,
    )


def storage_options_text(options: Mapping[str, Any]) -> str:
    """The value of TIDEGATE_STORAGE_OPTIONS for places that put environment variables into a shell script unquoted, as
    YARN does: no quote, dollar or backslash in it."""
    return BASE64 + base64.b64encode(json.dumps(dict(options), sort_keys=True).encode()).decode()


def storage_options_from(text: str) -> dict[str, Any]:
    """What TIDEGATE_STORAGE_OPTIONS holds: JSON, or what `storage_options_text` made of it. Raises ValueError."""
    if text.startswith(BASE64):
        text = base64.b64decode(text.removeprefix(BASE64), validate=True).decode()
    return dict(json.loads(text or "{}"))


def find_local(client: JobClient, spec: Spec) -> RunningDriver | None:
    """The newest driver of `spec` that runs on this machine; None when there is none."""
    for launch in launched_processes(client.store, client.layout, spec.number):
        if is_here(launch) and launch.pid is not None and is_running(launch.pid, launch.process_started):
            return RunningDriver(launch)
    return None


def local_death(client: JobClient, spec: Spec) -> Launch | None:
    """The newest launch of `spec` when its process was on this machine and is gone: a certain death. None: it lives,
    runs elsewhere, or was never launched."""
    for number, attempt in reversed(_launches(client.store, client.layout)):
        if number == spec.number:
            launch = _process_of(client.store, client.layout, number, attempt)
            if launch is None or not is_here(launch) or launch.pid is None:
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


def newest_attempt(store: Store, layout: JobLayout, spec_number: int) -> int:
    """The newest recorded attempt to launch a submission; 0: none."""
    return max((attempt for number, attempt in _launches(store, layout) if number == spec_number), default=0)


def launch_of(store: Store, layout: JobLayout, spec_number: int, attempt: int) -> Launch:
    """A launch, with what it has started as far as that is recorded. Raises NotFoundError."""
    path = layout.launch(spec_number, attempt)
    return _process_of(store, layout, spec_number, attempt) or decode(store.read(path), Launch, path)


def may_be_queued(client: JobClient, spec: Spec) -> bool:
    """The newest launch is a cluster's, which may keep its driver waiting in a queue for any time."""
    attempt = newest_attempt(client.store, client.layout, spec.number)
    return attempt > 0 and launch_of(client.store, client.layout, spec.number, attempt).external_id is not None


def settled_local(client: JobClient, spec: Spec, sleep: Callable[[float], None] = time.sleep) -> RunningDriver | None:
    """`find_local`, giving another launcher on this machine the time to record its process."""
    store, layout = client.store, client.layout
    for _ in range(round(UNFINISHED_LAUNCH_S / _POLL_S)):
        living = find_local(client, spec)
        newest = newest_attempt(store, layout, spec.number)
        if living is not None or not newest or _process_of(store, layout, spec.number, newest) is not None:
            return living
        if not is_here(launch_of(store, layout, spec.number, newest)):
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


def is_here(launch: Launch) -> bool:
    """Whether it was made on this machine, where pids are what its record says."""
    return launch.host == host_name() and launch.process_space == process_space()


def _log_path(client: JobClient, launch: Launch) -> str:
    """Where the process writes: in the job directory when that is local, else in a private temporary folder."""
    name = client.layout.launch_log(launch.spec, launch.attempt)
    path = client.store.local_path(name)
    if path is None:
        path = os.path.join(tempfile.mkdtemp(prefix=f"tidegate-{client.layout.job_id}-"), os.path.basename(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
