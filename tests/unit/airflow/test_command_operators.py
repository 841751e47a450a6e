"""Checkpoint, savepoint, stop and cancel: one command and one answer, however often Airflow tries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.operators.snapshots import TidegateTriggerCheckpointOperator, TidegateTriggerSavepointOperator
from airflow_tidegate.operators.stop import TidegateCancelJobOperator, TidegateStopJobOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from tidegate.jobs.stop_outcomes import next_action, stop_warning

Steps = list[Callable[[], None]]


def savepoint(**changes: Any) -> TidegateTriggerSavepointOperator:
    return TidegateTriggerSavepointOperator(**{"task_id": "save", "job_id": "j1", **changes})


def stop(mode: Any = "suspend", **changes: Any) -> TidegateStopJobOperator:
    return TidegateStopJobOperator(**{"task_id": "stop", "job_id": "j1", "mode": mode, **changes})


def answer_newest(driver: ScriptedDriver, **answer: Any) -> Callable[[], None]:
    """A step that answers the one command without an answer."""

    def step() -> None:
        [waiting] = [c for c in driver.commands() if driver.client.result(c) is None]
        driver.answer(waiting, **answer)

    return step


def test_a_savepoint_gives_its_path_and_id(job: Job, driver: ScriptedDriver, between_looks: Steps) -> None:
    between_looks += [lambda: None, answer_newest(driver, path="/s/1", checkpoint_id=4)]
    result = savepoint(path="/s").execute(job.context("save"))
    assert result["path"] == "/s/1"
    assert result["checkpoint_id"] == 4
    [command_id] = driver.commands()
    command = job.client.command(command_id)
    assert command is not None
    assert (command.verb, command.arguments, command.issued_by) == ("savepoint", {"path": "/s"}, "airflow:d/r1/save")


def test_a_savepoint_that_cannot_be_begun_fails_with_where_why_and_what_to_do(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    """S1.4: the same words as the command line's."""
    why = "no savepoint can be written to '/ro': Read-only file system"
    between_looks.append(answer_newest(driver, ok=False, code="claim_failed", message=why))
    with pytest.raises(AirflowException) as raised:
        savepoint(path="/ro").execute(job.context("save"))
    assert why in str(raised.value) and next_action("claim_failed") in str(raised.value)


def test_a_checkpoint_gives_its_id(job: Job, driver: ScriptedDriver, between_looks: Steps) -> None:
    between_looks.append(answer_newest(driver, checkpoint_id=4, path="p"))
    operator = TidegateTriggerCheckpointOperator(task_id="chk", job_id="j1")
    assert operator.execute(job.context("chk"))["checkpoint_id"] == 4


def test_a_retry_finds_its_own_answer_and_asks_no_second_time(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    between_looks.append(answer_newest(driver, path="/s/1", checkpoint_id=4))
    first = savepoint().execute(job.context("save"))
    assert savepoint().execute(job.context("save")) == first
    assert len(driver.commands()) == 1


def test_a_retry_after_a_dead_worker_waits_for_the_command_in_flight(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    between_looks.append(die)
    with pytest.raises(KeyboardInterrupt):
        savepoint().execute(job.context("save"))
    between_looks.append(answer_newest(driver, path="/s/1", checkpoint_id=4))
    assert savepoint().execute(job.context("save"))["checkpoint_id"] == 4
    assert len(driver.commands()) == 1


def test_a_retry_after_a_failed_answer_asks_again(job: Job, driver: ScriptedDriver, between_looks: Steps) -> None:
    between_looks.append(answer_newest(driver, ok=False, code="expired", message="disk full"))
    with pytest.raises(AirflowException, match="disk full"):
        savepoint().execute(job.context("save"))
    between_looks.append(answer_newest(driver, path="/s/2", checkpoint_id=5))
    assert savepoint().execute(job.context("save"))["checkpoint_id"] == 5
    assert len(driver.commands()) == 2


def test_a_clear_asks_anew_although_there_is_an_answer(job: Job, driver: ScriptedDriver, between_looks: Steps) -> None:
    between_looks.append(answer_newest(driver, path="/s/1", checkpoint_id=4))
    savepoint().execute(job.context("save"))
    between_looks.append(answer_newest(driver, path="/s/2", checkpoint_id=5))
    assert savepoint().execute(job.context("save", clear_number=1))["path"] == "/s/2"


def test_a_question_for_an_earlier_submission_is_asked_again(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    between_looks.append(die)
    with pytest.raises(KeyboardInterrupt):
        savepoint().execute(job.context("save"))
    driver.status("FAILED")
    job.submit("second")
    second = ScriptedDriver(job.client, spec=2)
    second.status("RUNNING")
    second.beat()

    def answer() -> None:
        [own] = [c for c in second.commands() if (found := job.client.command(c)) is not None and found.spec == 2]
        second.answer(own, path="/s/2", checkpoint_id=9)

    between_looks.append(answer)
    assert savepoint().execute(job.context("save"))["checkpoint_id"] == 9


def test_a_wait_that_takes_too_long_withdraws_its_command(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowException, match="waited .* s for"):
        savepoint(timeout="0 s").execute(job.context("save"))
    [command] = driver.commands()
    assert job.client.store.exists(job.client.layout.withdrawn(command))


def test_asking_a_job_that_never_was_says_so(job: Job) -> None:
    with pytest.raises(AirflowException, match="no job with the id"):
        savepoint().execute(job.context("save"))


def test_asking_a_job_that_is_over_fails_and_sends_nothing(job: Job, driver: ScriptedDriver) -> None:
    driver.status("FINISHED")
    with pytest.raises(AirflowException, match="FINISHED"):
        savepoint().execute(job.context("save"))
    assert driver.commands() == []


def test_a_stop_gives_its_outcome(job: Job, driver: ScriptedDriver, between_looks: Steps) -> None:
    outcome = {"outcome": "committed", "mode": "drain", "checkpoint_id": 7, "path": "/s/7"}
    between_looks.append(answer_newest(driver, **outcome))
    assert stop("drain").execute(job.context("stop")) == outcome
    command = job.client.command(driver.commands()[0])
    assert command is not None
    assert command.arguments == {"mode": "drain", "on_timeout": "keep_running"}


def test_a_stop_whose_answer_was_lost_takes_the_outcome_from_the_decision_log(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    outcome = {"outcome": "committed", "mode": "suspend", "checkpoint_id": 7, "path": "/s/7"}
    between_looks.append(lambda: driver.status("STOPPED", stop=outcome))
    assert stop().execute(job.context("stop")) == outcome


def test_a_cleared_stop_of_a_job_that_is_stopped_still_finds_how_that_was(job: Job, driver: ScriptedDriver) -> None:
    outcome = {"outcome": "committed", "mode": "drain", "checkpoint_id": 7, "path": "/s/7"}
    driver.status("STOPPED", stop=outcome)
    assert stop().execute(job.context("stop", clear_number=1)) == outcome
    assert driver.commands() == []


def test_a_stop_of_a_job_that_came_to_its_own_end_succeeds(job: Job, driver: ScriptedDriver) -> None:
    driver.status("FINISHED")
    assert stop("drain").execute(job.context("stop"))["outcome"] == "finished"
    assert driver.commands() == []


@pytest.mark.parametrize("status_first", [True, False])
def test_a_stop_that_meets_the_jobs_own_end_succeeds(
    job: Job, driver: ScriptedDriver, between_looks: Steps, status_first: bool
) -> None:
    """S7.5: its driver lives, and answers that there is nothing to stop, as it records the end or just before."""
    answer = answer_newest(driver, ok=False, code="job_ended", message="ended")
    if status_first:
        between_looks.append(lambda: (driver.status("FINISHED"), answer())[0])
    else:
        between_looks += [answer, lambda: driver.status("FINISHED")]
    assert stop().execute(job.context("stop"))["outcome"] == "finished"


def test_a_stop_of_a_job_that_is_cancelled_meanwhile_fails(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    def cancelled() -> None:
        driver.status("CANCELED", reason="by anna")
        answer_newest(driver, ok=False, code="job_ended", message="the job was cancelled by anna")()

    between_looks.append(cancelled)
    with pytest.raises(AirflowException, match="cancelled by anna"):
        stop().execute(job.context("stop"))


def test_a_stop_whose_savepoint_failed_says_that_the_job_goes_on(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    code = "savepoint_failed_job_continues"
    between_looks.append(answer_newest(driver, ok=False, code=code, message="declined by daily"))
    with pytest.raises(AirflowException, match=r"declined by daily.*continues as before"):
        stop().execute(job.context("stop"))


def test_a_stop_asks_with_its_time_and_what_follows_and_waits_longer_than_that(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    """S7.7: the driver keeps the time; its answer may take a second try."""
    between_looks.append(answer_newest(driver, outcome="committed", mode="drain", path="/s/1", checkpoint_id=4))
    operator = stop("drain", timeout="90 s", on_timeout="suspend")
    operator.execute(job.context("stop"))
    command = job.client.command(driver.commands()[0])
    assert command is not None
    assert command.arguments == {"mode": "drain", "timeout": "1 min 30 s", "on_timeout": "suspend"}
    assert operator.wait_limit() == timedelta(minutes=8)
    assert stop().wait_limit() == timedelta(minutes=25), "the job's stop_timeout"


@pytest.mark.parametrize(
    "code", ["savepoint_ok_stop_failed", "savepoint_failed_job_continues", "savepoint_failed_job_canceled"]
)
def test_a_stop_that_failed_fails_the_task_with_the_next_action(
    job: Job, driver: ScriptedDriver, between_looks: Steps, code: str
) -> None:
    """S7.7."""
    between_looks.append(answer_newest(driver, ok=False, code=code, message="held up by operator out, subtask 1"))
    with pytest.raises(AirflowException) as failed:
        stop().execute(job.context("stop"))
    assert "held up by operator out, subtask 1" in str(failed.value)
    assert next_action(code) in str(failed.value)


def test_a_stop_with_commits_pending_succeeds_with_a_warning(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    """S7.8."""
    facts = {"outcome": "commits_pending", "mode": "suspend", "path": "/s/1", "checkpoint_id": 4, "uncommitted": [3, 4]}
    between_looks.append(answer_newest(driver, code="commits_pending", **facts))
    operator = stop()
    assert operator.execute(job.context("stop")) == facts
    assert operator.finish(job.client, facts) == facts
    words = stop_warning(facts)
    assert "checkpoints 3, 4" in words and "Approve or reject" in words


def test_an_unknown_mode_fails_at_once_and_sends_nothing(job: Job, driver: ScriptedDriver) -> None:
    with pytest.raises(AirflowFailException, match="suspend"):
        stop("pause").execute(job.context("stop"))
    assert driver.commands() == []


def test_a_cancel_waits_for_the_job_to_be_cancelled(
    job: Job, driver: ScriptedDriver, between_looks: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    between_looks.append(lambda: driver.status("CANCELED"))
    operator = TidegateCancelJobOperator(task_id="cancel", job_id="j1")
    assert operator.execute(job.context("cancel"))["status"] == "CANCELED"


def test_a_cancel_of_a_job_that_is_over_succeeds_and_sends_nothing(job: Job, driver: ScriptedDriver) -> None:
    driver.status("STOPPED", stop={"outcome": "committed"})
    operator = TidegateCancelJobOperator(task_id="cancel", job_id="j1")
    assert operator.execute(job.context("cancel"))["status"] == "STOPPED"
    assert driver.commands() == []


def test_a_cancel_asks_a_driver_that_is_silent_though_its_process_is_there(
    job: Job, driver: ScriptedDriver, between_looks: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.4: it pauses, or its machine is overloaded; it finds the command when it goes on."""
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    monkeypatch.setattr("tidegate.jobs.client.submission.find_local_driver", lambda *_: object())
    between_looks.append(lambda: driver.status("CANCELED"))
    operator = TidegateCancelJobOperator(task_id="cancel", job_id="j1")
    assert operator.execute(job.context("cancel"))["status"] == "CANCELED"
    assert len(driver.commands()) == 1


def test_a_cancel_of_a_job_whose_driver_is_dead_ends_it_behind_a_fence(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    operator = TidegateCancelJobOperator(task_id="cancel", job_id="j1")
    result = operator.execute(job.context("cancel"))
    assert (result["status"], result["generation"]) == ("CANCELED", 2)
