"""A start under the id of a job that is over: refused unless the submitter says that it is meant."""

from __future__ import annotations

import pytest
from scripted_contract import ScriptedDriver

from tidegate.errors import JobExistsError, PipelineError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom, Spec


@pytest.mark.parametrize("end", ["FINISHED", "FAILED", "CANCELED", "STOPPED"])
def test_a_start_under_the_id_of_a_job_that_is_over_is_refused(
    client: JobClient, driver: ScriptedDriver, pipeline: str, end: str
) -> None:
    driver.checkpoint(1)
    driver.status(end)
    with pytest.raises(JobExistsError) as caught:
        client.submit(pipeline=pipeline)
    assert f"job 'flights' exists, and is {end}" in str(caught.value)
    for choice in ("tidegate restore", "another job id", "--fresh (fresh=True)", "if_exists"):
        assert choice in str(caught.value)
    assert len(client.specs()) == 1


def test_a_fresh_start_that_is_meant_begins_a_lineage(client: JobClient, driver: ScriptedDriver, pipeline: str) -> None:
    driver.status("FINISHED")
    again = client.submit(pipeline=pipeline, fresh=True)
    assert again.number == 2 and again.restore is None and again.lineage != client.spec(1).lineage


def test_one_submission_id_stays_one_submission_when_the_job_is_over(client: JobClient, pipeline: str) -> None:
    first = client.submit(pipeline=pipeline, submission_id="run-1")
    ScriptedDriver(client, first).status("FINISHED")
    assert client.submit(pipeline=pipeline, submission_id="run-1") == first
    assert client.submit(pipeline=pipeline, submission_id="run-1", fresh=True) == first


def test_a_restore_needs_no_permission(client: JobClient, driver: ScriptedDriver) -> None:
    driver.checkpoint(1)
    driver.status("FINISHED")
    assert client.submit(restore=RestoreFrom("latest")).number == 2


def test_a_job_whose_every_submission_was_refused_starts_again(client: JobClient, spec: Spec, pipeline: str) -> None:
    """A mistake that a driver found before it waited for slots left neither state nor output."""
    driver = ScriptedDriver(client, spec)
    driver.generation_log.append("failure", {"message": "there is no such file", "code": PipelineError.code})
    driver.status("FAILED")
    second = client.submit(pipeline=pipeline)
    assert second.number == 2
    ran = ScriptedDriver(client, second)
    ran.status("RUNNING")
    ran.generation_log.append("failure", {"message": "boom", "code": ""})
    ran.status("FAILED")
    with pytest.raises(JobExistsError, match="job 'flights' exists, and is FAILED"):
        client.submit(pipeline=pipeline)


def test_a_job_that_was_refused_after_one_that_ran_is_refused(
    client: JobClient, driver: ScriptedDriver, pipeline: str
) -> None:
    driver.status("RUNNING")
    driver.status("FINISHED")
    refused = ScriptedDriver(client, client.submit(pipeline=pipeline, fresh=True))
    refused.generation_log.append("failure", {"message": "there is no such file", "code": PipelineError.code})
    refused.status("FAILED")
    with pytest.raises(JobExistsError, match="job 'flights' exists, and is FINISHED"):
        client.submit(pipeline=pipeline)
