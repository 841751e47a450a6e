"""Programs that are run on this host and servers that are reached from it, each with a time limit."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.errors import EnvironmentProblemError

CONNECT_LIMIT_S = 5.0
"""How long a server may take to accept a connection, seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said: exit code, and standard output and error together."""

    code: int
    text: str


Run = Callable[[Sequence[str], float], Answer]
"""Runs a command with a limit in seconds."""


def run_program(command: Sequence[str], limit_s: float) -> Answer:
    """Run it here. Raises EnvironmentProblemError when it is not there, or takes longer than `limit_s`."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        raise EnvironmentProblemError(
            f"{command[0]} cannot be run",
            cause=str(error),
            remedy="Install it here, or name its path in the connection",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblemError(
            f"{' '.join(command[:3])} did not end within {limit_s:g} s",
            remedy="Look whether the cluster can be reached from here",
        ) from error
    return Answer(done.returncode, done.stdout)


def connects(host: str, port: int) -> str | None:
    """None when a TCP connection comes about; else why not."""
    try:
        with socket.create_connection((host, port), CONNECT_LIMIT_S):
            return None
    except OSError as error:
        return str(error)
