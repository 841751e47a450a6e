""" "Mark as failed" and "Clear", pressed on the tasks of every verb: the table of docs/airflow.md."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import ClientOf, clear, driver_of, effects, is_held, launch_and_freeze, mark, run_to_end, until

from airflow_tidegate.version_compat import TRIGGERS_SUPPORT_ON_KILL

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("verb", "becomes"), [("start", "RUNNING"), ("run", "CANCELED")])
@pytest.mark.parametrize("place", ["worker", "triggerer"])
def test_a_task_that_is_marked_as_failed_leaves_a_started_job_running_and_cancels_a_run(
    airflow: Standalone, client_of: ClientOf, place: str, verb: str, becomes: str
) -> None:
    """But for a deferred run before Airflow 3.3, whose job goes on: docs/airflow/versions.md."""
    if place == "triggerer" and not TRIGGERS_SUPPORT_ON_KILL:
        becomes = "RUNNING"
    client = client_of(f"marked-{place}-{verb}")
    run = DagRun(airflow, f"{place}_{verb}", client.job_id)
    run.trigger({"job_id": client.job_id})
    thaw = launch_and_freeze(client)
    try:
        if place == "triggerer":
            until("the triggerer to wait", lambda: is_held(airflow, run, verb))
        else:
            until("the worker to wait", lambda: run.tasks()[verb]["state"] == "running")
        mark(airflow, run, verb, "failed")
        assert run_to_end(run) == {verb: "failed"}
        asked = {"cancel": 1} if becomes == "CANCELED" else {}
        until("the job to be asked", lambda: {k: n for k, n in effects(client).items() if k == "cancel"} == asked, 60)
    finally:
        thaw()
    until(f"the job to be {becomes}", lambda: client.view().status.value == becomes, 90)
    assert len(client.specs()) == len(client.launches()) == 1
    if driver := driver_of(client):
        driver.kill()


def another_triggerer_takes_over(airflow: Standalone, run: DagRun, task_id: str) -> None:
    """What a triggerer does with the triggers of one whose heartbeat is late; it dies at once, without a heartbeat."""
    with closing(sqlite3.connect(airflow.home.folder / "airflow.db", timeout=30)) as database, database:
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(job)") if name != "id"]
        running = "job_type = 'TriggererJob' AND state = 'running'"
        other = database.execute(
            f"INSERT INTO job ({', '.join(columns)}) SELECT {', '.join(columns)} FROM job WHERE {running}"
            " ORDER BY latest_heartbeat DESC LIMIT 1"
        ).lastrowid
        found = database.execute(
            "UPDATE trigger SET triggerer_id = ? WHERE id = (SELECT trigger_id FROM task_instance"
            " WHERE run_id = ? AND dag_id = ? AND task_id = ?)",
            (other, run.run_id, run.dag_id, task_id),
        )
        assert found.rowcount == 1


def test_a_run_whose_trigger_goes_to_another_triggerer_goes_on(airflow: Standalone, client_of: ClientOf) -> None:
    """Airflow 3.3 tells the late triggerer's copy that its task was killed (apache/airflow, pull request 73454)."""
    client = client_of("taken-over")
    run = DagRun(airflow, "triggerer_run", client.job_id)
    run.trigger({"job_id": client.job_id})
    thaw = launch_and_freeze(client)
    try:
        until("the triggerer to wait", lambda: is_held(airflow, run, "run"))
        another_triggerer_takes_over(airflow, run, "run")
        [log] = (airflow.home.folder / "logs").glob(f"dag_id={run.dag_id}/run_id={run.run_id}/**/*.trigger.*")
        if TRIGGERS_SUPPORT_ON_KILL:
            until("the trigger to be told of a kill", lambda: "invoking on_kill" in log.read_text(), 60)
            until(
                "it to see that nobody killed the task",
                lambda: "another triggerer has taken over the wait, so" in log.read_text(),
                30,
            )
    finally:
        thaw()
    assert run_to_end(run) == {"run": "success"}
    assert (client.view().status.value, effects(client)["cancel"]) == ("FINISHED", 0)


@pytest.fixture(scope="module")
def press(airflow: Standalone, client_of: ClientOf) -> Callable[..., tuple[str, Any, Mapping[str, int]]]:
    """`press(verb)` triggers the DAG of a verb for one job, or clears its task when it was triggered before. Gives the
    final state, the XCom (the log, of a failed one), and what was added to the job's directory."""
    client = client_of("cleared")
    runs: dict[str, DagRun] = {}

    def pressed(verb: str) -> tuple[str, Any, Mapping[str, int]]:
        before = effects(client)
        if verb not in runs:
            runs[verb] = DagRun(airflow, f"worker_{verb}", "cleared")
            runs[verb].trigger({"job_id": "cleared"})
        else:
            clear(airflow, runs[verb], [verb])
        state = run_to_end(runs[verb])[verb]
        run = runs[verb]
        told = run.xcom(verb) if state == "success" else run.log(verb, run.tasks()[verb]["try_number"])
        return state, told, effects(client) - before

    return pressed


LAUNCHED = {"submissions": 1, "launches": 1, "decided fence": 1}


def test_a_cleared_task_asks_anew_of_the_job_as_it_is_by_then(
    airflow: Standalone, press: Callable[..., tuple[str, Any, Mapping[str, int]]], client_of: ClientOf
) -> None:
    """Cleared in the order of a job's life, each where the table of docs/airflow.md has a line."""
    client = client_of("cleared")
    assert press("start")[0] == "success"
    state, log, added = press("start")
    assert (state, added) == ("failed", {}), "a start is refused while the job is alive"
    assert " is RUNNING" in log

    for verb in ("checkpoint", "savepoint"):
        state, first, added = press(verb)
        assert (state, added) == ("success", {verb: 1, f"completed {verb}": 1})
        state, second, added = press(verb)
        assert (state, added) == ("success", {verb: 1, f"completed {verb}": 1}), "a clear takes another one"
        assert second["checkpoint_id"] > first["checkpoint_id"]
        assert verb == "checkpoint" or (airflow.home.job_root / first["path"]).is_dir(), "a savepoint stays"

    state, stopped, _ = press("suspend")
    assert (state, stopped["outcome"]) == ("success", "committed")
    state, again, added = press("suspend")
    assert (state, again["path"], added) == ("success", stopped["path"], {}), "of a stopped job: that stop's outcome"

    state, _, added = press("restore")
    assert (state, added) == ("success", LAUNCHED)
    state, log, added = press("restore")
    assert (state, added) == ("failed", {}), "a restore is refused while the job is alive"

    assert press("cancel")[0] == "success"
    state, _, added = press("cancel")
    assert (state, added) == ("success", {}), "the job is over: nothing is asked"
    state, _, added = press("checkpoint")
    assert (state, added) == ("failed", {}), "the job is over: no checkpoint"

    state, _, added = press("start")
    assert (state, added) == ("success", LAUNCHED), "a cleared start is a fresh submission"
    assert client.specs()[-1].restore is None
    out = [spec.arguments["out"] for spec in client.specs()]
    assert out[-1] != out[0], "the example gives each its own output"
    assert press("drain")[0] == "success"
