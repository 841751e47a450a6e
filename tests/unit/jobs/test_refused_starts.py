"""S9.3: a start that was refused before anything ran does not change the job: it is as before, and can be restored."""

from __future__ import annotations

import pytest
from scripted_contract import ScriptedDriver

from tidegate.errors import SnapshotError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.status import JobStatus
from tidegate.jobs.status_text import refusal_text

WHY = "output was committed after the snapshot"


def stopped(driver: ScriptedDriver) -> str:
    """End the job with a savepoint; its path."""
    path = driver.checkpoint(1, "stop-savepoint")
    stop = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 1, "path": path}
    driver.status("STOPPED", stop=stop)
    return path


def refused_restore(client: JobClient) -> Spec:
    """A restore whose driver refuses it before it waits for slots."""
    spec = client.submit(restore=RestoreFrom("latest"))
    refused = ScriptedDriver(client, spec)
    refused.generation_log.append("failure", {"message": WHY, "code": SnapshotError.code})
    refused.status("FAILED", reason=WHY)
    return spec


def test_a_refused_restore_leaves_the_job_stopped(client: JobClient, driver: ScriptedDriver) -> None:
    """S9.3."""
    driver.beat(sources={"flights": {"boundedness": "bounded", "records": 7}})
    path = stopped(driver)
    before = client.view()
    spec = refused_restore(client)
    view = client.view()
    assert (view.status, view.spec_number) == (JobStatus.FAILED, 2), "for those who wait for the submission"
    assert view.failure is not None and view.failure.message == WHY
    settled = view.settled
    assert (settled.status, settled.spec_number, settled.stop) == (before.status, 1, before.stop)
    assert settled.failure is None and settled.sources == before.sources and settled.restored_from is None
    assert settled.checkpoints == view.checkpoints == before.checkpoints
    assert refusal_text(view) == f"submission {spec.number} was refused, and changed nothing: {WHY}"
    assert refusal_text(settled) == refusal_text(before) == ""
    point = client.view().latest_recovery_point
    assert point is not None and point.path == path
    assert client.submit(restore=RestoreFrom("latest")).number == 3
    assert client.view().settled.status is JobStatus.CREATED, "the new submission may run"


def test_a_second_refusal_and_a_cancelled_start_change_nothing_either(
    client: JobClient, driver: ScriptedDriver
) -> None:
    """S9.3."""
    stopped(driver)
    refused_restore(client)
    refused_restore(client)
    assert client.view().settled.status is JobStatus.STOPPED
    assert client.cancel_dead().settled.status is JobStatus.STOPPED, "nothing to cancel"
    client.submit(restore=RestoreFrom("latest"))
    client.cancel_dead()
    view = client.view()
    assert (view.status, view.settled.status, view.settled.spec_number) == ("CANCELED", "STOPPED", 1)
    assert "was cancelled before it ran" in refusal_text(view)


def test_a_failure_of_a_job_that_ran_is_its_state(client: JobClient, driver: ScriptedDriver) -> None:
    """S9.3: a slot may have started, so that something may have changed."""
    stopped(driver)
    second = ScriptedDriver(client, client.submit(restore=RestoreFrom("latest")))
    second.status("WAITING_FOR_SLOTS")
    second.status("RUNNING")
    second.generation_log.append("failure", {"message": WHY, "code": SnapshotError.code})
    second.status("FAILED", reason=WHY)
    view = client.view()
    assert view.settled is view and view.status is JobStatus.FAILED and refusal_text(view) == ""


@pytest.mark.parametrize("status", ["RUNNING", "RESTARTING"])
def test_a_job_whose_driver_died_has_no_end_to_return_to(
    client: JobClient, driver: ScriptedDriver, status: str
) -> None:
    """S9.3: what its driver recorded last is not its state."""
    driver.checkpoint(1)
    driver.status(status)
    refused_restore(client)
    view = client.view()
    assert view.settled is view and view.status is JobStatus.FAILED


def test_a_job_that_never_ran_failed(client: JobClient, spec: Spec) -> None:
    refused = ScriptedDriver(client, spec)
    refused.generation_log.append("failure", {"message": WHY, "code": "pipeline"})
    refused.status("FAILED", reason=WHY)
    assert client.view().settled.status is JobStatus.FAILED
