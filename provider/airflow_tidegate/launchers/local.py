"""Bring a driver up as a detached process on the Airflow worker's own host, at most one per submission."""

from __future__ import annotations

import logging
import os
import sys

from airflow.sdk.configuration import conf

from tidegate.contract.client import JobClient
from tidegate.contract.errors import EnvironmentProblemError, JobFailedError
from tidegate.contract.launching import find_local, launch_local
from tidegate.contract.records import Spec
from tidegate.contract.status import JobStatus, JobView

EPHEMERAL_EXECUTORS = ("KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AzureContainerInstancesExecutor")
"""Executors whose workers end with their Airflow task, and a detached process with them."""

_log = logging.getLogger(__name__)


def ensure_driver(client: JobClient, spec: Spec, *, python: str | None) -> int:
    """See to it that a driver lives for `spec`; launch one only if none does.

    Not atomic between two callers: the loser's driver is fenced off by the winner's, because every driver begins by
    appending a fence to the decision log (S9.2).

    Args:
        client: the job's client.
        spec: the submission.
        python: the driver's interpreter; None: this process's.

    Returns:
        The generation up to which statuses belong to an earlier driver of this submission; 0 when there was none, or
        when it lives or has ended well.

    Raises:
        EnvironmentProblemError: workers are ephemeral here.
        JobFailedError: the submission was cancelled; only a new one can run.
    """
    view = client.view()
    if view.spec_number > spec.number:
        return 0
    begun = view.spec_number == spec.number and view.status is not JobStatus.CREATED
    if begun and view.status is JobStatus.CANCELED:
        raise JobFailedError(
            "the job was cancelled",
            where=f"job {client.job_id}, submission {spec.number}",
            remedy="clear the task to submit it anew",
        )
    if begun and view.is_terminal and view.status is not JobStatus.FAILED:
        return 0
    if find_local(client, spec) is not None or _lives_elsewhere(client, view):
        _log.info("job %s: a driver of submission %s lives already", client.job_id, spec.number)
        return 0
    _refuse_ephemeral()
    launch = launch_local(client, spec, python=python or sys.executable)
    _log.info("job %s: launched a driver for submission %s, pid %s", client.job_id, spec.number, launch.pid)
    return view.generation if begun else 0


def _lives_elsewhere(client: JobClient, view: JobView) -> bool:
    """A driver launched on another host beats. Takes a few heartbeats to observe."""
    return view.is_active and client.is_alive()


def _refuse_ephemeral() -> None:
    executor = os.environ.get("AIRFLOW__CORE__EXECUTOR") or conf.get("core", "executor", fallback="LocalExecutor")
    used = [name for name in EPHEMERAL_EXECUTORS if name in executor]
    if used:
        raise EnvironmentProblemError(
            "a local driver cannot be launched from an ephemeral Airflow worker",
            where=f"executor {executor}",
            cause=f"with {used[0]} the worker ends with its task, and the driver with it",
            remedy="run this task on a worker that stays, with LocalExecutor or CeleryExecutor",
        )
