"""What "latest" is after submissions that came to nothing (S9.3)."""

from __future__ import annotations

import pytest
from scripted_contract import ScriptedDriver

from tidegate.coordinator.recovery.restore_point import choose_restore_point
from tidegate.errors import SnapshotError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom, Spec


def refuse(client: JobClient, spec: Spec, code: str, launch: int = 1) -> None:
    """As its driver does."""
    driver = ScriptedDriver(client, spec, launch)
    if code == "slots":
        driver.status("WAITING_FOR_SLOTS")
    driver.generation_log.append("failure", {"message": "refused", "code": code})
    driver.status("FAILED", reason="refused")


@pytest.mark.parametrize("refused", ["option", "pipeline", "snapshot", "slots", "never launched", "cancelled"])
def test_a_fresh_start_that_came_to_nothing_hides_no_latest(client: JobClient, pipeline: str, refused: str) -> None:
    """S9.3: the restore goes on from what had run, in its lineage and with its settings."""
    first = ScriptedDriver(client, client.submit(pipeline=pipeline, options={"parallelism": 2}, arguments={"speed": 1}))
    first.checkpoint(1)
    first.status("STOPPED")
    second = client.submit(pipeline=pipeline, options={"parallelism": 8}, arguments={"speed": 9}, fresh=True)
    if refused == "cancelled":
        client.cancel_dead("anna")
    elif refused != "never launched":
        refuse(client, second, refused)
    view = client.view()
    assert view.latest_recovery_point is not None and view.followed == 1 and view.restored is None
    third = client.submit(restore=RestoreFrom("latest"))
    assert (third.lineage, third.arguments, third.options["parallelism"]) == (first.spec.lineage, {"speed": 1}, 2)
    point = choose_restore_point(client.decisions(), client.specs(), third.number)
    assert point is not None and point.checkpoint_id == 1


def test_a_restore_of_something_older_that_was_refused_hides_no_latest(client: JobClient, pipeline: str) -> None:
    """S9.3: refused more than once, too, as by a retry of its Airflow task."""
    first = ScriptedDriver(client, client.submit(pipeline=pipeline))
    first.checkpoint(1)
    first.checkpoint(2)
    first.status("STOPPED")
    second = client.submit(restore=RestoreFrom("checkpoint", checkpoint_id=1))
    refuse(client, second, "snapshot")
    refuse(client, second, "snapshot", launch=2)
    third = client.submit(restore=RestoreFrom("latest"))
    point = choose_restore_point(client.decisions(), client.specs(), third.number)
    assert point is not None and point.checkpoint_id == 2


def test_a_restore_that_took_rows_back_before_it_was_refused_is_what_the_latest_is_of(
    client: JobClient, pipeline: str
) -> None:
    """S9.3: the state of what it went back past counts rows that are gone."""
    first = ScriptedDriver(client, client.submit(pipeline=pipeline))
    first.checkpoint(1)
    first.checkpoint(2)
    first.status("STOPPED")
    back = RestoreFrom("checkpoint", checkpoint_id=1, on_committed_after="rewind")
    second = ScriptedDriver(client, client.submit(restore=back))
    second.status("WAITING_FOR_SLOTS")
    second.generation_log.append("rewind", {"checkpoint_id": 1})
    second.generation_log.append("failure", {"message": "refused", "code": "pipeline"})
    second.status("FAILED", reason="refused")
    latest = client.view().latest_recovery_point
    assert latest is not None and latest.checkpoint_id == 1
    third = client.submit(restore=RestoreFrom("latest"))
    point = choose_restore_point(client.decisions(), client.specs(), third.number)
    assert point is not None and point.checkpoint_id == 1


@pytest.mark.parametrize("how", ["died", "failed in a slot", "refused after a run"])
def test_a_fresh_start_that_may_have_run_is_what_the_latest_is_of(client: JobClient, pipeline: str, how: str) -> None:
    """S9.3: what was there before is not gone back to unasked."""
    first = ScriptedDriver(client, client.submit(pipeline=pipeline))
    first.checkpoint(1)
    first.status("STOPPED")
    second = ScriptedDriver(client, client.submit(pipeline=pipeline, fresh=True))
    second.status("WAITING_FOR_SLOTS")
    if how != "died":
        second.generation_log.append("failure", {"message": "no such column", "code": ""})
    if how == "refused after a run":
        second.generation_log.append("failure", {"message": "the source is gone", "code": "pipeline"})
    if how != "died":
        second.status("FAILED", reason="no such column")
    with pytest.raises(SnapshotError, match="there is no snapshot to restore"):
        client.submit(restore=RestoreFrom("latest"))


def test_the_first_submission_of_all_is_gone_on_from_though_it_was_refused(client: JobClient, pipeline: str) -> None:
    """S9.3: a snapshot from outside that it named is what there is."""
    path = ScriptedDriver(client, client.submit(pipeline=pipeline)).checkpoint(1)
    other = JobClient(client.store, "copy", now=client.now)
    refuse(other, other.submit(pipeline=pipeline, restore=RestoreFrom("savepoint", path)), "snapshot")
    again = other.submit(restore=RestoreFrom("latest", allow_drained=True))
    point = choose_restore_point(other.decisions(), other.specs(), again.number)
    assert point is not None and point.location == path


def test_the_latest_of_a_lineage_that_was_not_there_at_the_submission_is_refused(
    client: JobClient, pipeline: str
) -> None:
    """S9.3, S7.4: a fresh start that had not run then has run since; its staged data would not be committed."""
    first = ScriptedDriver(client, client.submit(pipeline=pipeline))
    first.checkpoint(1)
    first.status("STOPPED")
    second = client.submit(pipeline=pipeline, fresh=True)
    third = client.submit(restore=RestoreFrom("latest"))
    ScriptedDriver(client, second).checkpoint(2)
    with pytest.raises(SnapshotError, match="belongs to another lineage than at the time of the submission"):
        choose_restore_point(client.decisions(), client.specs(), third.number)
