"""Jobs driven by a real Airflow: workers, drivers and users' mistakes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pyarrow.dataset
import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import RUN_TIMEOUT_S, ClientOf, assert_windy_hours, kill_task, launch_and_freeze, run_to_end, until
from pipelines.flight_audit import audit, verdict

from tidegate.errors import FencedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.decision_log import GenerationLog
from tidegate.jobs.launches import find_local_driver

pytestmark = [pytest.mark.standalone, pytest.mark.timeout(600)]


def assert_exact(client: JobClient) -> None:
    """The committed output of `flight_delays` is what DuckDB calculates."""
    audits = audit(client.specs()[-1].arguments)
    assert all(found["exact"] for found in audits.values()), f"{verdict(audits)}: {audits}"


def test_the_demo_dag_takes_a_job_through_its_whole_life_with_exact_output(
    airflow: Standalone, client_of: ClientOf
) -> None:
    run = DagRun(airflow, "flight_delays", "whole-life")
    run.trigger({"speed": 1.5})
    states = run_to_end(run)
    assert set(states.values()) == {"success"}, {t: run.log(t)[-3000:] for t, s in states.items() if s == "failed"}
    client = client_of("flight-delays-whole-life")
    assert_exact(client)
    view = client.view()
    kinds = [c.kind for c in view.completed]
    assert view.status.value == "STOPPED"
    assert kinds.count("savepoint") == 1
    assert kinds.count("stop-savepoint") == 2
    suspended = run.xcom("suspend")
    assert suspended["outcome"] == "committed"
    restored = client.specs()[1].restore
    assert restored is not None
    assert restored.path == suspended["path"]


def test_one_job_survives_the_death_of_its_airflow_worker_and_then_of_its_driver(
    airflow: Standalone, client_of: ClientOf
) -> None:
    client = client_of("survivor")
    run = DagRun(airflow, "begin", "killed-worker")
    run.trigger({"job_id": "survivor"})
    thaw = launch_and_freeze(client)
    try:
        kill_task(run, "start")
    finally:
        thaw()
    states = run_to_end(run)
    assert states == {"start": "success", "checkpointed": "success"}, run.log("start", 2)
    assert run.tasks()["start"]["try_number"] == 2
    assert len(client.specs()) == 1
    assert len(client.launches()) == 1
    assert run.xcom("start") == {"job_id": "survivor", "spec": 1, "generation": 1, "status": "RUNNING"}

    second = DagRun(airflow, "begin", "same-job-again")
    second.trigger({"job_id": "survivor"})
    assert run_to_end(second)["start"] == "failed"
    refusal = second.log("start", second.tasks()["start"]["try_number"])
    assert " is RUNNING" in refusal and "survivor" in refusal, refusal[-3000:]
    assert len(client.specs()) == 1, "the refused start left a submission behind"

    driver = find_local_driver(client.store, client.layout, client.spec(1).number)
    assert driver is not None
    assert driver.kill(signal.SIGKILL)
    dead = client_of("survivor")
    dead.log.read()
    go_on = DagRun(airflow, "go_on", "dead-driver")
    go_on.trigger({"job_id": "survivor"})
    states = run_to_end(go_on)
    assert set(states.values()) == {"success"}, {t: go_on.log(t)[-3000:] for t, s in states.items() if s == "failed"}
    assert_exact(client)
    assert client.view().generation == 2
    with pytest.raises(FencedError):
        GenerationLog(dead.log, "survivor", 1).append("committed", {"checkpoint_id": 1})


def test_every_mistake_ends_with_one_clear_message_in_the_airflow_task_log(
    airflow: Standalone, client_of: ClientOf
) -> None:
    words = {
        "typo_in_column": ("wind_sped", "wind_speed"),
        "missing_file": ("wether.parquet",),
        "wrong_option": ("paralelism", "parallelism"),
        "too_few_slots": ("1 of 3 slots", "local[3]"),
        "bad_job_id": ("../x",),
    }
    run = DagRun(airflow, "mistakes", "all")
    run.trigger({})
    states = run_to_end(run)
    assert states == dict.fromkeys(words, "failed")
    for task_id, expected in words.items():
        log = run.log(task_id)
        missing = [word for word in expected if word not in log]
        assert not missing, f"{task_id}: {missing} not in\n{log[-3000:]}"
    for never_submitted in ("wrong_option", "bad_job_id", "too_few_slots"):
        assert not list(airflow.home.job_root.glob(f"{never_submitted}*"))
    for ended in ("typo_in_column", "missing_file"):
        client = client_of(ended)
        until(
            f"the driver of {ended} to end",
            lambda c=client: find_local_driver(c.store, c.layout, c.spec(1).number) is None,
            60.0,
        )
        assert client.view().status.value == "FAILED"
    assert not list((airflow.home.flights / "out").glob("*/part-*")), "a mistake wrote output"


def departures(airflow: Standalone, run_id: str) -> int:
    """Rows that a reader of the table of `write_audit_publish` sees."""
    files = (airflow.home.flights / "out" / f"{run_id}-0").glob("*.parquet")
    return sum(pyarrow.dataset.dataset(str(path)).count_rows() for path in files)


def test_rows_are_published_once_an_audit_has_passed_also_after_the_end_of_the_job(
    airflow: Standalone, client_of: ClientOf
) -> None:
    """S7.8: the first approval is given to the running job, the last one when it has ended."""
    run = DagRun(airflow, "write_audit_publish", "audited")
    run.trigger({"speed": 0.8})
    states = run_to_end(run)
    failed = {t: run.log(t)[-3000:] for t, s in states.items() if s == "failed"}
    assert (states.pop("reject"), states.pop("reject_the_rest")) == ("skipped", "skipped"), failed
    assert set(states.values()) == {"success"}, failed
    first, rest = run.xcom("audit"), run.xcom("audit_the_rest")
    assert first["rows"] > 0
    flights = pyarrow.dataset.dataset(str(airflow.home.flights / "data" / "flights.parquet")).count_rows()
    assert departures(airflow, "audited") == flights == first["rows"] + rest["rows"]
    view = client_of("departures-audited").view()
    assert view.uncommitted == ()
    by = [e.data["by"] for e in client_of("departures-audited").decisions() if e.kind == "approve"]
    assert [who.rpartition("/")[2] for who in by] == ["publish", "publish_the_rest"]


def test_rows_that_fail_the_audit_are_never_seen(airflow: Standalone, client_of: ClientOf) -> None:
    """S7.8."""
    run = DagRun(airflow, "write_audit_publish", "refused")
    run.trigger({"speed": 3, "most_delay": 1})
    states = run_to_end(run)
    assert (states["staged"], states["audit"], states["reject"]) == ("success", "failed", "success"), run.log("reject")
    assert {states[t] for t in ("publish", "drain", "publish_the_rest")} == {"upstream_failed"}
    assert states["reject_the_rest"] == "skipped", run.log("reject_the_rest")
    assert "minutes late, more than 1" in run.log("audit")
    assert run.xcom("reject")["rejected"] == [run.xcom("staged")["checkpoint_id"]]
    until("the job to end", lambda: client_of("departures-refused").view().status.value == "STOPPED", 60.0)
    assert departures(airflow, "refused") == 0


def test_a_bounded_job_runs_to_its_end_under_dag_test(airflow: Standalone, client_of: ClientOf) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import lives\n"
        "run = lives.bounded.test(run_conf={'job_id': 'windy'})\n"
        "print('state', run.state)"
    )
    home = airflow.home
    done = subprocess.run(
        [sys.executable, "-c", program, str(home.dags)],
        env=home.environment(),
        cwd=home.folder,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert "state success" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert client_of("windy").view().status.value == "FINISHED"
    assert_windy_hours(airflow, "windy")
