"""Processes of this machine, identified by pid and start time, because the system reuses pids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress


def host_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def process_namespace() -> str:
    """Return the pid namespace of this process; "" where the system does not report it.

    Containers may share a host name, but a pid is unique only in its namespace.
    """
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def process_start_time(pid: int) -> str | None:
    """Return a text that identifies the process with this pid, and no later process with the same pid.

    None: there is no such process, or it has ended and waits for its parent to collect it.
    """
    if not os.path.isdir("/proc/self"):
        return _started_by_ps(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the program's name in parentheses. It may
            # contain spaces and `)`, so only the last `)` is reliable.
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        return None
    # Fields 3 and 22 of the file; two were cut off. The start is counted in ticks since the boot, hence the boot's id.
    state, started_ticks = fields[0], fields[19]
    return None if state in ("Z", "X") else f"{boot}:{started_ticks}"


def is_running(pid: int, started: str | None) -> bool:
    """Return whether the process that `started` identifies runs on this machine."""
    return started is not None and process_start_time(pid) == started


def send_signal(pid: int, started: str | None, number: signal.Signals) -> bool:
    """Send a signal to the process that `started` identifies. Returns False when it is not running."""
    if not is_running(pid, started):
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def process_group(pid: int) -> int | None:
    """Return the process group of a process; None: there is no such process."""
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def kill_process_group(group: int) -> None:
    """Send SIGKILL to every process of a group, if there are any."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def child_processes(pid: int, word: str) -> tuple[tuple[int, str | None], ...]:
    """Return pid and start text of each child process of `pid` that has `word` in its command line."""
    try:
        # `-ww`: without it, ps may cut long command lines, and the word would be missing.
        answer = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [line.split(None, 2) for line in answer.stdout.splitlines()]
    found = [int(row[0]) for row in rows if len(row) == 3 and row[1] == str(pid) and word in row[2]]
    return tuple((child, process_start_time(child)) for child in found)


def _started_by_ps(pid: int) -> str | None:
    try:
        answer = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()
