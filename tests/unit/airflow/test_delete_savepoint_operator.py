"""Deletion of a savepoint as an Airflow task: no process, no driver, and gone already is a success (S2.3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_job import NOW, Job, ScriptedDriver

from airflow_tidegate.operators.delete_savepoint import TidegateDeleteSavepointOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException

RUN = "r1"


def savepoint(job: Job, driver: ScriptedDriver, number: int, kind: str = "savepoint") -> str:
    path = f"{job.client.layout.savepoints}/sp-{number}"
    data = {"checkpoint_id": number, "kind": kind, "path": path}
    driver.generation_log.append("claim", {**data, "triggered_at": NOW}, RUN)
    body = {"job_id": "j1", "generation": 1, "run_id": RUN, "checkpoint_id": number}
    job.client.store.create(f"{path}/_metadata", json.dumps({"body": body}).encode())
    driver.generation_log.append("complete", {**data, "metrics": {}, "parent": None}, RUN)
    return path


def delete(savepoint: Any, **changes: Any) -> TidegateDeleteSavepointOperator:
    return TidegateDeleteSavepointOperator(task_id="d", job_id="j1", savepoint=savepoint, **changes)


def test_it_deletes_by_number_path_or_xcom_and_again_changes_nothing(job: Job, driver: ScriptedDriver) -> None:
    paths = [savepoint(job, driver, number) for number in (1, 2, 3)]
    driver.checkpoint(4)
    for given, path in zip(("1", paths[1], {"path": paths[2], "checkpoint_id": 3}), paths, strict=True):
        told = delete(given, dry_run="true").execute(job.context("d"))
        assert (told["deleted"], told["existed"], told["dry_run"], told["path"]) == (False, True, True, path)
        done = delete(given).execute(job.context("d"))
        assert (done["job_id"], done["deleted"], done["left"], done["dry_run"]) == ("j1", True, [], False)
        assert json.loads(json.dumps(done)) == done
        again = delete(given).execute(job.context("d"))
        assert (again["deleted"], again["existed"]) == (False, False)


def test_what_a_job_needs_is_refused(job: Job, driver: ScriptedDriver) -> None:
    """S9.3."""
    path = savepoint(job, driver, 1, "stop-savepoint")
    driver.status("STOPPED", stop={"outcome": "committed", "mode": "suspend", "checkpoint_id": 1, "path": path})
    with pytest.raises(AirflowException, match="latest recovery point"):
        delete(1).execute(job.context("d"))
    assert delete(1, also_latest="{{ true }}").also_latest == "{{ true }}", "templated"
    assert delete(1, also_latest=True).execute(job.context("d"))["deleted"]


@pytest.mark.parametrize(("given", "says"), [("latest", "names no savepoint"), ("", "is missing"), (2, "not a savep")])
def test_what_a_retry_cannot_fix_fails_at_once(job: Job, driver: ScriptedDriver, given: Any, says: str) -> None:
    driver.checkpoint(2)
    with pytest.raises(AirflowFailException, match=says):
        delete(given).execute(job.context("d"))
