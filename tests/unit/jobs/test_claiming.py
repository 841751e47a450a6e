"""S7.4: what a restore may claim, judged when it is submitted."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_contract import ScriptedDriver

from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.submission import SubmissionRequest, submit
from tidegate.jobs.records import RestoreFrom, Spec

SAVEPOINT = "flights/savepoints/savepoint-flights-4-g1"


def restored(client: JobClient, restore: RestoreFrom) -> Spec:
    return submit(client, SubmissionRequest(None, None, None, None, None, restore, None, None, "again", "test"))


def test_a_named_snapshot_of_the_job_may_be_claimed_and_the_spec_says_so(
    client: JobClient, driver: ScriptedDriver
) -> None:
    path = driver.checkpoint(4, "savepoint")
    driver.status("FAILED", reason="x")
    spec = restored(client, RestoreFrom("savepoint", path, claim_mode="claim"))
    assert spec.restore is not None and (spec.restore.path, spec.restore.claim_mode) == (path, "claim")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"kind": "latest"}, "names no such snapshot"),
        ({"kind": "savepoint", "path": SAVEPOINT, "fork_of": "other"}, "names no such snapshot"),
        ({"kind": "savepoint", "path": "elsewhere/moved"}, "cannot take over snapshot"),
        ({"kind": "checkpoint", "checkpoint_id": 4, "claim_mode": "own"}, "claim_mode='own' is not one of"),
    ],
)
def test_anything_else_is_refused(client: JobClient, driver: ScriptedDriver, wanted: dict[str, Any], says: str) -> None:
    """A snapshot that was moved, or that another job took, is the user's: nothing tells who else has it."""
    path = driver.checkpoint(4, "savepoint")
    client.store.create("elsewhere/moved/_metadata", client.store.read(f"{path}/_metadata"))
    driver.status("FAILED", reason="x")
    with pytest.raises(OptionError, match=says):
        restored(client, RestoreFrom(**{"claim_mode": "claim", **wanted}))
