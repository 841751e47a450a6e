"""Verdicts on a job that has ended, and their commits: `tidegate commit-pending` as a process of the Airflow worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers.cli_process import run_verb

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
    return run_verb(root, "commit-pending", job_id, verdict, asked_by=asked_by, timeout_s=timeout_s, needs=needs)
