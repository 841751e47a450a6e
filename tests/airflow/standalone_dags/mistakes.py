"""Every mistake that a user can make in one task, each in a task of its own."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG

from airflow_tidegate.operators.start import TidegateStartJobOperator

HOME = os.environ["FLIGHT_DELAYS_HOME"]
WEATHER = f"{HOME}/data/weather.parquet"
MISTAKES: dict[str, dict[str, Any]] = {
    "typo_in_column": {"pipeline": "pipelines/windy_hours.py:build_with_typo"},
    "missing_file": {"arguments": {"weather": f"{HOME}/data/wether.parquet", "out": f"{HOME}/out/missing_file"}},
    "wrong_option": {"options": {"paralelism": 2}},
    "too_few_slots": {"options": {"parallelism": 3}, "master": "local[1]"},
    "bad_job_id": {"job_id": "../x"},
}

with DAG(dag_id="mistakes", schedule=None, default_args={"retries": 0}, max_active_tasks=2):
    for name, mistake in MISTAKES.items():
        arguments: dict[str, Any] = {
            "job_id": name,
            "pipeline": "pipelines/windy_hours.py:build",
            "arguments": {"weather": WEATHER, "out": f"{HOME}/out/{name}"},
            "options": {"parallelism": 1},
            "master": "local[1]",
            **mistake,
        }
        TidegateStartJobOperator(task_id=name, **arguments)
