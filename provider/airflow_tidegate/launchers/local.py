"""Starts drivers as detached processes on the Airflow worker's own host."""

from __future__ import annotations

import os

from airflow_tidegate.version_compat import conf
from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.launcher import Launcher
from tidegate.jobs.launch.local import find_local_driver_settled
from tidegate.jobs.records import Launch, Spec

EPHEMERAL_EXECUTORS = ("KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AzureContainerInstancesExecutor")
"""Executors whose workers end with their Airflow task. A detached process ends with the worker."""


def launch(client: JobClient, spec: Spec, launcher: Launcher) -> Launch:
    """Start a driver here, or find the one that another launcher on this host is about to record.

    Raises:
        EnvironmentProblemError: the workers here are ephemeral, or the process cannot be started.
    """
    _refuse_ephemeral()
    living = find_local_driver_settled(client, spec)
    return living.launch if living is not None else launcher.launch(client, spec)


def _refuse_ephemeral() -> None:
    executor = os.environ.get("AIRFLOW__CORE__EXECUTOR") or conf.get("core", "executor", fallback="LocalExecutor")
    used = [name for name in EPHEMERAL_EXECUTORS if name in executor]
    if used:
        raise EnvironmentProblemError(
            "a driver cannot be started on an Airflow worker that ends with its task",
            where=f"executor {executor}",
            cause=f"with {used[0]}, the worker and all its processes end with the task, so the driver would end, too",
            remedy="Run this task on a permanent worker, with LocalExecutor or CeleryExecutor, or use the launcher "
            "yarn, kubernetes or agent",
        )
