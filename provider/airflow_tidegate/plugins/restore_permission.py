"""Decides whether the page can restore a job: whether something would start the driver of a new submission.

The page starts drivers only where Airflow's own tasks start them next to its servers, and where the job's last driver
was started. With YARN and Kubernetes, too, a process of the API server would submit the driver, with Spark settings
from the job directory, so anyone who can write there could control it.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.version_compat import conf
from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.launcher_registry import AGENT, runs_on_this_host
from tidegate.jobs.launches import launched_processes
from tidegate.jobs.os_processes import host_name, process_namespace
from tidegate.jobs.records import Spec

REMEDY = "Trigger a DAG with TidegateRestoreJobOperator, or run `tidegate restore` on the machine of the job's drivers"


def restore_blocker(client: JobClient, root: JobRoot, specs: Sequence[Spec]) -> str:
    """Return why the page cannot restore the job, as text for users; "": it can. Raises StoreError."""
    try:
        refuse_foreign_code(client, root)
        refuse_without_launcher(client, root, specs)
    except EnvironmentProblemError as error:
        return f"{error.what}: {error.cause}. {error.remedy}."
    return ""


def refuse_foreign_code(client: JobClient, root: JobRoot) -> None:
    """Refuse to run code of DAG authors on the API server unless tasks run there anyway.

    A driver runs a DAG author's code with the environment of the API server, and DAG authors can also write launches
    and submissions into the job directory. So drivers are started here only if Airflow runs tasks next to its servers.
    Raises EnvironmentProblemError.
    """
    if root.launcher == AGENT:
        return
    executors = [name.strip().rpartition(".")[2] for name in conf.get("core", "executor", fallback="").split(",")]
    if executors != ["LocalExecutor"]:
        raise EnvironmentProblemError(
            "the page cannot start a driver on Airflow's API server",
            where=f"job {client.job_id}",
            cause=f"with executor {', '.join(executors)}, the code of DAGs runs on other machines, and "
            "must not run on the API server",
            remedy=REMEDY,
        )


def refuse_without_launcher(client: JobClient, root: JobRoot, specs: Sequence[Spec]) -> None:
    """Refuse a submission that nothing would launch, so that the job would wait forever.

    An agent launches every submission. Otherwise the page starts a driver only on the machine of the job's last driver:
    an API server may not be able to run drivers. Raises EnvironmentProblemError, StoreError.
    """
    where = f"job {client.job_id}, launcher {root.launcher}"
    if specs and specs[-1].secrets:
        raise EnvironmentProblemError(
            "the page cannot start a driver that needs secrets of Airflow connections",
            where=where,
            cause=f"only a DAG names the connections of {', '.join(sorted(specs[-1].secrets))}; the job directory, "
            "which others can change, must not choose them",
            remedy="Trigger a DAG with TidegateRestoreJobOperator(secrets=...)",
        )
    if root.launcher == AGENT:
        return
    if not runs_on_this_host(root.launcher):
        raise EnvironmentProblemError(
            f"the page cannot start a driver with launcher {root.launcher!r}",
            where=where,
            cause="a process of Airflow's API server would submit the driver to the cluster, with settings from the "
            "job directory, which DAG authors can change",
            remedy=REMEDY,
        )
    launches = (launched_processes(client.store, client.layout, spec.number) for spec in reversed(specs))
    last = next((found[0] for found in launches if found), None)
    here = (host_name(), process_namespace())
    if last is not None and (last.host, last.process_space) == here:
        return
    started = f"on {last.host}" if last is not None else "on a host that the job directory does not record"
    raise EnvironmentProblemError(
        "the page cannot start the job's driver",
        where=where,
        cause=f"the page starts a driver only on the machine of the job's last driver. The last driver was started "
        f"{started}, but Airflow's API server runs on {here[0]}",
        remedy=REMEDY,
    )
