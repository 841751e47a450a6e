"""Runs CLI verbs as processes on the Airflow worker, for work that needs the runtime, which Airflow does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers.connection_secrets import Secrets, read_secrets
from tidegate.errors import CommandRefusedError, EnvironmentProblemError, WaitTimeoutError
from tidegate.jobs.process_environment import CALLER_VARIABLE, STORAGE_OPTIONS_VARIABLE

Payload = dict[str, Any]
TAIL = 2000
"""Number of characters of the process's error output that an error shows."""


def commit_pending(
    root: JobRoot,
    job_id: str,
    verdict: Sequence[str],
    *,
    asked_by: str,
    timeout_s: float | None,
    secrets: Secrets | None = None,
) -> Payload:
    """Give a verdict on a job that has ended, if any, and commit approved checkpoints. May be repeated.

    The connection's interpreter loads the pinned code and the sinks' libraries, not Airflow's interpreter.

    Args:
        root: the connection: job root and interpreter.
        verdict: the verb's arguments, such as `("--approve", "12")`; (): none.
        asked_by: sender of the verdict, for the decision log.
        timeout_s: time limit, seconds; None: no limit.
        secrets: environment variables of the process, from Airflow connections.

    Returns:
        `{"job_id", "status", "committed", "waiting", "uncommitted", "quarantined"}` (docs/cli.md).

    Raises:
        CommandRefusedError: the job refuses the verdict, or nothing can be committed.
        EnvironmentProblemError: the process did not report a result.
        WaitTimeoutError: the time limit is over; work that is done stays done.
    """
    needs = "tidegate and the sinks' libraries"
    return run_cli_verb(
        root,
        "commit-pending",
        job_id,
        verdict,
        asked_by=asked_by,
        timeout_s=timeout_s,
        needs=needs,
        secrets=secrets,
    )


def run_cli_verb(
    root: JobRoot,
    verb: str,
    job_id: str,
    words: Sequence[str],
    *,
    asked_by: str,
    timeout_s: float | None,
    needs: str = "tidegate",
    secrets: Secrets | None = None,
) -> dict[str, Any]:
    """Run `tidegate VERB JOB --json WORDS` with the connection's interpreter, not Airflow's.

    Args:
        root: the connection: job root and interpreter.
        asked_by: sender of the command, for the job directory.
        timeout_s: time limit, seconds; None: no limit.
        needs: what the interpreter must have, for errors.
        secrets: environment variables of the process, from Airflow connections.

    Returns:
        The verb's document (docs/cli.md).

    Raises:
        CommandRefusedError: the verb refused, with its message.
        EnvironmentProblemError: the interpreter lacks the runtime or a connector's library, or the process reported no
            result.
        WaitTimeoutError: the time limit is over; work that is done stays done.
    """
    where = f"job {job_id}"
    command = [root.python or sys.executable, "-m", "tidegate.cli.main", verb, job_id, "--json", *words]
    environment = {
        **os.environ,
        **read_secrets(secrets),
        "TIDEGATE_ROOT": root.root,
        STORAGE_OPTIONS_VARIABLE: json.dumps(dict(root.storage_options)),
        CALLER_VARIABLE: asked_by,
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise WaitTimeoutError(
            f"`tidegate {verb}` did not end within {timeout_s:g} s",
            where=where,
            remedy="Retry the task, which continues the work, or raise its timeout",
        ) from error
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise EnvironmentProblemError(
            f"`tidegate {verb}` ended with exit code {done.returncode} and reported no result",
            where=f"{where}, {command[0]}",
            cause=done.stderr[-TAIL:].strip(),
            remedy=f"Check that the Python interpreter of the connection has {needs}",
        ) from error
    if "error" in document:
        problem = document["error"]
        if problem["code"] == EnvironmentProblemError.code:
            remedy = f'{problem["remedy"]}, or set "python" of the connection to an interpreter with this package'
            raise EnvironmentProblemError(
                problem["what"], where=f"{where}, {command[0]}", cause=problem["cause"], remedy=remedy
            )
        raise CommandRefusedError(
            problem["what"], where=problem["where"], cause=problem["cause"], remedy=problem["remedy"]
        )
    return dict(document)
