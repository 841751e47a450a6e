"""Give a running job its next version, and take it back when that does not come to a checkpoint.

upgrade -> works, or -> old_version_works. The operator suspends the job, starts the new version from that savepoint,
and waits for its first checkpoint. If that does not come, the old version is restored from the same savepoint with its
old code, which was pinned when it was submitted; the run fails, and says why. Nothing is lost or repeated either way.

Try it on the job that `morning_restore` starts: `with_late_flights` is a good version, `broken` is not. The job root
is that of the connection `tidegate_default`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, TriggerRule

from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator

with DAG(
    dag_id="upgrade_with_rollback",
    description="Upgrade a running job; roll back unless the new version completes a checkpoint.",
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
            "5 min", type="string", title="Time to the first checkpoint", description="Then it is rolled back."
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
