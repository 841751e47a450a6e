"""`tidegate checkpoint`, `savepoint`, `stop` and `cancel`."""

from __future__ import annotations

import os

import pytest
from cli_caller import Caller, Driver

from tidegate.clock import elapsed_ms
from tidegate.jobs.stop_outcomes import next_action


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
    assert answer.code == 8 and command.command_id in answer.err and "The command stays valid" in answer.err


def test_stop_waits_for_two_tries_of_the_jobs_stop_timeout_and_restarts(tidegate: Caller) -> None:
    driver = tidegate.submitted(options={"stop_timeout": "20 s"})
    driver.status("RUNNING")
    tidegate.script = lambda driver: driver.beat()
    assert tidegate("stop", "flights").code == 8
    assert 340 <= tidegate.elapsed_s < 341


def test_stop_sends_its_time_and_what_follows(tidegate: Caller, driver: Driver) -> None:
    """S7.7: the driver keeps the time."""
    tidegate.script = lambda driver: driver.beat()
    tidegate("stop", "flights", "--drain", "--timeout", "90 s", "--on-timeout", "suspend")
    (command,) = driver.waiting_commands()
    assert command.arguments == {"mode": "drain", "timeout": "1 min 30 s", "on_timeout": "suspend"}
    assert tidegate("stop", "flights", "--on-timeout", "explode").code == 2


def test_a_stop_lives_as_long_as_it_may_take(tidegate: Caller, driver: Driver) -> None:
    """S9.4: else it would expire while slots are waited for, whatever its time."""
    tidegate.script = lambda driver: driver.beat()
    tidegate("stop", "flights", "--timeout", "3 h")
    (command,) = driver.waiting_commands()
    assert elapsed_ms(command.issued_at, command.expires_at) == (2 * 3 * 60 + 5) * 60_000


def test_a_savepoint_that_cannot_be_begun_says_where_why_and_what_to_do(tidegate: Caller, driver: Driver) -> None:
    """S1.4: nothing has ended; an unwritable `--path` is what people meet."""
    why = "the savepoint could not be started: no savepoint can be written to '/ro': Read-only file system"

    def refusing(driver: Driver) -> None:
        for command in driver.waiting_commands():
            driver.answer(command, False, "claim_failed", why)

    tidegate.script = refusing
    answer = tidegate("savepoint", "flights", "--path", "/ro")
    assert answer.code == 7 and why in answer.err
    assert "name a folder that its driver can write to" in answer.err.lower()


@pytest.mark.parametrize(
    "code", ["savepoint_ok_stop_failed", "savepoint_failed_job_continues", "savepoint_failed_job_canceled"]
)
def test_a_stop_that_failed_is_exit_code_seven_with_the_next_action(
    tidegate: Caller, driver: Driver, code: str
) -> None:
    """S7.7."""

    def refusing(driver: Driver) -> None:
        for command in driver.waiting_commands():
            driver.answer(command, False, code, "held up by operator out, subtask 1")

    tidegate.script = refusing
    answer = tidegate("stop", "flights", "--json")
    assert answer.code == 7 and "held up by operator out, subtask 1" in answer.err
    assert answer.document["error"]["cause"] == code
    assert answer.document["error"]["remedy"] == next_action(code) != ""


def test_a_stop_that_needed_its_second_try_says_who_held_the_first_up(tidegate: Caller, driver: Driver) -> None:
    """S7.7: it has stopped, as a suspend."""
    facts = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 4, "path": "/s/4"}

    def stopping(driver: Driver) -> None:
        for command in driver.waiting_commands():
            more = {"asked_mode": "drain", "reason": "held up by operator out", "held_up_by": []}
            driver.status("STOPPED", stop={**facts, **more})
            driver.answer(command, True, "committed", "stopped", **facts, **more)

    tidegate.script = stopping
    answer = tidegate("stop", "flights", "--drain")
    assert answer.code == 0 and "committed (suspend), savepoint /s/4" in answer.out
    assert "suspend instead of drain: held up by operator out" in answer.err
    assert "suspend instead of drain: held up by operator out" in tidegate("status", "flights").out


def test_a_second_cancel_succeeds(tidegate: Caller, driver: Driver) -> None:
    """S9.4: verbs are idempotent."""
    driver.status("CANCELED", reason="by anna")
    answer = tidegate("cancel", "flights", "--json")
    assert answer.code == 0 and answer.document["status"] == "CANCELED"


@pytest.mark.parametrize("verb", ["checkpoint", "savepoint", "stop", "cancel"])
def test_a_job_that_has_ended_takes_no_command(tidegate: Caller, driver: Driver, verb: str) -> None:
    driver.status("FINISHED")
    answer = tidegate(verb, "flights")
    assert answer.code == 7 and "is FINISHED" in answer.err
    assert driver.waiting_commands() == []


@pytest.mark.parametrize("verb", ["checkpoint", "savepoint", "stop", "cancel", "status", "checkpoints", "logs"])
def test_a_job_that_is_not_there_is_exit_code_five(tidegate: Caller, verb: str) -> None:
    answer = tidegate(verb, "flihgts")
    assert answer.code == 5 and "there is no job with the id 'flihgts' [job flihgts" in answer.err


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
