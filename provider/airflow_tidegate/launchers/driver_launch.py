"""Launches at most one driver per submission, with the launcher of the connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import local
from airflow_tidegate.launchers.connection_secrets import Secrets, read_secrets, require_secrets
from tidegate.errors import JobFailedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.desired_state import request_running
from tidegate.jobs.launch.driver_requirements import drop_port_settings, require_driver_machine
from tidegate.jobs.launch.launcher import Launcher
from tidegate.jobs.launch.launcher_checks import require_interpreter
from tidegate.jobs.launch.launcher_registry import (
    AGENT,
    find_running_driver,
    make_launcher,
    make_launchers,
    runs_on_this_host,
)
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.status import JobStatus, JobView

logger = logging.getLogger("airflow_tidegate.launchers")


def check_machine(
    root: JobRoot, master: str | None, spark_conf: Mapping[str, Any], options: JobOptions, *, replaces: bool = False
) -> None:
    """Check this host's requirements for a driver, if drivers start here. Called before a job is submitted or stopped.

    Args:
        replaces: the job runs, and its driver still uses its ports.

    Raises:
        EnvironmentProblemError: the interpreter of the drivers has no runtime; or see `require_driver_machine`.
        SlotsUnavailableError: see `require_driver_machine`.
    """
    if runs_on_this_host(root.launcher):
        require_interpreter(root.launcher_settings())
        require_driver_machine(
            master or root.master, drop_port_settings(spark_conf) if replaces else spark_conf, options
        )


def ensure_driver(client: JobClient, spec: Spec, root: JobRoot, secrets: Secrets | None = None) -> int:
    """Ensure that a driver lives for `spec`; launch one only if there is none.

    With the launcher `agent` nothing is launched here: the job directory records the request, and the agent near the
    cluster launches the driver.

    Not atomic between two callers. The driver of the loser ends itself because a newer launch is recorded, or the
    winner's driver fences it (S9.2).

    Args:
        client: the job's client.
        spec: the submission.
        root: content of the connection.
        secrets: the argument `secrets` of the Airflow task; read only if a driver is launched.

    Returns:
        The generation up to which statuses belong to an earlier driver of this submission; 0 if there was none, if it
        lives, or if it has ended well.

    Raises:
        EnvironmentProblemError: the workers here are ephemeral, or no process could be started.
        JobFailedError: the submission was cancelled; only a new submission can run.
        OptionError: master and launcher do not fit; or a secret is missing, or the launcher cannot pass it on.
    """
    view = client.view()
    if view.spec_number > spec.number:
        return 0
    begun = view.spec_number == spec.number and view.status is not JobStatus.CREATED
    if begun and view.status is JobStatus.CANCELED:
        raise JobFailedError(
            "the job was cancelled, so its driver is not started",
            where=f"job {client.job_id}, submission {spec.number}",
            remedy="To submit the job again, clear the task",
        )
    if begun and view.is_terminal and view.status is not JobStatus.FAILED:
        return 0
    settings = root.launcher_settings()
    if _has_heartbeat(client, spec, view, make_launchers(settings)):
        logger.info("job %s: submission %s already has a running driver", client.job_id, spec.number)
        return 0
    require_secrets(root, spec.secrets, secrets, master=spec.master, spark_conf=spec.spark_conf)
    if root.launcher == AGENT:
        request_running(client, spec, by="airflow", anew=begun)
        logger.info("job %s: submission %s waits for an agent to launch it", client.job_id, spec.number)
    else:
        launch = _launch(client, spec, make_launcher(replace(settings, environment=read_secrets(secrets))))
        place = f"pid {launch.pid}" if launch.pid is not None else launch.external_id
        logger.info(
            "job %s: launched a driver for submission %s with %s, %s",
            client.job_id,
            spec.number,
            launch.launcher,
            place,
        )
    return view.generation if begun else 0


def _launch(client: JobClient, spec: Spec, launcher: Launcher) -> Launch:
    return local.launch(client, spec, launcher) if launcher.runs_on_this_host else launcher.launch(client, spec)


def _has_heartbeat(client: JobClient, spec: Spec, view: JobView, by_kind: Mapping[str, Launcher]) -> bool:
    """Return whether a driver on another host is alive. This waits for several heartbeats, so it is checked last."""
    if find_local_driver(client.store, client.layout, spec.number) is not None:
        return True
    elsewhere = {kind: launcher for kind, launcher in by_kind.items() if not launcher.runs_on_this_host}
    if find_running_driver(client, spec, elsewhere) is not None:
        return True
    return view.spec_number == spec.number and view.is_active and client.is_alive()
