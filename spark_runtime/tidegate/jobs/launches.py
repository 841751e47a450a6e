"""Records of launches: each attempt to start a driver of a submission, and the process or application that it started.

The attempt is recorded before the start, so that the job directory knows every driver. The process is recorded after
the start. If two launchers start at once, exclusive creation of the record lets one win, and the decision log fences
off a second driver. If the process that launched a driver dies, others find the driver by these records.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidegate.clock import now_iso
from tidegate.errors import AlreadyExistsError, FencedError, NotFoundError, StoreError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.os_processes import (
    child_processes,
    host_name,
    is_running,
    kill_process_group,
    process_group,
    process_namespace,
    send_signal,
)
from tidegate.jobs.records import Launch, encode, read_record
from tidegate.jobs.stores.store import Store

DRIVER_ENTRY = "driver_entry.py"
"""Name of the program that spark-submit runs."""
MAX_LAUNCH_CONFLICTS = 100
"""Number of attempts that other launchers may record first, until a launcher gives up."""


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """A driver's process on this machine. It was alive when it was found.

    Attributes:
        launch: record with pid, start time and log.
    """

    launch: Launch

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.launch.pid is not None
        return self.launch.pid

    def is_running(self) -> bool:
        """Return whether the process is still alive."""
        return is_running(self.pid, self.launch.process_started)

    def kill(self, number: signal.Signals = signal.SIGTERM) -> bool:
        """Send the process a signal; SIGTERM requests a graceful end. Returns False when it has ended.

        A later process with the same pid is never signalled. If spark-submit runs a Python program, only the program
        gets the signal, except SIGKILL: the JVM has no graceful end, and ends with the program.
        """
        programs = child_processes(self.pid, DRIVER_ENTRY) if self.is_running() else ()
        for pid, started in programs:
            send_signal(pid, started, number)
        if programs and number is not signal.SIGKILL:
            return True
        return send_signal(self.pid, self.launch.process_started, number)

    def destroy(self) -> bool:
        """Kill the process and its process group, which contains its JVM. Returns False when it has ended.

        A driver has a process group of its own (`start_process`). A frozen JVM would not notice the end of a driver
        that is killed alone, and would keep its executors.
        """
        if self.is_running() and process_group(self.pid) == self.pid:
            kill_process_group(self.pid)
            return True
        return self.kill(signal.SIGKILL)


def record_launch(
    store: Store,
    layout: JobLayout,
    spec_number: int,
    *,
    launcher: str,
    command: Callable[[Launch], Sequence[str]] | None = None,
    host: str | None = None,
    attempt: int | None = None,
) -> Launch:
    """Record an attempt to start a driver for submission `spec_number`, before the start.

    Args:
        launcher: kind of the launcher, for example "local".
        command: returns the process's arguments for the attempt. They are stored, so they must not contain secrets.
        host: machine on which it will run; None: this machine.
        attempt: record exactly this attempt, for callers that have checked all earlier attempts; None: the next free
            one.

    Raises:
        AlreadyExistsError: another launcher has recorded `attempt`.
        StoreError: the store cannot write, or other launchers keep recording attempts.
    """
    launch = Launch(
        spec=spec_number,
        attempt=attempt or 1,
        launcher=launcher,
        host=host_name() if host is None else host,
        launched_at=now_iso(),
        command=(),
        nonce=secrets.token_hex(16),
        process_space=process_namespace() if host is None else "",
    )
    for _ in range(MAX_LAUNCH_CONFLICTS):
        if attempt is None:
            launch = replace(launch, attempt=newest_attempt(store, layout, spec_number) + 1)
        launch = replace(launch, command=tuple(command(launch)) if command is not None else ())
        try:
            store.create(layout.launch(spec_number, launch.attempt), encode(launch))
        except AlreadyExistsError:
            if attempt is not None:
                raise
            continue
        return launch
    raise StoreError(
        f"other processes keep launching submission {spec_number}",
        where=layout.launches,
        remedy="Look for a second DAG run, CLI session or agent that launches drivers of the job, and end it",
    )


def record_process(store: Store, layout: JobLayout, launch: Launch) -> Launch:
    """Record the process or cluster application that a launch has started. Create-only."""
    store.create(layout.launched_process(launch.spec, launch.attempt), encode(launch))
    return launch


def refuse_if_superseded(store: Store, layout: JobLayout, spec: int, attempt: int) -> None:
    """Raise FencedError when a newer submission, or a newer launch of this submission, is recorded.

    A driver calls it before it begins, because a newer launch means that its own launch was given up. After the fence,
    only the decision log decides (S9.2).
    """
    newest = max(_launches(store, layout), default=(spec, attempt))
    if newest > (spec, attempt):
        cause, remedy = f"launch {newest[1]} of submission {newest[0]}", "Do nothing: the newer launch runs the job"
    elif store.exists(layout.spec(spec + 1)):
        cause, remedy = (
            f"submission {spec + 1}",
            "Do nothing: a driver of the newer submission runs the job once it is launched",
        )
    else:
        return
    raise FencedError(
        f"launch {attempt} of submission {spec} was replaced by a newer one before its driver began",
        where=f"job {layout.job_id}",
        cause=f"the newer {cause} is recorded",
        remedy=remedy,
    )


def find_local_driver(store: Store, layout: JobLayout, spec_number: int) -> LocalDriver | None:
    """Return the newest driver of a submission that runs on this machine; None when there is none."""
    for launch in launched_processes(store, layout, spec_number):
        if is_on_this_host(launch) and launch.pid is not None and is_running(launch.pid, launch.process_started):
            return LocalDriver(launch)
    return None


def local_driver_death(store: Store, layout: JobLayout, spec_number: int) -> Launch | None:
    """Return the newest launch of a submission if its process ran on this machine and has ended, so it is surely dead.

    None: the process lives, runs elsewhere, or was never recorded.
    """
    attempt = newest_attempt(store, layout, spec_number)
    launch = launched_process(store, layout, spec_number, attempt) if attempt else None
    if launch is None or not is_on_this_host(launch) or launch.pid is None:
        return None
    return None if is_running(launch.pid, launch.process_started) else launch


def launched_processes(store: Store, layout: JobLayout, spec_number: int) -> list[Launch]:
    """Return the launches of a submission whose process was recorded, newest first."""
    found: list[Launch] = []
    for number, attempt in reversed(_launches(store, layout)):
        launch = launched_process(store, layout, number, attempt) if number == spec_number else None
        if launch is not None:
            found.append(launch)
    return found


def newest_attempt(store: Store, layout: JobLayout, spec_number: int) -> int:
    """Return the newest recorded attempt to launch a submission; 0: none."""
    return max((attempt for number, attempt in _launches(store, layout) if number == spec_number), default=0)


def read_launch(store: Store, layout: JobLayout, spec_number: int, attempt: int) -> Launch:
    """Return a launch, with its process if that is recorded. Raises NotFoundError."""
    path = layout.launch(spec_number, attempt)
    return launched_process(store, layout, spec_number, attempt) or read_record(store, path, Launch)


def may_be_queued(store: Store, layout: JobLayout, spec_number: int) -> bool:
    """Return whether a cluster launched the newest attempt. It may keep the driver in a queue for any time."""
    attempt = newest_attempt(store, layout, spec_number)
    return attempt > 0 and read_launch(store, layout, spec_number, attempt).external_id is not None


def launched_process(store: Store, layout: JobLayout, spec_number: int, attempt: int) -> Launch | None:
    """Return a launch with its process; None when no process was recorded."""
    path = layout.launched_process(spec_number, attempt)
    try:
        return read_record(store, path, Launch)
    except NotFoundError:
        return None


def _launches(store: Store, layout: JobLayout) -> list[tuple[int, int]]:
    return layout.launch_numbers(store.list(layout.launches))


def is_on_this_host(launch: Launch) -> bool:
    """Return whether the launch ran on this machine and in this pid namespace, so that its pid is valid here."""
    return launch.host == host_name() and launch.process_space == process_namespace()
