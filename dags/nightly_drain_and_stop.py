"""Stops a job at night: every window fires, all output is committed, and the job's slots are free.

stop -> report. The DAG `morning_restore` resumes the job. The drain (S7.2) makes the table complete up to the stop: the
report counts each flight that was read. The day that is open at the stop gets two rows: one at the stop, and another
one when the restored job has read the rest of the day. So use a drain for results that can be added, as in
`pipelines/daily_totals.py`. For other results, such as means, choose `suspend`: windows stay open overnight, each
window gives one result, and the report ends with the last closed day.

If a drain takes longer than the Param `timeout`, the job is suspended instead. The job root is set in the connection
`tidegate_default`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.stop import TidegateStopJobOperator


@task
def report(of_job: str) -> dict[str, Any]:
    """Add up the table that the stopped job has written: `{"days", "flights", "minutes_late"}`."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(TidegateHook().get_client(of_job).specs()[-1].arguments["out"], format="parquet").to_table()
    return {
        "days": pc.count_distinct(table["window_start"]).as_py(),
        "flights": pc.sum(table["flights"]).as_py() or 0,
        "minutes_late": pc.sum(table["minutes_late"]).as_py() or 0,
    }


with DAG(
    dag_id="nightly_drain_and_stop",
    description="Stop a job for the night, with all input that it has read in its output.",
    schedule="0 22 * * *",
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "job_id": Param("daily-totals", type="string", minLength=1, title="Job"),
        "mode": Param(
            "drain",
            type="string",
            enum=["drain", "suspend"],
            title="Mode",
            description="drain: all windows fire; open ones fire again after the restore. suspend: windows stay open.",
        ),
        "timeout": Param(
            "20 min", type="string", title="Timeout", description="If the drain takes longer, the job is suspended."
        ),
    },
) as dag:
    stop = TidegateStopJobOperator(
        task_id="stop",
        job_id="{{ params.job_id }}",
        mode="{{ params.mode }}",
        timeout="{{ params.timeout }}",
        on_timeout="suspend",
        deferrable=True,
    )
    stop >> report("{{ params.job_id }}")
