"""Deferred tasks and asset watchers in a real triggerer. The jobs are played by this process: no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from airflow_home import AirflowFailed, Standalone
from dag_run import DagRun
from scripted_job import ScriptedDriver

from tidegate.clock import now_iso
from tidegate.jobs.client.job_client import JobClient

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.timeout(600)]

BEAT_S = 0.5
"""Between two heartbeats of the played job; with each comes a checkpoint."""
MIDNIGHT_US = 1_356_998_400 * 1_000_000
"""2013-01-01 00:00 UTC."""
STEP_US = 60 * 1_000_000
"""Event time that passes with each checkpoint: an hour lasts 30 s."""
TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def watched(airflow: Standalone) -> Iterator[JobClient]:
    """A job that lives, with a checkpoint every `BEAT_S`."""
    client = JobClient(str(airflow.home.job_root), "watched")
    connection = {"connection_id": "in_the_database", "conn_type": "tidegate", "host": str(airflow.home.job_root)}
    airflow.call("POST", "/api/v2/connections", connection)
    pipeline = airflow.home.folder / "played.py"
    pipeline.write_text("def build(args):\n    raise AssertionError('never run')\n")
    client.submit(pipeline=f"{pipeline}:build", submission_id="s")
    over = threading.Event()

    def live() -> None:
        driver = ScriptedDriver(JobClient(str(airflow.home.job_root), "watched"))
        driver.status("RUNNING")
        number = 0
        while not over.wait(BEAT_S):
            number += 1
            mark_us = MIDNIGHT_US + number * STEP_US
            driver.beat(watermark_us=mark_us)
            driver.checkpoint(number, triggered_at=now_iso(), watermark_us=mark_us)

    thread = threading.Thread(target=live)
    thread.start()
    yield client
    over.set()
    thread.join()


def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for something outside."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S:g} s for {what}"
        time.sleep(1.0)


def unpause(airflow: Standalone, dag_id: str) -> None:
    def done() -> bool:
        with suppress(AirflowFailed):
            airflow.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})
            return True
        return False

    until(f"DAG {dag_id} to be found", done)


def successful(airflow: Standalone, dag_id: str, task_id: str) -> list[Any]:
    """What the task returned in each successful run, oldest first."""
    runs = airflow.call("GET", f"/api/v2/dags/{dag_id}/dagRuns?order_by=run_after&limit=100")["dag_runs"]
    return [DagRun(airflow, dag_id, r["dag_run_id"]).xcom(task_id) for r in runs if r["state"] == "success"]


def test_a_deferred_task_that_is_answered_at_once_needs_no_retry(airflow: Standalone, watched: JobClient) -> None:
    """The trigger holds its event back until the scheduler has heard that the worker let go of the task."""
    for turn in range(2):
        run = DagRun(airflow, "answered_at_once", f"turn-{turn}")
        run.trigger({})
        for _ in run.follow(TIMEOUT_S):
            pass
        states = {task_id: (task["state"], task["try_number"]) for task_id, task in run.tasks().items()}
        assert set(states.values()) == {("success", 1)}, states


def test_dags_run_when_a_checkpoint_completes_and_when_an_hour_of_event_time_is_published(
    airflow: Standalone, watched: JobClient
) -> None:
    """S4.4: every hour once, without a gap, each with a checkpoint behind it."""
    for dag_id in ("on_checkpoint", "on_hour"):
        unpause(airflow, dag_id)
    until("a run for a checkpoint", lambda: len(successful(airflow, "on_checkpoint", "checkpoints")) >= 2)
    until("runs for three hours", lambda: sum(len(p) for p in successful(airflow, "on_hour", "hours")) >= 3)
    checkpoints = [p for run in successful(airflow, "on_checkpoint", "checkpoints") for p in run]
    ids = [p["checkpoint_id"] for p in checkpoints]
    assert ids == sorted(set(ids))
    assert ids[-1] - ids[0] == sum(p["count"] for p in checkpoints[1:])
    hours = [p for run in successful(airflow, "on_hour", "hours") for p in run]
    assert hours[0]["interval_start"] == "2013-01-01T00:00:00.000Z"
    assert [p["interval_start"] for p in hours[1:]] == [p["interval_end"] for p in hours[:-1]]
