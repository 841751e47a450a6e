"""`tidegate checkpoint`, `savepoint`, `stop` and `cancel`."""

from __future__ import annotations

import os

import pytest
from cli_caller import Caller, Driver


def obedient(driver: Driver) -> None:
    """Carries out every command at the next pause."""
    driver.beat()
    for number, command in enumerate(driver.waiting_commands(), start=8):
        if command.verb == "cancel":
            driver.status("CANCELED", reason=f"by {command.issued_by}")
            driver.answer(command, True, "canceled", "the job is cancelled")
            continue
        kind = "stop-savepoint" if command.verb == "stop" else command.verb
        folder = driver.complete(number, kind, path=command.arguments.get("path"))
        data = {"checkpoint_id": number, "path": folder}
        if command.verb == "stop":
            data |= {"outcome": "committed", "mode": command.arguments["mode"]}
            driver.status("STOPPED", stop=data)
        driver.answer(command, True, "done", "done", **data)


@pytest.fixture
def driver(tidegate: Caller) -> Driver:
    tidegate.script = obedient
    driver = tidegate.submitted()
    driver.status("RUNNING")
    driver.beat()
    return driver


@pytest.mark.parametrize("verb", ["checkpoint", "savepoint"])
def test_a_snapshot_is_named_with_its_path_size_and_duration(tidegate: Caller, driver: Driver, verb: str) -> None:
    answer = tidegate(verb, "flights")
    assert answer.code == 0, answer.err
    assert answer.out == f"{verb} 8: flights/checkpoints/chk-8-g1 (31 ms, 2.0 KiB)\n"


def test_a_savepoint_goes_where_it_is_told_whatever_the_drivers_working_directory(
    tidegate: Caller, driver: Driver
) -> None:
    answer = tidegate("savepoint", "--job-id", "flights", "--path", "s3://bucket/sp", "--json")
    assert answer.document["path"] == "s3://bucket/sp" and answer.document["kind"] == "savepoint"
    obeyed: list[str] = []

    def noting(driver: Driver) -> None:
        for command in driver.waiting_commands():
            obeyed.append(command.arguments["path"])
            driver.answer(command, False, "refused", "no")

    tidegate.script = noting
    tidegate("savepoint", "flights", "--path", "here/sp")
    assert obeyed == [os.path.abspath("here/sp")]


@pytest.mark.parametrize(("flags", "mode"), [([], "suspend"), (["--drain"], "drain")])
def test_stop_tells_its_mode_outcome_and_savepoint(
    tidegate: Caller, driver: Driver, flags: list[str], mode: str
) -> None:
    answer = tidegate("stop", "flights", *flags, "--json")
    assert answer.code == 0, answer.err
    told = {name: answer.document[name] for name in ("status", "outcome", "mode", "path")}
    assert told == {
        "status": "STOPPED",
        "outcome": "committed",
        "mode": mode,
        "path": "flights/checkpoints/chk-8-g1",
    }


def test_only_a_suspended_job_is_said_to_be_restorable_next(tidegate: Caller, driver: Driver) -> None:
    assert "next: tidegate restore flights" in tidegate("stop", "flights").out


def test_a_refusal_is_the_drivers_own_words_and_exit_code_seven(tidegate: Caller, driver: Driver) -> None:
    def refusing(driver: Driver) -> None:
        for command in driver.waiting_commands():
            driver.answer(command, False, "savepoint_failed_job_continues", "the disk is full, the job goes on")

    tidegate.script = refusing
    answer = tidegate("stop", "flights", "--json")
    assert answer.code == 7
    assert "the disk is full, the job goes on [job flights]: savepoint_failed_job_continues" in answer.err
    assert answer.document["error"]["code"] == "refused"


def test_a_timeout_names_the_command_and_undoes_nothing(tidegate: Caller, driver: Driver) -> None:
    tidegate.script = lambda driver: driver.beat()
    answer = tidegate("savepoint", "flights", "--timeout", "5 s")
    (command,) = driver.waiting_commands()
    assert answer.code == 8 and command.command_id in answer.err and "Nothing was undone" in answer.err


def test_stop_waits_as_long_as_the_jobs_stop_timeout(tidegate: Caller) -> None:
    driver = tidegate.submitted(options={"stop_timeout": "20 s"})
    driver.status("RUNNING")
    assert tidegate("stop", "flights").code == 8
    assert 20 <= tidegate.elapsed_s < 21


@pytest.mark.parametrize("verb", ["checkpoint", "savepoint", "stop", "cancel"])
def test_a_job_that_has_ended_takes_no_command(tidegate: Caller, driver: Driver, verb: str) -> None:
    driver.status("FINISHED")
    answer = tidegate(verb, "flights")
    assert answer.code == 7 and "the job is FINISHED" in answer.err
    assert driver.waiting_commands() == []


@pytest.mark.parametrize("verb", ["checkpoint", "savepoint", "stop", "cancel", "status", "checkpoints", "logs"])
def test_a_job_that_is_not_there_is_exit_code_five(tidegate: Caller, verb: str) -> None:
    answer = tidegate(verb, "flihgts")
    assert answer.code == 5 and "there is no job of this id [job flihgts" in answer.err


def test_a_driver_that_falls_silent_ends_the_wait(tidegate: Caller, driver: Driver) -> None:
    tidegate.script = lambda driver: None
    answer = tidegate("checkpoint", "flights")
    assert answer.code == 6 and "no heartbeat for 30 s" in answer.err


def test_cancel_asks_a_living_driver(tidegate: Caller, driver: Driver) -> None:
    answer = tidegate("cancel", "flights", "--json")
    assert answer.code == 0, answer.err
    assert answer.document["status"] == "CANCELED" and answer.document["command_id"] is not None


def test_cancel_ends_the_job_in_the_place_of_a_dead_driver(tidegate: Caller, driver: Driver) -> None:
    tidegate.script = lambda driver: None
    answer = tidegate("cancel", "flights", "--json")
    assert answer.code == 0, answer.err
    assert (answer.document["status"], answer.document["command_id"]) == ("CANCELED", None)
    assert driver.client.view().generation == 2
