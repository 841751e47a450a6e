"""Forking another job's snapshot as an Airflow task: one fork, however often Airflow tries."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.operators.fork import TidegateForkJobOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom


@pytest.fixture
def original(job: Job) -> ScriptedDriver:
    """A running job with one checkpoint; every launch of the fork comes to its end at once."""
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    driver.checkpoint(1)
    job.on_launch = lambda spec, attempt: ScriptedDriver(beside(job), spec, attempt).status("FINISHED")
    return driver


def beside(job: Job) -> JobClient:
    return JobClient(str(job.root), "backfill")


def fork(**changes: Any) -> TidegateForkJobOperator:
    plain: dict[str, Any] = {"task_id": "f", "job_id": "backfill", "from_job": "j1", "arguments": {"out": "y"}}
    return TidegateForkJobOperator(**{**plain, **changes})


def test_a_fork_runs_to_its_end_and_tells_where_it_began(job: Job, original: ScriptedDriver) -> None:
    """S7.4."""
    result = fork(allow_drained="True").execute(job.context("f"))
    path = job.client.view().completed[0].path
    told = {"job_id": "backfill", "spec": 1, "generation": 1, "status": "FINISHED", "fork_of": "j1", "path": path}
    assert result == told
    [spec] = beside(job).specs()
    assert spec.restore == RestoreFrom("savepoint", path, allow_drained=True, fork_of="j1")
    assert (spec.arguments, spec.owner_dag) == ({"out": "y"}, "d")
    assert len(job.client.specs()) == 1


def test_a_retry_finds_its_fork_and_a_fresh_clear_forks_anew(job: Job, original: ScriptedDriver) -> None:
    first = fork().execute(job.context("f"))
    original.checkpoint(2)
    assert fork().execute(job.context("f")) == first
    assert job.launches == [1]
    with pytest.raises(AirflowException, match="exists, and is FINISHED.*fresh=True"):
        fork().execute(job.context("f", clear_number=1))
    assert job.launches == [1]
    cleared = fork(fresh=True).execute(job.context("f", clear_number=1))
    assert (cleared["spec"], cleared["path"]) == (2, job.client.view().completed[1].path)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"arguments": None}, AirflowFailException, "same code and arguments"),
        ({"job_id": "j1"}, AirflowFailException, "its own job id"),
        ({"from_": 7}, AirflowException, "no checkpoint 7"),
        ({"from_job": "nobody"}, AirflowException, "no job with the id"),
        ({"allow_drained": "x"}, AirflowFailException, "allow_drained"),
    ],
    ids=str,
)
def test_what_cannot_be_forked_leaves_nothing_behind(
    job: Job, original: ScriptedDriver, changes: dict[str, Any], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        fork(**changes).execute(job.context("f"))
    assert beside(job).specs() == () and job.launches == []


def test_a_snapshot_that_is_too_old_is_refused_and_a_retry_of_a_fork_is_not(job: Job, original: ScriptedDriver) -> None:
    with pytest.raises(AirflowException, match="old, but must be at most"):
        fork(max_snapshot_age="1 ms").execute(job.context("f"))
    assert beside(job).specs() == () and job.launches == []
    first = fork(max_snapshot_age="36500 d").execute(job.context("f"))
    assert fork(max_snapshot_age="1 ms").execute(job.context("f")) == first


def test_what_the_driver_refuses_is_told(job: Job, original: ScriptedDriver) -> None:
    """The provider cannot know the pipeline; its driver tells before anything runs, and no retry mends it."""

    def refuses(spec: int, attempt: int) -> None:
        driver = ScriptedDriver(beside(job), spec, attempt)
        text = "a fork needs bounded sources, but these sources are unbounded: 'flights'"
        driver.generation_log.append("failure", {"message": text, "code": "pipeline"})
        driver.status("FAILED")

    job.on_launch = refuses
    with pytest.raises(AirflowFailException, match="these sources are unbounded: 'flights'"):
        fork().execute(job.context("f"))
