"""Whether the page can restore a job: whether somebody would start the driver of a new submission.

Drivers are started from the page only where Airflow's own tasks start them beside its servers, and where the job's
last one was started. With YARN and Kubernetes, too, a process of the API server would submit: with Spark settings that
the job directory holds, so that whoever may write there would choose what it does.
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

REMEDY = "Trigger a DAG with TidegateRestoreJobOperator, or run `tidegate restore` where its drivers run"


def restore_blocker(client: JobClient, root: JobRoot, specs: Sequence[Spec]) -> str:
    """Why the page cannot restore the job, for people; "": it can. Raises StoreError."""
    try:
        refuse_foreign_code(client, root)
        refuse_without_launcher(client, root, specs)
    except EnvironmentProblemError as error:
        return f"{error.what}: {error.cause}. {error.remedy}."
    return ""


def refuse_foreign_code(client: JobClient, root: JobRoot) -> None:
    """A driver runs the code of a DAG's author, with what the environment of the API server holds; and what the job
    directory says of earlier launches and submissions, such an author may have written. So drivers are started here
    only where Airflow itself runs tasks beside its servers. Raises EnvironmentProblemError."""
    if root.launcher == AGENT:
        return
    executors = [name.strip().rpartition(".")[2] for name in conf.get("core", "executor", fallback="").split(",")]
    if executors != ["LocalExecutor"]:
        raise EnvironmentProblemError(
            "the page starts no driver here",
            where=f"job {client.job_id}",
            cause=f"tasks run elsewhere ({', '.join(executors)}), and their code is kept off Airflow's API server",
            remedy=REMEDY,
        )


def refuse_without_launcher(client: JobClient, root: JobRoot, specs: Sequence[Spec]) -> None:
    """A submission that nobody launches would leave the job waiting for ever. An agent launches what is submitted
    anywhere. Otherwise the page starts a driver only where the job's last one was started, and when that is this
    machine: an API server need not be a place for drivers. Raises EnvironmentProblemError, StoreError."""
    if root.launcher == AGENT:
        return
    where = f"job {client.job_id}, launcher {root.launcher}"
    if not runs_on_this_host(root.launcher):
        raise EnvironmentProblemError(
            "the page starts no driver with this launcher",
            where=where,
            cause=f"with launcher {root.launcher!r} a process of Airflow's API server would submit it, with settings "
            "that the job directory holds",
            remedy=REMEDY,
        )
    launches = (launched_processes(client.store, client.layout, spec.number) for spec in reversed(specs))
    last = next((found[0] for found in launches if found), None)
    here = (host_name(), process_namespace())
    if last is not None and (last.host, last.process_space) == here:
        return
    started = f"on {last.host}" if last is not None else "nowhere that the job directory knows of"
    raise EnvironmentProblemError(
        "the page cannot start this job's driver",
        where=where,
        cause=f"the last one was started {started}, and Airflow's API server runs on {here[0]}",
        remedy=REMEDY,
    )
