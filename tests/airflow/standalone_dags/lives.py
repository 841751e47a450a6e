"""DAGs for the tests on a real `airflow standalone`: a job whose worker and driver are killed, and a bounded job."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.operators.stop import TidegateStopJobOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.sensors.end_of_data import TidegateEndOfDataSensor

HOME = os.environ["FLIGHT_DELAYS_HOME"]
ARGUMENTS = {
    **{name: f"{HOME}/data/{name}.parquet" for name in ("flights", "airlines", "weather")},
    "out": f"{HOME}/out/{{{{ params.job_id }}}}",
    "speed": 1,
}
COMMON = {"schedule": None, "params": {"job_id": Param("survivor", type="string")}}

with DAG(dag_id="begin", default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}, **COMMON):
    TidegateStartJobOperator(
        task_id="start",
        job_id="{{ params.job_id }}",
        pipeline="pipelines/flight_delays.py:build",
        arguments=ARGUMENTS,
        options={"parallelism": 2, "checkpoint_interval": "500 ms"},
        master="local[2]",
    ) >> TidegateCheckpointSensor(task_id="checkpointed", job_id="{{ params.job_id }}", count=2, poke_interval=0.5)

# Retries, because Airflow 3.3 fails a deferred task whose trigger fires before the scheduler has heard that its
# worker let go.
PATIENT = {"retries": 3, "retry_delay": timedelta(seconds=1), "job_id": "{{ params.job_id }}"}
with DAG(dag_id="go_on", default_args=PATIENT, **COMMON):
    (
        TidegateRestoreJobOperator(task_id="restore", from_="latest")
        >> TidegateEndOfDataSensor(task_id="all_played", played_all=["flights"], deferrable=True, poke_interval=1)
        >> TidegateStopJobOperator(task_id="drain", mode="drain")
    )

RUN = {"task_id": "run", "job_id": "{{ params.job_id }}", "master": "local[1]", "deferrable": True}
OUT = f"{HOME}/out/{{{{ params.job_id }}}}"
WINDY = {**RUN, "arguments": {"weather": f"{HOME}/data/weather.parquet", "out": OUT}}
with DAG(dag_id="bounded", default_args={"retries": 0}, **COMMON) as bounded:
    TidegateRunJobOperator(pipeline="pipelines/windy_hours.py:build", options={"parallelism": 1}, **WINDY)

IN_BATCH = {"parallelism": 1, "execution_mode": "batch"}
with DAG(dag_id="bounded_in_batch", default_args={"retries": 0}, **COMMON):
    TidegateRunJobOperator(pipeline="pipelines/windy_hours.py:build", options=IN_BATCH, **WINDY)

with DAG(dag_id="unbounded_in_batch", default_args={"retries": 0}, **COMMON):
    ticking = {"rate": 10, "out": OUT}
    TidegateRunJobOperator(pipeline="pipelines/ticking.py:build", options=IN_BATCH, arguments=ticking, **RUN)
