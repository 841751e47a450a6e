"""Calls of programs on this host and connections to servers, each with a timeout."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.errors import EnvironmentProblemError

CONNECT_LIMIT_S = 5.0
"""Timeout of a connection to a server, in seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a program: exit code, and standard output and error together."""

    code: int
    text: str


Run = Callable[[Sequence[str], float], Answer]
"""Runs a command with a timeout in seconds."""


def run_program(command: Sequence[str], limit_s: float) -> Answer:
    """Run a command. Raises EnvironmentProblemError when it does not exist, or takes longer than `limit_s`."""
    try:
        done = subprocess.run(
            command,
            # A program that wants a password must fail, and not wait for a terminal.
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
            remedy="Install this program on this host, or name its path in the Airflow connection or the agent's flags",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblemError(
            f"{' '.join(command[:3])} did not end within {limit_s:g} s",
            remedy="Check that this host can reach the cluster, and repeat the command",
        ) from error
    return Answer(done.returncode, done.stdout)


def connects(host: str, port: int) -> str | None:
    """Open a TCP connection. Returns None, or why it failed."""
    try:
        with socket.create_connection((host, port), CONNECT_LIMIT_S):
            return None
    except OSError as error:
        return str(error)
