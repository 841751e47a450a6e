"""Starts a batch for each hour of a stream when the hour is complete: by event time, not by the clock.

The DAG `departures_live` starts a stream that writes departures to a table. The DAG `hourly_batch_on_watermark` (which
-> report) is scheduled on an asset. The asset changes when the stream's watermark has passed the end of an hour *and*
the rows of this hour are committed (`durable=True`). The report is a separate bounded job that reads the rows of the
hour. Only rows that the stream counts as late can arrive later.

If hours pass faster than reports are made, one run handles several hours. After a restart of the triggerer, the asset
may report an hour twice: the second run is skipped. The job root is set in the connection `tidegate_default`. Data and
output are below the Param `home`; `tools/flight_data.py HOME/data` writes the data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_tidegate.assets import watermark_asset
from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.version_compat import AirflowFailException, AirflowSkipException
from tidegate.errors import JobNotFoundError

HOME = os.environ.get("FLIGHT_DELAYS_HOME") or str(
    Path(os.environ.get("AIRFLOW_HOME", Path.home() / "airflow")) / "flight_delays"
)
STREAM = "departures-live"
HOUR_PASSED = watermark_asset(STREAM, every="1 h", durable=True, min_interval="10 s")
RUN = "{{ run_id | replace(':', '-') | replace('+', '-') }}-{{ dag_run.clear_number | default(0) }}"
RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=5)}

with DAG(
    dag_id="departures_live",
    description="Start the stream whose hours hourly_batch_on_watermark reports.",
    schedule=None,
    catchup=False,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args=RETRIES,
    params={
        "home": Param(HOME, type="string", title="Folder with data/; output goes to out/"),
        "speed": Param(0.01, type="number", exclusiveMinimum=0, title="Days of flights played per second"),
        "master": Param("local[1]", type="string", title="Spark master"),
    },
) as live:
    TidegateStartJobOperator(
        task_id="start",
        job_id=STREAM,
        pipeline="pipelines/departures.py:build",
        arguments={
            "flights": "{{ params.home }}/data/flights.parquet",
            "airlines": "{{ params.home }}/data/airlines.parquet",
            "out": f"{{{{ params.home }}}}/out/{STREAM}-{RUN}",
            "speed": "{{ params.speed }}",
        },
        options={"checkpoint_interval": "5 s"},
        master="{{ params.master }}",
        fresh=True,  # each run of this DAG writes to another folder
        timeout="10 min",
    )


def job_of(end: str) -> str:
    """Return the job id of the report whose interval ends at `end`."""
    return f"{STREAM}-until-{datetime.fromisoformat(end):%Y%m%dT%H%M}"


@task
def which(triggering_asset_events: Mapping[Any, Any] | None = None) -> dict[str, str]:
    """Return the interval to report: `{"job_id", "start", "end", "table", "out"}`. Skip an interval that has a report.

    The interval covers the hours of all events that started this run.
    """
    told = () if triggering_asset_events is None else triggering_asset_events.get(HOUR_PASSED, ())
    payloads = [event.extra["payload"] for event in told]
    if not payloads:
        raise AirflowFailException(f"this run was not started by the asset {HOUR_PASSED.name}, so it has no hour")
    start, end = min(p["interval_start"] for p in payloads), max(p["interval_end"] for p in payloads)
    hook, job_id = TidegateHook(), job_of(end)
    try:
        if hook.get_client(job_id).view().status.value == "FINISHED":
            raise AirflowSkipException(f"the report until {end} exists already: job {job_id}")
    except JobNotFoundError:
        pass
    table = hook.get_client(STREAM).specs()[-1].arguments["out"]
    return {"job_id": job_id, "start": start, "end": end, "table": table, "out": f"{table}-hours/{job_id}"}


INTERVAL = "{{ ti.xcom_pull(task_ids='which')['%s'] }}"

with DAG(
    dag_id="hourly_batch_on_watermark",
    description="A bounded run for each hour that the watermark of a stream has passed.",
    schedule=[HOUR_PASSED],
    catchup=False,
    max_active_runs=1,
    tags=["tidegate", "example"],
    doc_md=__doc__,
    default_args=RETRIES,
) as dag:
    report = TidegateRunJobOperator(
        task_id="report",
        job_id=INTERVAL % "job_id",
        pipeline="pipelines/hourly_report.py:build",
        arguments={name: INTERVAL % name for name in ("table", "start", "end", "out")},
        master="local[1]",
        fresh=True,  # after a clear, the job reads its hours again and overwrites their report
        timeout="30 min",
        deferrable=True,
    )
    which() >> report
