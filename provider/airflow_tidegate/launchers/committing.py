"""Verdicts on a job that has ended, and their commits: `tidegate commit-pending` as a process of the Airflow worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from tidegate.contract.errors import CommandRefusedError, EnvironmentProblemError, WaitTimeoutError
from tidegate.contract.launching import CALLER_VARIABLE, STORAGE_OPTIONS_VARIABLE

Payload = dict[str, Any]
TAIL = 2000
"""How much of the process's words an error shows, characters."""


def commit_pending(
    root: JobRoot, job_id: str, verdict: Sequence[str], *, asked_by: str, timeout_s: float | None
) -> Payload:
    """Give a verdict on a job that has ended, if any, and commit what is approved. May be repeated.

    The user's pinned code and the sinks' libraries are loaded by the connection's interpreter, not by Airflow's.

    Args:
        root: where the job lives, and the interpreter.
        verdict: the verb's words, such as `("--approve", "12")`; (): none.
        asked_by: who gives it, for the decision log.
        timeout_s: most time, seconds; None: no limit.

    Returns:
        `{"job_id", "status", "committed", "waiting", "uncommitted", "quarantined"}` (docs/cli.md).

    Raises:
        CommandRefusedError: the job's answer to the verdict, or why nothing can be committed.
        EnvironmentProblemError: the process did not say what became of it.
        WaitTimeoutError: it took too long; what it has done is done.
    """
    where = f"job {job_id}"
    command = [root.python or sys.executable, "-m", "tidegate.cli.main", "commit-pending", job_id, "--json", *verdict]
    environment = {
        **os.environ,
        "TIDEGATE_ROOT": root.root,
        STORAGE_OPTIONS_VARIABLE: json.dumps(dict(root.storage_options)),
        CALLER_VARIABLE: asked_by,
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise WaitTimeoutError(
            f"commit-pending did not end within {timeout_s:g} s", where=where, remedy="Retry the task: it goes on"
        ) from error
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise EnvironmentProblemError(
            f"commit-pending ended with exit code {done.returncode} and no answer",
            where=f"{where}, {command[0]}",
            cause=done.stderr[-TAIL:].strip(),
            remedy="Check that the connection's interpreter has tidegate and the sinks' libraries",
        ) from error
    if "error" in document:
        told = document["error"]
        raise CommandRefusedError(told["what"], where=told["where"], cause=told["cause"], remedy=told["remedy"])
    return dict(document)
