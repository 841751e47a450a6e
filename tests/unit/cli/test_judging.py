"""`tidegate approve` and `reject` (S7.8)."""

from __future__ import annotations

import json

import pytest
from cli_caller import Caller, Driver

from tidegate.jobs.client.staged_data import StagedData, StagedFile, staged_files_of

GATE = {"commit": "on_request"}


@pytest.fixture
def driver(tidegate: Caller) -> Driver:
    driver = tidegate.submitted(options=GATE)
    driver.status("RUNNING")
    driver.complete(3, "checkpoint")
    driver.complete(4, "checkpoint")
    return driver


def obedient(driver: Driver) -> None:
    """Carries out verdicts at the next pause, and commits at the one after that."""
    driver.beat()
    approved = [d.data["checkpoint_id"] for d in driver.client.decisions() if d.kind == "approve"]
    if approved:
        driver.generation_log.append("committed", {"checkpoint_id": approved[-1]})
    for command in driver.waiting_commands():
        n = command.arguments["checkpoint_id"] or 4
        if command.verb == "commit":
            driver.generation_log.append("approve", {"checkpoint_id": n, "by": command.issued_by})
            driver.answer(command, True, "approved", "approved", checkpoint_id=n)
        else:
            then = command.arguments["then"]
            driver.generation_log.append("reject", {"checkpoint_id": n, "by": command.issued_by, "then": then})
            driver.answer(command, True, "rejected", f"checkpoint {n} is rejected, then {then}", checkpoint_id=n)


@pytest.mark.parametrize(("flags", "n", "waiting"), [((), 4, []), (("--checkpoint", "3"), 3, [4])])
def test_an_approval_waits_for_the_commit(
    tidegate: Caller, driver: Driver, flags: tuple[str, ...], n: int, waiting: list[int]
) -> None:
    tidegate.script = obedient
    answer = tidegate("approve", "flights", *flags, "--json")
    assert answer.code == 0, answer.err
    told = {name: answer.document[name] for name in ("checkpoint_id", "committed", "waiting")}
    assert told == {"checkpoint_id": n, "committed": True, "waiting": waiting}


def test_an_approval_of_a_job_that_ends_before_its_commit_says_so(tidegate: Caller, driver: Driver) -> None:
    def ending(driver: Driver) -> None:
        driver.beat()
        for command in driver.waiting_commands():
            driver.generation_log.append("approve", {"checkpoint_id": 4, "by": command.issued_by})
            driver.answer(command, True, "approved", "approved", checkpoint_id=4)
            driver.status("FINISHED_COMMIT_PENDING", uncommitted=[4])

    tidegate.script = ending
    answer = tidegate("approve", "flights")
    assert (answer.code, answer.out) == (0, "checkpoint 4: approved; the job ended before its commit\n")


@pytest.mark.parametrize(("flags", "then"), [((), "stop"), (("--then", "replay"), "replay")])
def test_a_rejection_says_what_becomes_of_the_job(
    tidegate: Caller, driver: Driver, flags: tuple[str, ...], then: str
) -> None:
    tidegate.script = obedient
    answer = tidegate("reject", "flights", "--checkpoint", "4", *flags)
    assert (answer.code, answer.out) == (0, f"checkpoint 4 is rejected, then {then}\n"), answer.err


def test_a_rejection_names_its_checkpoint(tidegate: Caller, driver: Driver) -> None:
    answer = tidegate("reject", "flights")
    assert answer.code == 2 and "--checkpoint" in answer.err


def test_a_verdict_on_a_job_that_has_ended_says_how_to_give_it(tidegate: Caller, driver: Driver) -> None:
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[3, 4])
    answer = tidegate("approve", "flights")
    assert answer.code == 7 and "or restore the job with commit=on_request" in answer.err


def test_what_is_staged_is_shown_with_where_to_read_it(tidegate: Caller, driver: Driver) -> None:
    """S7.8."""
    files = [StagedFile("/out/_tidegate/staging/a.parquet.staged", 1200, 4096)]
    held = [
        staged_files_of("out", 4, ".parquet", files),
        StagedData("rows", 4, "table", 7, relation='"tidegate"."rows_1"', where="n = 1", place="db/sales"),
    ]
    operators = [{"subtasks": [{"handle": {"staged": [data.to_json() for data in held]}}]}]
    path = driver.client.layout.metadata(driver.client.layout.checkpoint(4, driver.generation_log.generation))
    driver.client.store.replace(path, json.dumps({"body": {"operators": operators}}).encode())
    answer = tidegate("staged", "flights")
    assert (answer.code, answer.out.splitlines()) == (
        0,
        [
            "checkpoint  sink   rows     size  as",
            "         4  out   1,200  4.0 KiB  parquet",
            "         4  rows      7        -  table",
            "/out/_tidegate/staging/a.parquet.staged",
            'SELECT * FROM "tidegate"."rows_1" WHERE n = 1;  -- db/sales',
        ],
    ), answer.err
    document = tidegate("staged", "flights", "4", "--json").document
    assert [StagedData.from_json(data) for data in document["staged"]] == held


def test_nothing_staged_says_so(tidegate: Caller, driver: Driver) -> None:
    driver.generation_log.append("approve", {"checkpoint_id": 4, "by": "me"})
    answer = tidegate("staged", "flights")
    assert (answer.code, answer.out) == (0, "flights: no staged output waits for approval or rejection\n"), answer.err
    assert tidegate("staged", "flights", "9").code == 10
