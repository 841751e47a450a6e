"""Keeps a Delta Lake table equal to a PostgreSQL table.

whether -> start (if the job does not exist yet) or restore (if it is stopped, or its driver has died) -> checkpoint ->
report -> compact. The job copies the table and then follows its changes, without an end. It commits with each
checkpoint: the new state of all changed rows appears in one version of the Delta table. Each run of the DAG ensures
that the job runs, commits what it has read, reports its lag, and compacts small files.

The job root is set in the connection `tidegate_default`. The Params name the tables. The password is a reference, which
the job resolves where it connects.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator
from airflow_tidegate.operators.start import TidegateStartJobOperator
from tidegate.errors import JobNotFoundError

LAKE = os.environ.get("TIDEGATE_LAKE") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "lake" / "customers"
)
JOB_ID = "customers-to-delta"


@task.branch
def whether(of_job: str) -> str:
    """Return the id of the next Airflow task."""
    client = TidegateHook().get_client(of_job)
    try:
        view = client.view()
    except JobNotFoundError:
        return "start"
    return "checkpoint" if view.is_active and client.is_alive() else "restore"


@task
def report(of_job: str) -> dict[str, Any]:
    """Return the XCom: rows and version of the Delta table, and bytes of the log that the job has not read yet."""
    from deltalake import DeltaTable

    client = TidegateHook().get_client(of_job)
    table = DeltaTable(client.specs()[-1].arguments["out"])
    (source,) = client.view().sources
    return {
        "rows": table.to_pyarrow_dataset().count_rows(),
        "version": table.version(),
        "files": len(table.file_uris()),
        "lag_bytes": source.details.get("lag_bytes"),
    }


@task
def compact(of_job: str, most_files: int) -> dict[str, Any]:
    """Combine small files if the Delta table has more than `most_files`.

    A commit of the job may win against the compaction. Then the task fails, and its retry compacts the newer version.
    """
    from deltalake import DeltaTable

    table = DeltaTable(TidegateHook().get_client(of_job).specs()[-1].arguments["out"])
    before = len(table.file_uris())
    if before > most_files:
        table.optimize.compact()
    return {"before": before, "after": len(table.file_uris())}


with DAG(
    dag_id="postgres_to_delta",
    description="A Delta Lake table follows all changes of a PostgreSQL table.",
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5), "job_id": "{{ params.job_id }}"},
    render_template_as_native_obj=True,
    params={
        "job_id": Param(JOB_ID, type="string", minLength=1, title="Job"),
        "dsn": Param("host=localhost dbname=shop user=etl", type="string", title="PostgreSQL, without a password"),
        "password": Param(
            "secret:env/SHOP_PASSWORD", type=["null", "string"], title="Reference to the password of PostgreSQL"
        ),
        "table": Param("public.customers", type="string", title="Table with a primary key"),
        "key": Param(["id"], type="array", items={"type": "string"}, title="Columns of the primary key"),
        "out": Param(LAKE, type="string", title="Folder of the Delta table"),
        "columns": Param(None, type=["null", "array"], items={"type": "string"}, title="Columns; empty: all"),
        "types": Param(
            {}, type="object", title='Types for columns that Delta lacks, such as {"opens": "string"}: see the page'
        ),
        "missing_values": Param(
            "fail", type="string", enum=["fail", "fetch"], title="Large values that an update does not contain"
        ),
        "interval": Param("1 min", type="string", title="Checkpoint interval: how old the Delta table may be"),
        "most_files": Param(50, type="integer", title="Compact the Delta table if it has more files"),
        "master": Param("local[1]", type="string", title="Spark master"),
    },
) as dag:
    start = TidegateStartJobOperator(
        task_id="start",
        pipeline="pipelines/table_mirror.py:build",
        arguments={
            "dsn": "{{ params.dsn }}",
            "password": "{{ params.password }}",
            "table": "{{ params.table }}",
            "key": "{{ params.key }}",
            "out": "{{ params.out }}",
            "columns": "{{ params.columns }}",
            "types": "{{ params.types }}",
            "missing_values": "{{ params.missing_values }}",
        },
        options={"parallelism": 1, "checkpoint_interval": "{{ params.interval }}"},
        master="{{ params.master }}",
        timeout="10 min",
    )
    restore = TidegateRestoreJobOperator(task_id="restore", from_="latest", timeout="10 min")
    checkpoint = TidegateTriggerCheckpointOperator(
        task_id="checkpoint", timeout="10 min", trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
    )
    reported = report("{{ params.job_id }}")
    compacted = compact("{{ params.job_id }}", "{{ params.most_files }}")

    branch = whether("{{ params.job_id }}")
    branch >> [start, restore] >> checkpoint
    branch >> checkpoint >> reported >> compacted
