"""Publishes the hours of a Kafka topic in an Iceberg table after an audit.

whether -> start (if the job does not exist yet) or restore (if it is stopped, or its driver has died) -> complete ->
checkpoint -> staged -> audit -> publish, or reject if the audit fails. The job reads the topic without an end, and
counts departures for each airport and hour. It runs with `commit="on_request"`: its checkpoints stage rows, and readers
of the table see nothing until `publish` approves a checkpoint. Each run of the DAG waits until the watermark has passed
the end of its interval, and publishes all hours before it.

The job root is set in the connection `tidegate_default`. The Params name the topic and the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator
from airflow_tidegate.operators.start import TidegateStartJobOperator
from airflow_tidegate.operators.verdicts import TidegateCommitCheckpointOperator, TidegateRejectCheckpointOperator
from airflow_tidegate.sensors.staged_checkpoint import TidegateStagedCheckpointSensor
from airflow_tidegate.sensors.watermark import TidegateWatermarkSensor
from airflow_tidegate.version_compat import AirflowSkipException
from tidegate.errors import JobNotFoundError

WAREHOUSE = os.environ.get("TIDEGATE_WAREHOUSE") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "warehouse"
)
JOB_ID = "departures-to-iceberg"


@task.branch
def whether(of_job: str) -> str:
    """Return the id of the next Airflow task."""
    client = TidegateHook().get_client(of_job)
    try:
        view = client.view()
    except JobNotFoundError:
        return "start"
    return "complete" if view.is_active and client.is_alive() else "restore"


@task(retries=0)
def audit(of_job: str, staged: Mapping[str, Any], most_flights: int) -> dict[str, Any]:
    """Audit the rows that an approval of the checkpoint would publish. Returns the XCom: id of the checkpoint, rows.

    Args:
        of_job: id of the job.
        staged: XCom of the task `staged`, with the id of the checkpoint.
        most_flights: most departures of an airport in an hour.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    checkpoint_id = int(staged["checkpoint_id"])
    files = [path for data in TidegateHook().get_client(of_job).staged(checkpoint_id) for path in data.paths]
    rows = ds.dataset(files, format="parquet").to_table() if files else None
    if rows is not None and rows.num_rows:
        keys = rows.group_by(["origin", "window_start"]).aggregate([]).num_rows
        if keys != rows.num_rows:
            raise ValueError(f"checkpoint {checkpoint_id}: {rows.num_rows - keys} rows repeat an airport and hour")
        busiest = pc.max(rows["flights"]).as_py()
        if busiest > most_flights:
            raise ValueError(
                f"checkpoint {checkpoint_id}: {busiest} departures in one hour are more than {most_flights}"
            )
    return {"checkpoint_id": checkpoint_id, "rows": 0 if rows is None else rows.num_rows}


def only_after_staging(context: Mapping[str, Any]) -> None:
    """Skip `reject` if no audit ran, because an upstream task failed. Then nothing may be rejected."""
    if context["ti"].xcom_pull(task_ids="staged") is None:
        raise AirflowSkipException("there is no staged checkpoint, so there is nothing to reject")


with DAG(
    dag_id="kafka_to_iceberg",
    description="Hours of a Kafka topic appear in an Iceberg table when an audit has passed.",
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5), "job_id": "{{ params.job_id }}"},
    render_template_as_native_obj=True,
    params={
        "job_id": Param(JOB_ID, type="string", minLength=1, title="Job"),
        "servers": Param("localhost:9092", type="string", title="Bootstrap servers of Kafka"),
        "topic": Param("departures", type="string", title="Topic with departures as JSON"),
        "warehouse": Param(WAREHOUSE, type="string", title="Folder of the catalog (SQLite) and its tables"),
        "table": Param("flights.hourly", type="string", title="Iceberg table"),
        "until": Param(None, type=["null", "string"], title="Event time to publish (default: end of the interval)"),
        "most_flights": Param(100, type="integer", title="The audit fails for an hour with more departures"),
        "master": Param("local[2]", type="string", title="Spark master"),
    },
) as dag:
    start = TidegateStartJobOperator(
        task_id="start",
        pipeline="pipelines/hourly_departures.py:build",
        arguments={
            "servers": "{{ params.servers }}",
            "topic": "{{ params.topic }}",
            "table": "{{ params.table }}",
            "catalog": {
                "type": "sql",
                "uri": "sqlite:///{{ params.warehouse }}/catalog.db",
                "warehouse": "file://{{ params.warehouse }}",
            },
        },
        # No periodic checkpoints: a checkpoint of this DAG audits all rows since the one before.
        options={"parallelism": 2, "commit": "on_request", "checkpoint_interval": "off"},
        master="{{ params.master }}",
        timeout="10 min",
    )
    restore = TidegateRestoreJobOperator(task_id="restore", from_="latest", timeout="10 min")
    complete = TidegateWatermarkSensor(
        task_id="complete",
        at="{{ params.until or data_interval_end }}",
        poke_interval=1,
        timeout=3600,
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    )
    checkpoint = TidegateTriggerCheckpointOperator(task_id="checkpoint", timeout="5 min")
    staged = TidegateStagedCheckpointSensor(
        task_id="staged", checkpoint_id=checkpoint.output, poke_interval=1, timeout=300
    )
    audited = audit("{{ params.job_id }}", staged.output, "{{ params.most_flights }}")
    publish = TidegateCommitCheckpointOperator(task_id="publish", checkpoint_id=audited, timeout="5 min")
    reject = TidegateRejectCheckpointOperator(
        task_id="reject",
        checkpoint_id="{{ ti.xcom_pull(task_ids='staged') }}",  # staged.output would make `staged` an upstream task
        then="stop",
        trigger_rule=TriggerRule.ALL_FAILED,
        timeout="5 min",
        pre_execute=only_after_staging,
    )

    branch = whether("{{ params.job_id }}")
    branch >> [start, restore] >> complete
    branch >> complete >> checkpoint >> staged >> audited >> publish
    audited >> reject
