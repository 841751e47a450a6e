"""Gives a running job a new version, and restores the old version if the new one completes no checkpoint.

upgrade -> works, or -> old_version_works. The operator suspends the job with a savepoint, starts the new version from
this savepoint, and waits for the new version's first checkpoint. If no checkpoint completes, the operator restores the
old version from the same savepoint, with the code that was pinned when the old version was submitted. The task
`upgrade` then fails and reports the reason. No row is lost or repeated in either case.

Try the DAG on the job that `morning_restore` starts: the version `with_late_flights` works, the version `broken` fails.
The job root is set in the connection `tidegate_default`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, TriggerRule

from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator

with DAG(
    dag_id="upgrade_with_rollback",
    description="Upgrade a running job; restore the old version unless the new one completes a checkpoint.",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=5), "job_id": "{{ params.job_id }}"},
    params={
        "job_id": Param("daily-totals", type="string", minLength=1, title="Job"),
        "version": Param(
            "with_late_flights",
            type="string",
            enum=["with_late_flights", "broken"],
            title="New version",
            description="A function of pipelines/daily_totals.py",
        ),
        "first_checkpoint_timeout": Param(
            "5 min",
            type="string",
            title="Time to the first checkpoint",
            description="Without a checkpoint in this time, the old version is restored.",
        ),
    },
) as dag:
    upgrade = TidegateUpgradeJobOperator(
        task_id="upgrade",
        pipeline="pipelines/daily_totals.py:{{ params.version }}",
        first_checkpoint_timeout="{{ params.first_checkpoint_timeout }}",
        stop_timeout="10 min",
        deferrable=True,
    )
    works = TidegateTriggerCheckpointOperator(task_id="works", timeout="5 min")
    old_version_works = TidegateTriggerCheckpointOperator(
        task_id="old_version_works", timeout="5 min", trigger_rule=TriggerRule.ALL_FAILED
    )
    upgrade >> [works, old_version_works]
