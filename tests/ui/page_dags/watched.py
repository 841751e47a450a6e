"""A job that is looked at: it runs until somebody ends it on the page."""

from __future__ import annotations

import os

from airflow.sdk import DAG, Param

from airflow_tidegate.operators.start import TidegateStartJobOperator

HOME = os.environ["FLIGHT_DELAYS_HOME"]

with DAG(dag_id="watched", schedule=None, params={"job_id": Param("flight-delays", type="string")}):
    TidegateStartJobOperator(
        task_id="start",
        job_id="{{ params.job_id }}",
        pipeline="pipelines/flight_delays.py:build",
        arguments={
            **{name: f"{HOME}/data/{name}.parquet" for name in ("flights", "airlines", "weather")},
            "out": f"{HOME}/out/{{{{ params.job_id }}}}",
            "speed": 1,
        },
        options={"parallelism": 2, "checkpoint_interval": "1 s", "retained_checkpoints": 3},
        master="local[2]",
    )
