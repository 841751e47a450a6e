"""Verbs of the command line as processes of the Airflow worker: what needs the runtime, which Airflow has not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from tidegate.errors import CommandRefusedError, EnvironmentProblemError, WaitTimeoutError
from tidegate.jobs.process_environment import CALLER_VARIABLE, STORAGE_OPTIONS_VARIABLE

Payload = dict[str, Any]


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
    needs = "tidegate and the sinks' libraries"
    return run_cli_verb(root, "commit-pending", job_id, verdict, asked_by=asked_by, timeout_s=timeout_s, needs=needs)


TAIL = 2000
"""How much of the process's words an error shows, characters."""


def run_cli_verb(
    root: JobRoot,
    verb: str,
    job_id: str,
    words: Sequence[str],
    *,
    asked_by: str,
    timeout_s: float | None,
    needs: str = "tidegate",
) -> dict[str, Any]:
    """Run `tidegate VERB JOB --json WORDS` with the connection's interpreter, not Airflow's.

    Args:
        root: where the job lives, and the interpreter.
        asked_by: who asks, for the job directory.
        timeout_s: most time, seconds; None: no limit.
        needs: what the interpreter has to have, for errors.

    Returns:
        The verb's document (docs/cli.md).

    Raises:
        CommandRefusedError: what the verb refused, in its words.
        EnvironmentProblemError: the process did not say what became of it.
        WaitTimeoutError: it took too long; what it has done is done.
    """
    where = f"job {job_id}"
    command = [root.python or sys.executable, "-m", "tidegate.cli.main", verb, job_id, "--json", *words]
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
            f"{verb} did not end within {timeout_s:g} s", where=where, remedy="Retry the task: it goes on"
        ) from error
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise EnvironmentProblemError(
            f"{verb} ended with exit code {done.returncode} and no answer",
            where=f"{where}, {command[0]}",
            cause=done.stderr[-TAIL:].strip(),
            remedy=f"Check that the connection's interpreter has {needs}",
        ) from error
    if "error" in document:
        told = document["error"]
        raise CommandRefusedError(told["what"], where=told["where"], cause=told["cause"], remedy=told["remedy"])
    return dict(document)
