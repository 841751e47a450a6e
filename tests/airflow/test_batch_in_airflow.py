"""Jobs in batch, run by a real Airflow (S8.1)."""

from __future__ import annotations

import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import ClientOf, assert_windy_hours, effects, ran, run_to_end

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(600)]


def test_a_task_waits_for_a_batch_job_and_tells_its_end(airflow: Standalone, client_of: ClientOf) -> None:
    """The same operator as in streaming, in the triggerer all the while."""
    run = ran(airflow, "bounded_in_batch", "in-batch", {"job_id": "windy-in-batch"})
    assert run.xcom("run")["status"] == "FINISHED"
    client = client_of("windy-in-batch")
    view = client.view()
    assert [(c.kind, c.status, c.committed) for c in view.checkpoints] == [("final", "completed", True)]
    assert effects(client) == {"submissions": 1, "launches": 1, "decided fence": 1}
    assert_windy_hours(airflow, "windy-in-batch")


def test_a_source_without_an_end_fails_the_task_by_its_name(airflow: Standalone, client_of: ClientOf) -> None:
    run = DagRun(airflow, "unbounded_in_batch", "without-end")
    run.trigger({"job_id": "without-end"})
    assert run_to_end(run) == {"run": "failed"}
    log = run.log("run")
    assert "batch mode reads only bounded sources" in log and "source 'numbers'" in log
    assert client_of("without-end").view().status.value == "FAILED"
