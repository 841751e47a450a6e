"""`tidegate delete-savepoint` (S2.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_caller import Caller, Driver

RUN = "r1"


@pytest.fixture
def driver(tidegate: Caller, tmp_path: Path) -> Driver:
    """A running job with savepoint 1 and checkpoint 2."""
    tidegate.root = str(tmp_path / "jobs")
    driver = tidegate.submitted()
    driver.status("RUNNING")
    path = f"{driver.client.layout.savepoints}/sp"
    data: dict[str, Any] = {"checkpoint_id": 1, "kind": "savepoint", "path": path}
    driver.generation_log.append("claim", {**data, "triggered_at": "2026-11-21T09:25:00Z"}, RUN)
    body = {"job_id": "flights", "generation": 1, "run_id": RUN, "checkpoint_id": 1}
    driver.client.store.create(f"{path}/_metadata", json.dumps({"body": body}).encode())
    driver.client.store.create(f"{path}/a-0-g1-{RUN}-1.state", b"12345")
    driver.generation_log.append("complete", {**data, "metrics": {}, "parent": None}, RUN)
    driver.complete(2, "checkpoint")
    return driver


def test_it_says_what_it_deletes_and_what_is_gone_already(tidegate: Caller, driver: Driver) -> None:
    folder = Path(tidegate.root, "flights/savepoints/sp")
    told = tidegate("delete-savepoint", "flights", "1", "--dry-run")
    assert told.code == 0 and "savepoint 1 (flights/savepoints/sp) would be deleted" in told.out and folder.exists()
    done = tidegate("delete-savepoint", "flights", "1", "--json")
    assert done.document == {
        "job_id": "flights",
        "dry_run": False,
        "checkpoint_id": 1,
        "path": "flights/savepoints/sp",
        "deleted": True,
        "existed": True,
        "size_bytes": done.document["size_bytes"],
        "left": [],
    }
    assert not folder.exists() and done.document["size_bytes"] > 5
    again = tidegate("delete-savepoint", "flights", str(folder))
    assert again.code == 0 and "is gone already" in again.out
    assert tidegate("checkpoints", "flights").out.splitlines()[1].split()[:3] == ["1", "savepoint", "deleted"]


def test_files_of_others_are_named(tidegate: Caller, driver: Driver) -> None:
    driver.client.store.create("flights/savepoints/sp/notes.txt", b"x")
    done = tidegate("delete-savepoint", "flights", "flights/savepoints/sp")
    assert done.code == 0 and "files of others stay in flights/savepoints/sp" in done.err and "notes.txt" in done.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("flights", "2"), 2, "is not a savepoint"),
        (("flights", "7"), 10, "the job has no savepoint 7"),
        (("nothing", "1"), 5, "no job with the id"),
        (("1",), 2, "no job is named"),
    ],
)
def test_mistakes_have_the_codes_of_their_errors(
    tidegate: Caller, driver: Driver, words: tuple[str, ...], code: int, says: str
) -> None:
    answer = tidegate("delete-savepoint", *words)
    assert answer.code == code and says in answer.err


def test_the_savepoint_of_a_stopped_job_needs_a_flag(tidegate: Caller, driver: Driver) -> None:
    """S9.3."""
    data = {"checkpoint_id": 3, "kind": "stop-savepoint", "path": "flights/savepoints/end"}
    driver.complete(3, "stop-savepoint", data["path"])
    driver.status("STOPPED", stop={"outcome": "committed", "mode": "suspend", **data})
    refused = tidegate("delete-savepoint", "flights", "3")
    assert refused.code == 10, "its metadata does not show who wrote it"
    body = {"job_id": "flights", "generation": 1, "run_id": "", "checkpoint_id": 3}
    driver.client.store.replace("flights/savepoints/end/_metadata", json.dumps({"body": body}).encode())
    refused = tidegate("delete-savepoint", "flights", "3")
    assert refused.code == 7 and "--also-latest" in refused.err
    assert tidegate("delete-savepoint", "flights", "3", "--also-latest").code == 0
