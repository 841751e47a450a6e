"""Takes a savepoint of any running job, through a form: press Trigger, name the job and the savepoint.

place -> take -> savepoint or checkpoint, as chosen in the form. A savepoint belongs to you: the job never deletes it.
You can restore or fork a job from it. A checkpoint belongs to the job, which deletes it after some time. Every run
takes a new snapshot. A retry finds the snapshot that the earlier try requested. The job root is set in the connection
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
"""Names that are valid file names on every system."""


@task
def place(params: Mapping[str, Any] | None = None) -> str | None:
    """Return the folder in which the savepoint's folder is created; None: the job's default.

    With a label, it is the folder `<parent>/<label>`. The parent is the folder in the form, else the job's option
    `savepoint_directory`, else `savepoints/` in the job directory.
    """
    assert params is not None, "Airflow passed no Params"
    folder, label = params["folder"], params["label"]
    if not label:
        return str(folder) if folder else None
    client = TidegateHook().get_client(params["job_id"])
    parent = folder or client.specs()[-1].options.get("savepoint_directory")
    return f"{(parent or f'{client.root}/{client.layout.savepoints}').rstrip('/')}/{label}"


@task.branch
def take(kind: str) -> str:
    """Return the id of the next Airflow task."""
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
            description="A savepoint is yours until you delete it. The job deletes its checkpoints after some time.",
        ),
        "label": Param(
            None, type=["null", "string"], pattern=NAME, title="Label", description="Name of a subfolder; optional."
        ),
        "folder": Param(
            None, type=["null", "string"], title="Folder or URL", description="Empty: the job's own savepoint folder."
        ),
        "timeout": Param(
            "10 min",
            type="string",
            title="Timeout",
            description="After this time the command is withdrawn, and the run fails.",
        ),
    },
) as dag:
    COMMON = {"job_id": "{{ params.job_id }}", "timeout": "{{ params.timeout }}", "deferrable": True}
    savepoint = TidegateTriggerSavepointOperator(
        task_id="savepoint", path="{{ ti.xcom_pull(task_ids='place') or '' }}", **COMMON
    )
    checkpoint = TidegateTriggerCheckpointOperator(task_id="checkpoint", **COMMON)
    place() >> take("{{ params.kind }}") >> [savepoint, checkpoint]
