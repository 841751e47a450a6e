"""Calculates a past interval again while the job runs: a bounded fork of one of its savepoints.

savepoint -> backfill -> compare. The task `backfill` forks the job (the original): it starts a separate job with the
state and the positions of the savepoint. The fork reads the input from there to the end of the interval as fast as it
can, and writes to a folder of its own. The original continues: the fork only reads its savepoint. `compare` reports
which days are equal in the tables of the fork and of the original.

Take the savepoint with the DAG `savepoint_on_demand`. If you name no savepoint in the form, the DAG uses the newest
savepoint of the job. The job root is set in the connection `tidegate_default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.fork import TidegateForkJobOperator
from airflow_tidegate.version_compat import AirflowFailException

RUN = "{{ run_id | replace(':', '-') | replace('+', '-') }}-{{ dag_run.clear_number | default(0) }}"
JOB_ID = f"{{{{ params.job_id }}}}-from-{RUN}"


@task(task_id="savepoint")
def where(params: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return `{"path", "out"}`: path of the savepoint, and folder of the original's table."""
    assert params is not None, "Airflow passed no Params"
    of_job, given = params["job_id"], params["savepoint"]
    client = TidegateHook().get_client(of_job)
    taken = [snapshot.path for snapshot in client.view().completed if snapshot.kind == "savepoint"]
    if not (given or taken):
        raise AirflowFailException(f"job {of_job} has no savepoint: take one with savepoint_on_demand, or name one")
    return {"path": given or taken[-1], "out": client.specs()[-1].arguments["out"]}


def totals(folder: str) -> dict[str, Any]:
    """Return the table as a mapping: airport and day -> (flights, minutes late). Adds up several rows of one day."""
    import pyarrow.dataset as ds

    found: dict[str, Any] = {}
    for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
        key = f"{row['origin']} {row['window_start']:%Y-%m-%d}"
        flights, minutes = found.get(key, (0, 0))
        found[key] = (flights + row["flights"], minutes + row["minutes_late"])
    return found


@task
def compare(of_job: str, fork: str) -> dict[str, Any]:
    """Compare days and airports of the backfill with the original's table: `{"days", "same", "only_here", "differ"}`.

    Two kinds of days differ, because one table lacks some of their rows: the day whose window is still open in
    the original, and the day in which the interval ends.
    """
    hook = TidegateHook()
    live, again = (totals(hook.get_client(job).specs()[-1].arguments["out"]) for job in (of_job, fork))
    both = sorted(live.keys() & again.keys())
    return {
        "days": len(again),
        "same": sum(live[key] == again[key] for key in both),
        "only_here": len(again.keys() - live.keys()),
        "differ": [key for key in both if live[key] != again[key]],
    }


with DAG(
    dag_id="backfill_from_savepoint",
    description="Run a past interval again, as a bounded fork of a job's savepoint.",
    schedule=None,
    catchup=False,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5)},
    params={
        "job_id": Param("daily-totals", type="string", minLength=1, title="Job"),
        "savepoint": Param(
            None, type=["null", "string"], title="Savepoint", description="Path or URL. Empty: the job's newest."
        ),
        "until": Param(
            None,
            type=["null", "string"],
            pattern=r"^\d{4}-\d\d-\d\d( \d\d:\d\d)?$",
            title="Until",
            description="End of the interval, UTC, such as 2013-01-10. Empty: all input.",
        ),
    },
) as dag:
    savepoint = where()
    backfill = TidegateForkJobOperator(
        task_id="backfill",
        job_id=JOB_ID,
        from_job="{{ params.job_id }}",
        from_="{{ ti.xcom_pull(task_ids='savepoint')['path'] }}",
        pipeline="pipelines/daily_totals.py:interval",
        arguments={
            "until": "{{ params.until or '' }}",
            "out": f"{{{{ ti.xcom_pull(task_ids='savepoint')['out'] }}}}-from-{RUN}",
        },
        options={"checkpoint_interval": "30 s"},
        timeout="2 h",
        deferrable=True,
    )
    savepoint >> backfill >> compare("{{ params.job_id }}", JOB_ID)
