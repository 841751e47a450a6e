"""Airflow's operators over real Spark drivers: supervised, upgraded, rolled back (S9.1, S9.3)."""

from __future__ import annotations

import json
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import PIPELINE, RealJob
from pipelines.counting import expected

from airflow_tidegate.failures import AirflowFailException
from airflow_tidegate.operators.supervise import TidegateSuperviseJobOperator
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator
from tidegate.jobs.launches import find_local_driver

ROWS = 60_000


@pytest.fixture
def job(local_job: RealJob, monkeypatch: pytest.MonkeyPatch) -> RealJob:
    """A job that runs, under a connection that Airflow finds."""
    monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps({"conn_type": "tidegate", "host": local_job.root}))
    local_job.start(rows=ROWS, rate=1_500.0, heartbeat_timeout="10 s")
    local_job.completed(1)
    return local_job


def context(task_id: str) -> dict[str, Any]:
    """Of a task instance, as far as operators look at it."""
    instance = SimpleNamespace(dag_id="d", run_id="r", task_id=task_id, map_index=-1)
    return {"ti": instance, "dag_run": SimpleNamespace(clear_number=0), "dag": None}


def end_drivers(job: RealJob) -> None:
    """Those that operators have launched."""
    for spec in job.client.specs():
        driver = find_local_driver(job.client.store, job.client.layout, spec.number)
        if driver is not None:
            driver.kill(signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_driver_is_relaunched_and_the_output_is_exact(job: RealJob) -> None:
    """S9.1."""
    threading.Timer(3.0, lambda: os.kill(job.driver_pid(), signal.SIGKILL)).start()
    supervise = TidegateSuperviseJobOperator(
        task_id="supervise", job_id="counting", deferrable=False, poll_interval="500 ms", max_relaunches=1
    )
    try:
        result = supervise.execute(context("supervise"))
        assert (result["status"], result["relaunches"], result["generation"]) == ("FINISHED", 1, 2), job.logs()
        assert job.output() == expected(ROWS)
    finally:
        end_drivers(job)


@pytest.mark.slow
def test_an_upgrade_goes_on_exactly_and_a_bad_one_is_rolled_back(job: RealJob) -> None:
    """S9.3: from the savepoint, in the same lineage, by the new version and after it by the old one."""

    def upgrade(task_id: str, function: str) -> Any:
        operator = TidegateUpgradeJobOperator(
            task_id=task_id,
            job_id="counting",
            pipeline=f"{PIPELINE}:{function}",
            options={**job.options, "parallelism": 1},
            poll_interval="500 ms",
        )
        return operator.execute(context(task_id))

    try:
        with pytest.raises(AirflowFailException, match="submission 3 runs the old version") as caught:
            upgrade("bad", "typo")
        assert "'vv'" in str(caught.value)
        first, _, back = job.client.specs()
        assert (back.pipeline, back.options, back.lineage) == (first.pipeline, first.options, first.lineage)
        result = upgrade("good", "build")
        assert (result["upgraded_from"], result["spec"]) == (3, 4)
        view = job.until_status("FINISHED", "FAILED")
        assert view.status.value == "FINISHED", view.failure
        assert job.output() == expected(ROWS)
        assert {spec.lineage for spec in job.client.specs()} == {first.lineage}
    finally:
        end_drivers(job)
