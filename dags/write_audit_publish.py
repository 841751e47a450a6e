"""Write, audit, publish: readers see the output of a Spark job only after an Airflow task has audited it.

start -> checkpoint -> staged sensor -> audit -> publish -> drain -> audit of the rest -> publish the rest. The job runs
with `commit="on_request"`: its checkpoints stage rows and publish nothing. The audit reads the staged files of one
checkpoint with pyarrow. If the audit fails, `reject` rejects the checkpoint and stops the job, and readers never see
its rows. The last rows are audited after the job has ended. The tasks `publish_the_rest` and `reject_the_rest` approve
or reject them without a running job.

To see a failed audit, trigger the DAG with `most_delay` 60. The job root is set in the connection `tidegate_default`.
Data and output are below the Param `home`; `tools/flight_data.py HOME/data` writes the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator
from airflow_tidegate.operators.start import TidegateStartJobOperator
from airflow_tidegate.operators.stop import TidegateStopJobOperator
from airflow_tidegate.operators.verdicts import TidegateCommitCheckpointOperator, TidegateRejectCheckpointOperator
from airflow_tidegate.sensors.end_of_data import TidegateEndOfDataSensor
from airflow_tidegate.sensors.staged_checkpoint import TidegateStagedCheckpointSensor
from airflow_tidegate.version_compat import AirflowSkipException

HOME = os.environ.get("FLIGHT_DELAYS_HOME") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "flight_delays"
)
RUN = "{{ run_id | replace(':', '-') | replace('+', '-') }}"
JOB_ID = f"departures-{RUN}"


@task(retries=0)
def audit(of_job: str, staged: Mapping[str, Any], most_delay: float) -> dict[str, Any]:
    """Audit the rows that an approval of the checkpoint would publish.

    Returns the XCom: id of the checkpoint, number of rows, and the largest delay.

    Args:
        of_job: id of the job.
        staged: XCom of the task `staged` or `drain`, with the id of the checkpoint.
        most_delay: most minutes that a departure may be late.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    checkpoint_id = int(staged["checkpoint_id"])
    files = [path for data in TidegateHook().get_client(of_job).staged(checkpoint_id) for path in data.paths]
    rows, latest = 0, 0.0
    if files:
        delays = ds.dataset(files, format="parquet").to_table(columns=["dep_delay"])["dep_delay"]
        rows, latest = len(delays), pc.max(delays).as_py() or 0.0
    if latest > most_delay:
        raise ValueError(
            f"checkpoint {checkpoint_id}: a departure is {latest:g} minutes late, more than {most_delay:g}"
        )
    return {"checkpoint_id": checkpoint_id, "rows": rows, "latest": latest}


def only_after(task_id: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a check for a reject task: it skips the task unless the XCom of `task_id` contains a checkpoint.

    A reject task also starts if an audit did not run, because an upstream task failed. Then nothing may be rejected.
    """

    def look(context: Mapping[str, Any]) -> None:
        if context["ti"].xcom_pull(task_ids=task_id) is None:
            raise AirflowSkipException(
                f"the task {task_id} returned no checkpoint, so no audit ran, and there is nothing to reject"
            )

    return look


with DAG(
    dag_id="write_audit_publish",
    description="A Spark job stages rows; an Airflow task audits them; only then are they published.",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5), "job_id": JOB_ID},
    render_template_as_native_obj=True,
    params={
        "home": Param(HOME, type="string", title="Folder with data/; output goes to out/"),
        "speed": Param(4.0, type="number", exclusiveMinimum=0, title="Days of flights played per second"),
        "most_delay": Param(3000.0, type="number", title="The audit fails for a departure later than this, minutes"),
        "master": Param("local[1]", type="string", title="Spark master"),
    },
) as dag:
    start = TidegateStartJobOperator(
        task_id="start",
        pipeline="pipelines/departures.py:build",
        arguments={
            "flights": "{{ params.home }}/data/flights.parquet",
            "airlines": "{{ params.home }}/data/airlines.parquet",
            "out": f"{{{{ params.home }}}}/out/{RUN}-{{{{ dag_run.clear_number | default(0) }}}}",
            "speed": "{{ params.speed }}",
        },
        # No periodic checkpoints: this DAG audits only two checkpoints, so a periodic one would wait for a verdict.
        options={"commit": "on_request", "checkpoint_interval": "off"},
        master="{{ params.master }}",
        fresh=True,  # after a clear, the job starts again and writes to another folder
    )
    airlines_read = TidegateEndOfDataSensor(task_id="airlines_read", sources=["airlines"], poke_interval=1, timeout=300)
    checkpoint = TidegateTriggerCheckpointOperator(task_id="checkpoint", timeout="5 min")
    staged = TidegateStagedCheckpointSensor(
        task_id="staged", checkpoint_id=checkpoint.output, poke_interval=1, timeout=300
    )
    audited = audit.override(task_id="audit")(JOB_ID, staged.output, "{{ params.most_delay }}")
    publish = TidegateCommitCheckpointOperator(task_id="publish", checkpoint_id=audited, timeout="5 min")
    reject = TidegateRejectCheckpointOperator(
        task_id="reject",
        checkpoint_id="{{ ti.xcom_pull(task_ids='staged') }}",  # staged.output would make `staged` an upstream task
        then="stop",
        trigger_rule=TriggerRule.ALL_FAILED,
        timeout="5 min",
        pre_execute=only_after("staged"),
    )
    all_played = TidegateEndOfDataSensor(task_id="all_played", played_all=["flights"], poke_interval=2, timeout=3600)
    drain = TidegateStopJobOperator(task_id="drain", mode="drain", timeout="10 min")
    rest = audit.override(task_id="audit_the_rest")(JOB_ID, drain.output, "{{ params.most_delay }}")
    publish_rest = TidegateCommitCheckpointOperator(task_id="publish_the_rest", checkpoint_id=rest, timeout="5 min")
    reject_rest = TidegateRejectCheckpointOperator(
        task_id="reject_the_rest",
        checkpoint_id="{{ ti.xcom_pull(task_ids='drain') }}",
        trigger_rule=TriggerRule.ALL_FAILED,
        timeout="5 min",
        pre_execute=only_after("drain"),
    )

    start >> airlines_read >> checkpoint >> staged >> audited >> publish >> all_played >> drain >> rest >> publish_rest
    audited >> reject
    rest >> reject_rest
