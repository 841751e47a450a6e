"""Publishes the files of a folder on a Kafka topic, and keeps the job alive.

whether -> start (if the job has no snapshot yet) or restore (if it is stopped, or its driver has died) -> supervise.
The job watches the folder, publishes each line of each new file once, and moves the file to another folder. `supervise`
relaunches a driver that dies, and ends when the job is stopped.

User and password of Kafka are in the Airflow connection that the Param `kafka_conn_id` names. Every driver that one of
these tasks starts gets them in its environment; no file, command line or XCom contains them.

The job root is set in the connection `tidegate_default`, whose launcher must be `local` or `spark-submit`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, TriggerRule, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.start import TidegateStartJobOperator
from airflow_tidegate.operators.supervise import TidegateSuperviseJobOperator
from tidegate.errors import JobNotFoundError

DELIVERIES = os.environ.get("TIDEGATE_DELIVERIES") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "deliveries"
)
JOB_ID = "folder-to-kafka"


@task.branch
def whether(of_job: str) -> str:
    """Return the id of the next Airflow task."""
    client = TidegateHook().get_client(of_job)
    try:
        view = client.view()
    except JobNotFoundError:
        return "start"
    if view.is_active and client.is_alive():
        return "supervise"
    return "restore" if view.latest_recovery_point is not None else "start"


with DAG(
    dag_id="folder_to_kafka",
    description="Files of a folder are published on a Kafka topic, each record once.",
    # One run lasts as long as the job. The next one restores a job that was stopped or has failed.
    schedule=None,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(seconds=5),
        "job_id": "{{ params.job_id }}",
        # For every task that starts a driver.
        "secrets": {
            "KAFKA_USER": "conn:{{ params.kafka_conn_id }}/login",
            "KAFKA_PASSWORD": "conn:{{ params.kafka_conn_id }}/password",
        },
    },
    render_template_as_native_obj=True,
    params={
        "job_id": Param(JOB_ID, type="string", minLength=1, title="Job"),
        "deliveries": Param(DELIVERIES, type="string", title="Folder with `incoming`, `published` and `rejected`"),
        "servers": Param("localhost:9092", type="string", title="Bootstrap servers of Kafka"),
        "topic": Param("departures", type="string", title="Topic for departures as JSON"),
        "kafka_conn_id": Param("kafka_departures", type="string", title="Airflow connection with user and password"),
        "protocol": Param("SASL_SSL", enum=["SASL_SSL", "SASL_PLAINTEXT"], title="Security protocol of Kafka"),
        "mechanism": Param("SCRAM-SHA-512", enum=["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"], title="SASL mechanism"),
        "master": Param("local[2]", type="string", title="Spark master"),
    },
) as dag:
    start = TidegateStartJobOperator(
        task_id="start",
        pipeline="pipelines/departure_files.py:build",
        arguments={
            "incoming": "{{ params.deliveries }}/incoming",
            "published": "{{ params.deliveries }}/published",
            "rejected": "{{ params.deliveries }}/rejected",
            "servers": "{{ params.servers }}",
            "topic": "{{ params.topic }}",
            "protocol": "{{ params.protocol }}",
            "mechanism": "{{ params.mechanism }}",
        },
        # Records appear on the topic when a checkpoint has completed.
        options={"parallelism": 2, "checkpoint_interval": "10 s"},
        master="{{ params.master }}",
        timeout="10 min",
    )
    restore = TidegateRestoreJobOperator(task_id="restore", from_="latest", timeout="10 min")
    supervise = TidegateSuperviseJobOperator(
        task_id="supervise",
        # A folder may be empty for long.
        no_progress_timeout="1 d",
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    )

    branch = whether("{{ params.job_id }}")
    branch >> [start, restore] >> supervise
    branch >> supervise
