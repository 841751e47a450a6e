"""A DAG for every verb, with one task that waits in a worker (`worker_VERB`) or in the triggerer (`triggerer_VERB`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk import DAG, Param

from airflow_tidegate.operators.check_restore import TidegateCheckRestoreOperator
from airflow_tidegate.operators.collect_garbage import TidegateCollectGarbageOperator
from airflow_tidegate.operators.delete_savepoint import TidegateDeleteSavepointOperator
from airflow_tidegate.operators.fork import TidegateForkJobOperator
from airflow_tidegate.operators.rescale import TidegateRescaleJobOperator
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator, TidegateTriggerSavepointOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.operators.stop import TidegateCancelJobOperator, TidegateStopJobOperator
from airflow_tidegate.operators.supervise import TidegateSuperviseJobOperator
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator
from airflow_tidegate.operators.verdicts import TidegateCommitCheckpointOperator, TidegateRejectCheckpointOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.sensors.end_of_data import TidegateEndOfDataSensor
from airflow_tidegate.sensors.staged_checkpoint import TidegateStagedCheckpointSensor

HOME = os.environ["FLIGHT_DELAYS_HOME"]
JOB_ID = "{{ params.job_id }}"
CHECKPOINT = "{{ params.checkpoint_id }}"
PIPELINE: Mapping[str, Any] = {
    "pipeline": "pipelines/ticking.py:build",
    # A driver that the tests hold up for a while is not taken for dead by its slots.
    "options": {"parallelism": 1, "commit": "{{ params.commit }}", "heartbeat_timeout": "3 min"},
    "master": "local[2]",  # two slots at most, for a job that is rescaled
}
OUT = f"{HOME}/out/{JOB_ID}-{{{{ dag_run.clear_number | default(0) }}}}"
VERBS: Mapping[str, Callable[..., Any]] = {
    "start": partial(
        TidegateStartJobOperator, fresh=True, arguments={"out": OUT, "rate": 100, "rows": 60_000}, **PIPELINE
    ),
    "run": partial(TidegateRunJobOperator, fresh=True, arguments={"out": OUT, "rate": 100, "rows": 300}, **PIPELINE),
    "checkpoint": TidegateTriggerCheckpointOperator,
    "savepoint": TidegateTriggerSavepointOperator,
    "commit": partial(TidegateCommitCheckpointOperator, checkpoint_id=CHECKPOINT),
    "reject": partial(TidegateRejectCheckpointOperator, checkpoint_id=CHECKPOINT, then="quarantine"),
    "suspend": partial(TidegateStopJobOperator, mode="suspend"),
    "drain": partial(TidegateStopJobOperator, mode="drain"),
    "restore": partial(TidegateRestoreJobOperator, from_="latest"),
    "cancel": TidegateCancelJobOperator,
    "fork": partial(
        TidegateForkJobOperator,
        from_job="{{ params.from_job }}",
        from_="{{ params.path }}",
        arguments={"out": OUT, "rate": 1_000_000},
        fresh=True,
    ),
    "upgrade": partial(TidegateUpgradeJobOperator, options={**PIPELINE["options"], "checkpoint_interval": "1 s"}),
    "rescale": partial(TidegateRescaleJobOperator, parallelism=2),
    "supervise": TidegateSuperviseJobOperator,
}
AT_ONCE: Mapping[str, Callable[..., Any]] = {
    "check_restore": partial(TidegateCheckRestoreOperator, from_="{{ params.path }}", graph="{{ params.graph }}"),
    "collect_garbage": TidegateCollectGarbageOperator,
    "delete_savepoint": partial(TidegateDeleteSavepointOperator, savepoint="{{ params.path }}", also_latest=True),
}
"""Verbs that wait for no driver."""
SENSORS: Mapping[str, Callable[..., Any]] = {
    "sees_checkpoint": partial(TidegateCheckpointSensor, newer_than=CHECKPOINT),
    "sees_staged": partial(TidegateStagedCheckpointSensor, newer_than=CHECKPOINT),
    "sees_end": TidegateEndOfDataSensor,
}
PARAMS = {
    "job_id": Param("", type="string"),
    "checkpoint_id": Param(None, type=["null", "integer"]),
    "commit": Param("automatic", type="string"),
    "from_job": Param("", type="string"),
    "path": Param("latest", type="string"),
    "graph": Param("", type="string"),
}
LATER = {"retries": 1, "retry_delay": timedelta(seconds=1)}

for place in ("worker", "triggerer"):
    for verb, make in {**VERBS, **SENSORS}.items():
        with DAG(dag_id=f"{place}_{verb}", schedule=None, params=PARAMS, default_args=LATER, max_active_runs=8):
            how: dict[str, Any] = {"poke_interval": 0.5} if verb in SENSORS else {"poll_interval": "500 ms"}
            make(task_id=verb, job_id=JOB_ID, deferrable=place == "triggerer", **how)

for verb, make in AT_ONCE.items():
    with DAG(dag_id=f"worker_{verb}", schedule=None, params=PARAMS, default_args=LATER):
        make(task_id=verb, job_id=JOB_ID)
