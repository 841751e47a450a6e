"""Records of launches: every attempt to start a driver of a submission, and the process or application it started.

A launch is recorded before the start, so that no driver runs that the job directory knows nothing of, and its process
after it. Of two launchers at once, create-only attempts let one win; the decision log fences a second driver
off. Whoever started a driver may die: by these records anybody else finds it again.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidegate.clock import now_iso
from tidegate.errors import AlreadyExistsError, FencedError, NotFoundError, StoreError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.os_processes import child_processes, host_name, is_running, process_namespace, send_signal
from tidegate.jobs.records import Launch, decode, encode
from tidegate.jobs.stores.store import Store

DRIVER_ENTRY = "driver_entry.py"
"""Name of the program that spark-submit is given."""
MAX_LAUNCH_CONFLICTS = 100
"""Attempts that other launchers may take first."""


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
        pid is never touched. The Python program below spark-submit gets the signal first: the JVM has no graceful
        end, and ends with the program."""
        programs = child_processes(self.pid, DRIVER_ENTRY) if self.is_running() else ()
        for pid, started in programs:
            send_signal(pid, started, number)
        if programs and number is not signal.SIGKILL:
            return True
        return send_signal(self.pid, self.launch.process_started, number)


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
        launcher: kind, for example "local".
        command: gives the process's arguments for the attempt; they are stored: no secrets.
        host: where it will run; this machine when None.
        attempt: this one, or none: for who has judged the attempts before it; None: the next.

    Raises:
        AlreadyExistsError: `attempt` is somebody else's.
        StoreError: the store cannot write, or others keep launching.
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
    raise StoreError("others keep launching this submission", where=layout.launches, remedy="Find out who does")


def record_process(store: Store, layout: JobLayout, launch: Launch) -> Launch:
    """Record what a launch has started: a process of this machine, or a driver that a cluster runs."""
    store.create(layout.launched_process(launch.spec, launch.attempt), encode(launch))
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


def find_local_driver(store: Store, layout: JobLayout, spec_number: int) -> RunningDriver | None:
    """The newest driver of a submission that runs on this machine; None when there is none."""
    for launch in launched_processes(store, layout, spec_number):
        if is_on_this_host(launch) and launch.pid is not None and is_running(launch.pid, launch.process_started):
            return RunningDriver(launch)
    return None


def local_driver_death(store: Store, layout: JobLayout, spec_number: int) -> Launch | None:
    """The newest launch of a submission when its process was on this machine and is gone: a certain death. None: it
    lives, runs elsewhere, or was never launched."""
    attempt = newest_attempt(store, layout, spec_number)
    launch = launched_process(store, layout, spec_number, attempt) if attempt else None
    if launch is None or not is_on_this_host(launch) or launch.pid is None:
        return None
    return None if is_running(launch.pid, launch.process_started) else launch


def launched_processes(store: Store, layout: JobLayout, spec_number: int) -> list[Launch]:
    """Launches of a submission whose process was recorded, newest first."""
    found: list[Launch] = []
    for number, attempt in reversed(_launches(store, layout)):
        launch = launched_process(store, layout, number, attempt) if number == spec_number else None
        if launch is not None:
            found.append(launch)
    return found


def newest_attempt(store: Store, layout: JobLayout, spec_number: int) -> int:
    """The newest recorded attempt to launch a submission; 0: none."""
    return max((attempt for number, attempt in _launches(store, layout) if number == spec_number), default=0)


def read_launch(store: Store, layout: JobLayout, spec_number: int, attempt: int) -> Launch:
    """A launch, with what it has started as far as that is recorded. Raises NotFoundError."""
    path = layout.launch(spec_number, attempt)
    return launched_process(store, layout, spec_number, attempt) or decode(store.read(path), Launch, path)


def may_be_queued(store: Store, layout: JobLayout, spec_number: int) -> bool:
    """The newest launch is a cluster's, which may keep its driver waiting in a queue for any time."""
    attempt = newest_attempt(store, layout, spec_number)
    return attempt > 0 and read_launch(store, layout, spec_number, attempt).external_id is not None


def launched_process(store: Store, layout: JobLayout, spec_number: int, attempt: int) -> Launch | None:
    """A launch with what it has started; None: that was never recorded."""
    path = layout.launched_process(spec_number, attempt)
    try:
        return decode(store.read(path), Launch, path)
    except NotFoundError:
        return None


def _launches(store: Store, layout: JobLayout) -> list[tuple[int, int]]:
    return layout.launch_numbers(store.list(layout.launches))


def is_on_this_host(launch: Launch) -> bool:
    """Whether it was made on this machine, where pids are what its record says."""
    return launch.host == host_name() and launch.process_space == process_namespace()
