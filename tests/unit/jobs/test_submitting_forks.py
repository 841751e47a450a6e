"""Submitting a fork: of another job's snapshot, under an id and in a lineage of its own (S7.4)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_contract import ScriptedDriver

from tidegate.errors import JobExistsError, JobNotFoundError, OptionError, SnapshotError
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.client.fork import fork
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.submission import SubmissionRequest
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom, Spec

LATEST = RestoreFrom("latest")


@pytest.fixture
def beside(root: str) -> JobClient:
    """The fork's client."""
    return JobClient(root, "backfill")


def request(restore: RestoreFrom = LATEST, **changes: Any) -> SubmissionRequest:
    plain = SubmissionRequest(None, {"out": "elsewhere"}, None, None, None, restore, None, None, "fork-1", "test")
    return replace(plain, **changes)


def made(beside: JobClient, client: JobClient, restore: RestoreFrom = LATEST, **changes: Any) -> Spec:
    return fork(beside, client, request(restore, **changes))


def test_what_is_not_given_is_the_originals_and_arguments_are_laid_over(
    beside: JobClient, client: JobClient, driver: ScriptedDriver, tmp_path: Path
) -> None:
    path = driver.checkpoint(1)
    spec = made(beside, client)
    original = driver.spec
    assert (spec.pipeline, spec.artifact, spec.options) == (original.pipeline, original.artifact, original.options)
    assert spec.arguments == {"speed": 1, "out": "elsewhere"}
    assert spec.restore == RestoreFrom("savepoint", path, fork_of="flights")
    assert spec.lineage != original.lineage
    unpack_artifact(beside.store, beside.layout, spec.artifact, str(tmp_path / "code"))
    assert (tmp_path / "code" / "flights.py").exists(), "the code is pinned for the fork, too"
    assert made(beside, client, options=JobOptions(parallelism=7), submission_id="other", pipeline=None)


@pytest.mark.parametrize(
    "named",
    [RestoreFrom("checkpoint", checkpoint_id=1), RestoreFrom("savepoint", "flights/savepoints/sp")],
    ids=["id", "path"],
)
def test_any_snapshot_of_the_original_may_be_named(
    beside: JobClient, client: JobClient, driver: ScriptedDriver, named: RestoreFrom
) -> None:
    first = driver.checkpoint(1)
    saved = driver.checkpoint(2, "savepoint", "flights/savepoints/sp")
    spec = made(beside, client, replace(named, allow_drained=True))
    wanted = first if named.kind == "checkpoint" else saved
    assert spec.restore == RestoreFrom("savepoint", wanted, allow_drained=True, fork_of="flights")


def test_submitting_a_fork_twice_is_submitting_it_once_though_its_snapshot_is_gone(
    beside: JobClient, client: JobClient, driver: ScriptedDriver
) -> None:
    path = driver.checkpoint(1)
    first = made(beside, client)
    client.store.delete_folder(path)
    assert made(beside, client) == first
    with pytest.raises(SnapshotError, match="not a complete snapshot"):
        made(beside, client, submission_id="fork-2")


def test_a_second_fork_under_the_id_of_a_fork_that_is_over_needs_to_be_fresh(
    beside: JobClient, client: JobClient, driver: ScriptedDriver
) -> None:
    """S9.3: it forgets the state of the first, so that one has to be over, and the second has to say so."""
    driver.checkpoint(1)
    first = made(beside, client)
    own = ScriptedDriver(beside, first)
    own.status("RUNNING")
    with pytest.raises(JobExistsError, match="when its driver died"):
        made(JobClient(client.root, "backfill"), client, submission_id="fork-2", fresh=True)
    own.checkpoint(1)
    own.status("FINISHED")
    with pytest.raises(JobExistsError, match="a fork does not use the state of the job") as refusal:
        made(beside, client, submission_id="fork-2")
    for choice in ("is FINISHED", "tidegate restore", "another job id", "--fresh (fresh=True)", "if_exists"):
        assert choice in str(refusal.value)
    assert made(beside, client) == first, "the same submission is no second one"
    second = made(beside, client, submission_id="fork-2", fresh=True)
    assert second.lineage not in (first.lineage, driver.spec.lineage)


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "CANCELED"])
def test_a_fork_under_the_id_of_a_job_that_was_started_is_refused(
    beside: JobClient, client: JobClient, driver: ScriptedDriver, pipeline: str, status: str
) -> None:
    """S9.3."""
    driver.checkpoint(1)
    own = ScriptedDriver(beside, beside.submit(pipeline=pipeline))
    own.status("RUNNING")
    own.status(status)
    with pytest.raises(JobExistsError, match=f"exists, and is {status}"):
        made(beside, client)
    assert len(beside.specs()) == 1


def test_a_fork_that_never_had_a_driver_may_be_forked_again(
    beside: JobClient, client: JobClient, driver: ScriptedDriver
) -> None:
    """It has no state and no output."""
    driver.checkpoint(1)
    made(beside, client)
    assert made(beside, client, submission_id="fork-2").number == 2


def test_a_restore_of_a_forks_own_snapshot_stays_a_fork(
    beside: JobClient, client: JobClient, driver: ScriptedDriver
) -> None:
    """Else it could be restored with the original's sinks."""
    driver.checkpoint(1)
    own = ScriptedDriver(beside, made(beside, client))
    own.checkpoint(1)
    own.status("FAILED")
    again = beside.submit(restore=LATEST)
    assert again.restore == RestoreFrom("latest", fork_of="flights")
    assert again.lineage == own.spec.lineage


def test_a_restore_of_an_earlier_forks_snapshot_stays_a_fork_of_what_that_was(
    beside: JobClient, client: JobClient, driver: ScriptedDriver, pipeline: str
) -> None:
    """S7.4: also when the id has been used for something else since."""
    driver.checkpoint(1)
    own = ScriptedDriver(beside, made(beside, client))
    own.checkpoint(1)
    own.status("FINISHED")
    ScriptedDriver(beside, beside.submit(pipeline=pipeline, fresh=True)).status("FINISHED")
    again = beside.submit(restore=RestoreFrom("checkpoint", checkpoint_id=1))
    assert again.lineage == own.spec.lineage
    assert again.restore is not None and again.restore.fork_of == "flights"


def test_what_would_do_as_its_original_does_is_refused(
    beside: JobClient, client: JobClient, driver: ScriptedDriver
) -> None:
    driver.checkpoint(1)
    with pytest.raises(OptionError, match="its own job id"):
        made(client, client)
    with pytest.raises(OptionError, match="same code and arguments"):
        made(beside, client, arguments={})
    assert beside.specs() == ()


def test_another_jobs_snapshot_is_refused(
    beside: JobClient, client: JobClient, driver: ScriptedDriver, pipeline: str
) -> None:
    """S7.4: the driver would look for the live sinks in the wrong job."""
    driver.checkpoint(1)
    third = JobClient(client.root, "third")
    path = ScriptedDriver(third, third.submit(pipeline=pipeline)).checkpoint(1)
    with pytest.raises(SnapshotError, match=f"{path} is not a snapshot of job flights"):
        made(beside, client, RestoreFrom("savepoint", path))
    assert beside.specs() == ()
    assert made(beside, third, RestoreFrom("savepoint", path)).restore is not None


def test_there_must_be_something_to_begin_with(beside: JobClient, client: JobClient, driver: ScriptedDriver) -> None:
    with pytest.raises(SnapshotError, match="no snapshot to restore"):
        made(beside, client)
    with pytest.raises(JobNotFoundError):
        made(beside, JobClient(client.root, "nobody"))
    assert beside.specs() == ()


@pytest.mark.parametrize("status", ["running", "finished"])
@pytest.mark.parametrize("way", ["fork", "restore"])
def test_a_checkpoint_that_reads_rows_of_its_job_is_no_start_for_another(
    beside: JobClient, client: JobClient, driver: ScriptedDriver, pipeline: str, way: str, status: str
) -> None:
    """S4.2, S7.4: they go with the checkpoints of that job, its savepoints keep them."""
    paths = [driver.checkpoint(1, "savepoint", "flights/savepoints/sp"), driver.checkpoint(2)]
    url = f"{client.store.url}/{client.layout.materialised_files(1, 'orders', 1)}/part-0.parquet"
    for path, kind in zip(paths, ["savepoint", "checkpoint"], strict=True):
        document = json.loads(client.store.read(client.layout.metadata(path)))
        document["body"] |= {"kind": kind, "operators": [{"uid": "orders", "status": status}]}
        document["body"]["splits"] = {"orders": [{"split_id": "0", "data": {"url": url}}]}
        client.store.replace(client.layout.metadata(path), json.dumps(document).encode())

    def start(path: str) -> Spec:
        named = RestoreFrom("savepoint", path)
        if way == "fork":
            return made(beside, client, named, submission_id=path)
        return beside.submit(pipeline=pipeline, restore=named)

    if status == "finished":
        assert start(paths[1])
        return
    with pytest.raises(SnapshotError, match="rows of a DataFrame, which job flights may delete.*Take a savepoint"):
        start(paths[1])
    assert start(paths[0])
