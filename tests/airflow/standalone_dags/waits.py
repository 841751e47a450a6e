"""DAGs that wait for jobs which are no Spark jobs: the test plays their drivers."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_tidegate.assets import checkpoint_asset, watermark_asset
from airflow_tidegate.sensors.checkpoint import TidegateCheckpointSensor

WAITS = 8
NOW = "{{ macros.datetime.now().astimezone().isoformat() }}"
CHECKPOINTS = checkpoint_asset("watched", poll_interval="1 s", min_interval="15 s")
HOURS = watermark_asset(
    "watched",
    every="1 h",
    conn_id="in_the_database",  # not in the environment: the triggerer asks its supervisor for it
    start="2013-01-01T00:00:00Z",
    durable=True,
    poll_interval="1 s",
)

# No retries: each of these is answered a moment after it has deferred.
with DAG(dag_id="answered_at_once", schedule=None, default_args={"retries": 0}):
    for number in range(WAITS):
        TidegateCheckpointSensor(
            task_id=f"wait_{number}", job_id="watched", newer_than=NOW, deferrable=True, poke_interval=1, timeout=300
        )


def told(asset, triggering_asset_events):
    """Payloads of the events that started the run."""
    return [event.extra["payload"] for event in triggering_asset_events[asset]]


with DAG(dag_id="on_checkpoint", schedule=[CHECKPOINTS], catchup=False):

    @task
    def checkpoints(triggering_asset_events=None):
        return told(CHECKPOINTS, triggering_asset_events)

    checkpoints()

with DAG(dag_id="on_hour", schedule=[HOURS], catchup=False):

    @task
    def hours(triggering_asset_events=None):
        return told(HOURS, triggering_asset_events)

    hours()
