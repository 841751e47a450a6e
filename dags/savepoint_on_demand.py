"""A savepoint of any running job, by a form: press Trigger, name the job, say what to call the savepoint.

place -> take -> savepoint, or checkpoint. A savepoint belongs to you: the job never deletes it, and a job can be
restored from it, forked from it or upgraded over it. A checkpoint belongs to the job, which deletes it in time. Every
run takes a new one; a retry finds the one that it asked for. The job root is that of the connection
`tidegate_default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator, TidegateTriggerSavepointOperator

NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What a file name may be anywhere."""


@task
def place(params: Mapping[str, Any] | None = None) -> str | None:
    """The folder that the savepoint's own folder is made in; None: the job's default.

    A label is a folder below the one given; without that, below the one of the job's option `savepoint_directory`, or
    the job's own.
    """
    assert params is not None, "Airflow gives the Params of the run"
    folder, label = params["folder"], params["label"]
    if not label:
        return str(folder) if folder else None
    client = TidegateHook().get_client(params["job_id"])
    parent = folder or client.specs()[-1].options.get("savepoint_directory")
    return f"{(parent or f'{client.root}/{client.layout.savepoints}').rstrip('/')}/{label}"


@task.branch
def take(kind: str) -> str:
    """The Airflow task to go on with."""
    return kind


with DAG(
    dag_id="savepoint_on_demand",
    description="Take a savepoint or a checkpoint of a running job, by the Trigger form.",
    schedule=None,
    catchup=False,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "job_id": Param("daily-totals", type="string", minLength=1, title="Job"),
        "kind": Param(
            "savepoint",
            type="string",
            enum=["savepoint", "checkpoint"],
            title="Kind",
            description="A savepoint is yours until you delete it. A checkpoint is the job's own, deleted in time.",
        ),
        "label": Param(
            None, type=["null", "string"], pattern=NAME, title="Label", description="The savepoint's folder; optional."
        ),
        "folder": Param(
            None, type=["null", "string"], title="Folder or URL", description="Empty: the job's own savepoint folder."
        ),
        "timeout": Param(
            "10 min", type="string", title="Timeout", description="Then the request is withdrawn, and the run fails."
        ),
    },
) as dag:
    COMMON = {"job_id": "{{ params.job_id }}", "timeout": "{{ params.timeout }}", "deferrable": True}
    savepoint = TidegateTriggerSavepointOperator(
        task_id="savepoint", path="{{ ti.xcom_pull(task_ids='place') or '' }}", **COMMON
    )
    checkpoint = TidegateTriggerCheckpointOperator(task_id="checkpoint", **COMMON)
    place() >> take("{{ params.kind }}") >> [savepoint, checkpoint]
