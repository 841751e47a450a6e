"""Resumes in the morning a job that `nightly_drain_and_stop` has stopped.

whether -> start (if the job does not exist yet) or restore (if it is stopped, or its driver has died) -> checkpoint.
Only a working job can complete this checkpoint. If the job still runs, the DAG neither starts nor restores it.

The restore uses the newest recovery point of the job: the savepoint of the stop in the evening. That stop was a drain,
so the restore needs `allow_drained`. A day whose window was open at the drain gets a second row in the table. Both rows
together count every flight once. The job root is set in the connection `tidegate_default`. Data and output are below
the Param `home`; `tools/flight_data.py HOME/data` writes the data.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, TriggerRule, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator
from airflow_tidegate.operators.start import TidegateStartJobOperator
from tidegate.errors import JobNotFoundError

HOME = os.environ.get("FLIGHT_DELAYS_HOME") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "flight_delays"
)


@task.branch
def whether(of_job: str) -> str:
    """Return the id of the next Airflow task."""
    client = TidegateHook().get_client(of_job)
    try:
        view = client.view()
    except JobNotFoundError:
        return "start"
    return "checkpoint" if view.is_active and client.is_alive() else "restore"


with DAG(
    dag_id="morning_restore",
    description="Start a job, or restore it from the stop of the night before.",
    schedule="0 6 * * *",
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5), "job_id": "{{ params.job_id }}"},
    params={
        "job_id": Param("daily-totals", type="string", minLength=1, title="Job"),
        "home": Param(HOME, type="string", title="Folder with data/; output goes to out/"),
        "speed": Param(1.0, type="number", exclusiveMinimum=0, title="Days of flights played per second"),
        "master": Param("local[1]", type="string", title="Spark master"),
    },
) as dag:
    start = TidegateStartJobOperator(
        task_id="start",
        pipeline="pipelines/daily_totals.py:build",
        arguments={
            "flights": "{{ params.home }}/data/flights.parquet",
            "out": "{{ params.home }}/out/{{ params.job_id }}",
            "speed": "{{ params.speed }}",
        },
        options={"checkpoint_interval": "10 s"},
        master="{{ params.master }}",
        timeout="10 min",
    )
    restore = TidegateRestoreJobOperator(task_id="restore", from_="latest", allow_drained=True, timeout="10 min")
    checkpoint = TidegateTriggerCheckpointOperator(
        task_id="checkpoint", timeout="5 min", trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
    )
    branch = whether("{{ params.job_id }}")
    branch >> [start, restore] >> checkpoint
    branch >> checkpoint
