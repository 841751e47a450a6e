"""The whole life of a stateful Spark job as Airflow tasks, on the departures of 2013 from New York.

start -> checkpoint sensor -> end-of-data sensor (airlines) -> savepoint -> suspend -> restore -> wait until the replay
has played all -> drain -> audit. Some tasks wait in a worker, some in the triggerer. The job root is set in the
connection `tidegate_default`. Data and output are below the Param `home`; `tools/flight_data.py HOME/data` writes the
data.

To run the job again, clear `start` with everything downstream. The new run writes to another folder, because the
folder's name contains the clear number of the DAG run (how often its tasks were cleared).
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.snapshots import TidegateTriggerSavepointOperator
from airflow_tidegate.operators.start import TidegateStartJobOperator
from airflow_tidegate.operators.stop import TidegateStopJobOperator
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor
from airflow_tidegate.sensors.end_of_data import TidegateEndOfDataSensor

HERE = Path(__file__).resolve().parent
HOME = os.environ.get("FLIGHT_DELAYS_HOME") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "flight_delays"
)
RUN = "{{ run_id | replace(':', '-') | replace('+', '-') }}"
JOB_ID = f"flight-delays-{RUN}"

with DAG(
    dag_id="flight_delays",
    description="Start, checkpoint, savepoint, suspend, restore and drain a stateful Spark job; audit its output.",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5), "job_id": JOB_ID},
    params={
        "home": Param(HOME, type="string", title="Folder with data/; output goes to out/"),
        "speed": Param(4.0, type="number", exclusiveMinimum=0, title="Days of flights played per second"),
        "parallelism": Param(2, type="integer", minimum=1, title="Slots"),
        "master": Param("local[2]", type="string", title="Spark master"),
    },
) as dag:
    start = TidegateStartJobOperator(
        task_id="start",
        pipeline="pipelines/flight_delays.py:build",
        arguments={
            "flights": "{{ params.home }}/data/flights.parquet",
            "airlines": "{{ params.home }}/data/airlines.parquet",
            "weather": "{{ params.home }}/data/weather.parquet",
            "out": f"{{{{ params.home }}}}/out/{RUN}-{{{{ dag_run.clear_number | default(0) }}}}",
            "speed": "{{ params.speed }}",
        },
        options={"parallelism": "{{ params.parallelism }}", "checkpoint_interval": "2 s", "retained_checkpoints": 3},
        master="{{ params.master }}",
        fresh=True,  # after a clear, the job starts again and writes to another folder
    )
    two_checkpoints = TidegateCheckpointSensor(task_id="two_checkpoints", count=2, poke_interval=1, timeout=300)
    airlines_read = TidegateEndOfDataSensor(
        task_id="airlines_read", sources=["airlines"], deferrable=True, poke_interval=1, timeout=300
    )
    savepoint = TidegateTriggerSavepointOperator(task_id="savepoint", deferrable=True, timeout="5 min")
    suspend = TidegateStopJobOperator(task_id="suspend", mode="suspend", timeout="5 min")
    restore = TidegateRestoreJobOperator(task_id="restore", from_=suspend.output, deferrable=True, timeout="10 min")
    all_played = TidegateEndOfDataSensor(
        task_id="all_played", played_all=["flights"], deferrable=True, poke_interval=2, timeout=3600
    )
    drain = TidegateStopJobOperator(task_id="drain", mode="drain", deferrable=True, timeout="10 min")

    @task(task_id="audit", retries=0)
    def compare(of_job: str) -> dict[str, Any]:
        """Compare the committed output with DuckDB's independent calculation; fail unless the rows are the same."""
        sys.path.insert(0, str(HERE))
        from pipelines.flight_audit import audit, verdict

        audits = audit(TidegateHook().get_client(of_job).specs()[-1].arguments)
        logging.getLogger(__name__).info(verdict(audits))
        wrong = {name: found for name, found in audits.items() if not found["exact"]}
        if wrong:
            raise ValueError(f"the output is not what DuckDB calculates: {wrong}")
        return audits

    (
        start
        >> two_checkpoints
        >> airlines_read
        >> savepoint
        >> suspend
        >> restore
        >> all_played
        >> drain
        >> compare(JOB_ID)
    )
