"""At most one driver per submission, by the launcher that the connection names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import local
from tidegate.errors import JobFailedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.desired_state import request_running
from tidegate.jobs.launch.driver_requirements import drop_port_settings, require_driver_machine
from tidegate.jobs.launch.launcher import Launcher
from tidegate.jobs.launch.launcher_registry import (
    AGENT,
    find_running_driver,
    launcher_class,
    make_launchers,
    runs_on_this_host,
)
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Launch, Spec
from tidegate.jobs.status import JobStatus, JobView

_log = logging.getLogger(__name__)


def check_machine(
    root: JobRoot, master: str | None, spark_conf: Mapping[str, Any], options: JobOptions, *, replaces: bool = False
) -> None:
    """Look at what a driver needs of this host, where it would be started here; before a job is submitted, or another
    one stopped for it.

    Args:
        replaces: the job runs, and its driver still has its ports.

    Raises:
        EnvironmentProblemError, SlotsUnavailableError: see `require_driver_machine`.
    """
    if runs_on_this_host(root.launcher):
        require_driver_machine(
            master or root.master, drop_port_settings(spark_conf) if replaces else spark_conf, options
        )


def ensure_driver(client: JobClient, spec: Spec, root: JobRoot) -> int:
    """See to it that a driver lives for `spec`; launch one only if none does. With the launcher `agent` nothing is
    launched here: the job directory says that one is wanted, and the agent beside the cluster launches it.

    Not atomic between two callers: the loser's driver ends itself, since a newer launch than its own is recorded, or is
    fenced off by the winner's (S9.2).

    Args:
        client: the job's client.
        spec: the submission.
        root: what the connection says.

    Returns:
        The generation up to which statuses belong to an earlier driver of this submission; 0 when there was none, or
        when it lives or has ended well.

    Raises:
        EnvironmentProblemError: workers are ephemeral here, or nothing could be started.
        JobFailedError: the submission was cancelled; only a new one can run.
        OptionError: master and launcher do not go together.
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
    settings = root.launcher_settings()
    if _has_heartbeat(client, spec, view, make_launchers(settings)):
        _log.info("job %s: a driver of submission %s lives already", client.job_id, spec.number)
        return 0
    if root.launcher == AGENT:
        request_running(client, spec, by="airflow", anew=begun)
        _log.info("job %s: submission %s waits for an agent to launch it", client.job_id, spec.number)
    else:
        launch = _launch(client, spec, launcher_class(root.launcher)(settings))
        place = f"pid {launch.pid}" if launch.pid is not None else launch.external_id
        _log.info(
            "job %s: launched a driver for submission %s by %s, %s",
            client.job_id,
            spec.number,
            launch.launcher,
            place,
        )
    return view.generation if begun else 0


def _launch(client: JobClient, spec: Spec, launcher: Launcher) -> Launch:
    return local.launch(client, spec, launcher) if launcher.runs_on_this_host else launcher.launch(client, spec)


def _has_heartbeat(client: JobClient, spec: Spec, view: JobView, by_kind: Mapping[str, Launcher]) -> bool:
    """A driver of another host beats; that takes a few heartbeats to observe, and comes last."""
    if find_local_driver(client.store, client.layout, spec.number) is not None:
        return True
    elsewhere = {kind: launcher for kind, launcher in by_kind.items() if not launcher.runs_on_this_host}
    if find_running_driver(client, spec, elsewhere) is not None:
        return True
    return view.spec_number == spec.number and view.is_active and client.is_alive()
