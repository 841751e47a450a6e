"""CheckRestore and CollectGarbage in a real Airflow: what they say, and that a clear asks anew and harms nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import ClientOf, clear, ran, run_to_end

from tidegate.jobs.client.job_client import JobClient

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stopped(airflow: Standalone, client_of: ClientOf) -> JobClient:
    """A job that was started and suspended."""
    client = client_of("state-verbs")
    for verb in ("start", "checkpoint", "suspend"):
        ran(airflow, f"worker_{verb}", client.job_id, {"job_id": client.job_id})
    assert client.view().status.value == "STOPPED"
    return client


def ask(airflow: Standalone, run_id: str, conf: dict[str, Any]) -> tuple[str, Any]:
    """State and XCom (the log of the last try, of a failed one) of a run of CheckRestore."""
    run = DagRun(airflow, "worker_check_restore", run_id)
    run.trigger(conf)
    state = run_to_end(run)["check_restore"]
    return state, run.xcom("check_restore") if state == "success" else run.log("check_restore")


def test_a_preflight_says_whether_the_pipeline_fits_the_savepoint_of_its_job(
    airflow: Standalone, stopped: JobClient, tmp_path: Path
) -> None:
    """S5.5."""
    savepoint = next(c for c in reversed(stopped.view().completed) if c.kind == "stop-savepoint")
    conf = {"job_id": stopped.job_id, "path": savepoint.path}
    state, found = ask(airflow, "fits", conf)
    assert state == "success", found
    assert (found["fits"], found["spec"]) == (True, 1)
    assert found["path"].endswith(savepoint.path)

    pinned = json.loads(stopped.store.read(stopped.layout.graph(1)))
    text = json.dumps(pinned).replace('"numbers"', '"figures"')
    assert text != json.dumps(pinned)
    other = tmp_path / "graph.json"
    other.write_text(text, encoding="utf-8")
    state, log = ask(airflow, "misfits", {**conf, "graph": str(other)})
    assert state == "failed"
    assert "the pipeline cannot be restored from snapshot" in log and "numbers" in log


def test_garbage_goes_once_and_what_is_needed_stays(airflow: Standalone, stopped: JobClient) -> None:
    """S2.3."""
    root = Path(airflow.home.job_root)
    orphan = root / stopped.layout.artifact("0" * 64) / "pipeline.py"  # code that no submission names
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"five!")
    os.utime(orphan, (0, 0))
    job = root / stopped.job_id
    before = {path for path in job.rglob("*") if path.is_file()}
    run = ran(airflow, "worker_collect_garbage", stopped.job_id, {"job_id": stopped.job_id})
    assert (run.xcom("collect_garbage")["collected"], run.xcom("collect_garbage")["freed_bytes"]) == (1, 5)
    left = {path for path in job.rglob("*") if path.is_file()}
    assert before - left == {orphan}
    clear(airflow, run, ["collect_garbage"])
    assert run_to_end(run) == {"collect_garbage": "success"}
    assert run.xcom("collect_garbage")["collected"] == 0
    ran(airflow, "worker_restore", stopped.job_id, {"job_id": stopped.job_id})
    assert stopped.view().status.value == "RUNNING"
    ran(airflow, "worker_cancel", stopped.job_id, {"job_id": stopped.job_id})
