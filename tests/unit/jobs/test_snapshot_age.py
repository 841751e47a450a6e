"""How old a snapshot may be that a submission starts from: judged by its recorded completion, before anything is
submitted."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scripted_contract import NOW, FakeTime, ScriptedDriver

from tidegate.errors import SnapshotError
from tidegate.jobs.client import submission
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.snapshot_lookup import refuse_older_than

HOUR = timedelta(hours=1)
AT = datetime(2026, 11, 21, 12, tzinfo=UTC)


def request(restore: RestoreFrom, **changes: Any) -> submission.SubmissionRequest:
    """A restore that may be an hour old."""
    plain = submission.SubmissionRequest(None, None, None, None, None, restore, None, None, "again", "test", HOUR)
    return replace(plain, **changes)


@pytest.mark.parametrize(("age", "refused"), [(HOUR, False), (HOUR + timedelta(milliseconds=1), True)], ids=str)
def test_the_age_is_counted_from_the_completion(age: timedelta, refused: bool) -> None:
    completed_at = (AT - age).isoformat()
    if not refused:
        refuse_older_than("checkpoint 3", completed_at, HOUR, AT, where="job j")
        return
    with pytest.raises(SnapshotError, match="checkpoint 3 is 1 h old, but must be at most 1 h old"):
        refuse_older_than("checkpoint 3", completed_at, HOUR, AT, where="job j")


@pytest.mark.parametrize("told", [None, "", "yesterday"])
def test_a_snapshot_of_unknown_age_is_refused(told: str | None) -> None:
    with pytest.raises(SnapshotError, match="the age of .* is unknown"):
        refuse_older_than("snapshot s3://b/sp", told, HOUR, AT, where="job j")


@pytest.fixture
def stopped(client: JobClient, driver: ScriptedDriver) -> JobClient:
    """A job with checkpoint 1 and savepoint 2, both completed at NOW, that has stopped."""
    driver.checkpoint(1)
    driver.checkpoint(2, "savepoint", "flights/savepoints/sp-1")
    driver.status("STOPPED")
    return client


@pytest.mark.parametrize(
    ("restore", "name"),
    [
        (RestoreFrom("latest"), "checkpoint 1"),
        (RestoreFrom("checkpoint", checkpoint_id=1), "checkpoint 1"),
        (RestoreFrom("savepoint", "flights/savepoints/sp-1"), "savepoint 2"),
    ],
    ids=["latest", "id", "path"],
)
def test_an_old_snapshot_is_refused_and_nothing_is_submitted(
    stopped: JobClient, clock: FakeTime, restore: RestoreFrom, name: str
) -> None:
    """S9.3: whichever way it is named."""
    clock.seconds += 3 * 3600
    with pytest.raises(SnapshotError, match=f"{name} is 3 h .*old") as caught:
        submission.submit(stopped, request(restore))
    assert "Nothing was submitted" in str(caught.value) and "greater age" in str(caught.value)
    assert len(stopped.specs()) == 1
    assert submission.submit(stopped, request(restore, max_snapshot_age=4 * HOUR)).number == 2


def test_a_snapshot_from_outside_tells_its_age_itself(stopped: JobClient, clock: FakeTime) -> None:
    clock.seconds += 3 * 3600
    body = {"job_id": "other", "lineage": "l", "created_at": NOW}
    stopped.store.create("elsewhere/_metadata", json.dumps({"record": "snapshot", "body": body}).encode())
    with pytest.raises(SnapshotError, match="snapshot elsewhere is"):
        submission.submit(stopped, request(RestoreFrom("savepoint", "elsewhere")))


def test_a_submission_that_was_made_is_found_however_old_its_snapshot_is_by_now(
    stopped: JobClient, clock: FakeTime
) -> None:
    """A retry goes on with what it submitted."""
    made = submission.submit(stopped, request(RestoreFrom("latest")))
    clock.seconds += 3 * 3600
    assert submission.submit(stopped, request(RestoreFrom("latest"))) == made
