"""The commit gate from Airflow: what waits, approvals that wait for their commit, rejections (S7.8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers.cli_process import commit_pending
from airflow_tidegate.operators.verdicts import TidegateCommitCheckpointOperator, TidegateRejectCheckpointOperator
from airflow_tidegate.sensors.staged_checkpoint import TidegateStagedCheckpointSensor
from airflow_tidegate.triggers.job_triggers import TRIGGERS
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from tidegate.errors import EnvironmentProblemError

Steps = list[Callable[[], None]]


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    """A running job behind a gate."""
    job.submit(options={"commit": "on_request", "checkpoint_interval": "1 s"})
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    made.beat()
    return made


def commit(**changes: Any) -> TidegateCommitCheckpointOperator:
    return TidegateCommitCheckpointOperator(**{"task_id": "publish", "job_id": "j1", **changes})


def reject(**changes: Any) -> TidegateRejectCheckpointOperator:
    return TidegateRejectCheckpointOperator(**{"task_id": "reject", "job_id": "j1", **changes})


def staged(job: Job, **changes: Any) -> Any:
    sensor = TidegateStagedCheckpointSensor(**{"task_id": "staged", "job_id": "j1", **changes})
    return sensor.poke(job.context("staged"))


def only_command(driver: ScriptedDriver) -> str:
    [command_id] = driver.commands()
    return command_id


def approve(driver: ScriptedDriver, checkpoint_id: int) -> Callable[[], None]:
    """A step that does what a driver does with a `commit` command before sinks have committed."""

    def step() -> None:
        command_id = only_command(driver)
        driver.generation_log.append("approve", {"checkpoint_id": checkpoint_id, "by": "x", "command": command_id})
        driver.answer(command_id, code="approved", checkpoint_id=checkpoint_id)

    return step


def test_an_approval_waits_for_the_commit_of_the_checkpoint_that_was_asked_for(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    """S7.8: the driver answers when the approval is in the log; the Airflow task ends when the rows are there."""
    driver.checkpoint(1)
    between_looks += [
        approve(driver, 1),
        lambda: None,
        lambda: driver.generation_log.append("committed", {"checkpoint_id": 1}),
    ]
    found = commit(checkpoint_id={"checkpoint_id": 1, "verdict": "waiting"}).execute(job.context("publish"))
    assert (found["checkpoint_id"], found["committed"]) == (1, True)
    assert not between_looks, "it ended before the commit"
    command = job.client.command(only_command(driver))
    assert command is not None
    assert (command.verb, command.arguments) == ("commit", {"checkpoint_id": 1})


def test_a_retry_of_an_approval_finds_its_own(job: Job, driver: ScriptedDriver, between_looks: Steps) -> None:
    driver.checkpoint(1)

    def die() -> None:
        approve(driver, 1)()
        raise KeyboardInterrupt

    between_looks.append(die)
    with pytest.raises(KeyboardInterrupt):
        commit().execute(job.context("publish"))
    driver.generation_log.append("committed", {"checkpoint_id": 1})
    assert commit().execute(job.context("publish"))["committed"] is True
    assert len(driver.commands()) == 1


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, driver: ScriptedDriver) -> list[tuple[str, ...]]:
    """Words of every `commit-pending` that was run, but for the verdict's id; verdicts get into the log."""
    calls: list[tuple[str, ...]] = []

    def commit_pending(
        root: Any, job_id: str, verdict: Any, *, asked_by: str, timeout_s: float | None, secrets: Any
    ) -> Any:
        assert (job_id, timeout_s, secrets) == ("j1", 1800.0, None)
        words = list(verdict)
        if words:
            name = words.pop(words.index("--id") + 1)
            words.remove("--id")
            data = {"checkpoint_id": int(words[1]), "by": asked_by, "command": name}
            if words[0] == "--approve":
                driver.generation_log.append("approve", data)
            else:
                driver.generation_log.append("reject", {**data, "then": "stop", "reason": ""})
        calls.append((asked_by, *words))
        return {}

    monkeypatch.setattr("airflow_tidegate.operators.verdicts.commit_pending", commit_pending)
    return calls


def test_what_was_approved_of_a_job_that_ended_before_the_commit_is_committed_without_it(
    job: Job, driver: ScriptedDriver, between_looks: Steps, late: list[tuple[str, ...]]
) -> None:
    """S7.8."""
    driver.checkpoint(1)
    between_looks += [
        approve(driver, 1),
        lambda: driver.status("FINISHED_COMMIT_PENDING", uncommitted=[1]),
    ]
    assert commit().execute(job.context("publish")) == {"checkpoint_id": 1, "committed": True}
    assert late == [("airflow:d/r1/publish",)]


def test_verdicts_on_a_job_that_has_ended_need_no_job(
    job: Job, driver: ScriptedDriver, late: list[tuple[str, ...]]
) -> None:
    """S7.8: no command is sent, since nobody would answer."""
    for checkpoint_id in (1, 2, 3):
        driver.checkpoint(checkpoint_id)
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[1, 2, 3])
    assert commit(checkpoint_id=1).execute(job.context("publish")) == {"checkpoint_id": 1, "committed": True}
    assert commit().execute(job.context("other"))["checkpoint_id"] == 3
    by = "airflow:d/r1/"
    assert late == [(f"{by}publish", "--approve", "1"), (f"{by}other", "--approve", "3")]
    assert driver.commands() == []


def test_a_rejection_after_the_jobs_end_and_its_retry_say_what_was_rejected(
    job: Job, driver: ScriptedDriver, late: list[tuple[str, ...]]
) -> None:
    """S7.8: the retry of one that was killed behind the verdict finds nothing that waits, and says the same."""
    for checkpoint_id in (1, 2, 3):
        driver.checkpoint(checkpoint_id)
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[1, 2, 3])
    for _ in range(2):
        found = reject(checkpoint_id=2, reason="too late").execute(job.context("reject"))
        assert found == {"checkpoint_id": 2, "rejected": [2, 3], "then": "stop"}
    assert late == [("airflow:d/r1/reject", "--reject", "2", "--reason", "too late")] * 2


def test_a_retry_of_a_late_approval_finds_its_own_although_nothing_waits_any_more(
    job: Job, driver: ScriptedDriver, late: list[tuple[str, ...]]
) -> None:
    """S7.8: killed behind verdict and commit, before its answer."""
    driver.checkpoint(1)
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[1])
    assert commit().execute(job.context("publish")) == {"checkpoint_id": 1, "committed": True}
    driver.generation_log.append("committed", {"checkpoint_id": 1})
    driver.status("FINISHED")
    assert commit().execute(job.context("publish")) == {"checkpoint_id": 1, "committed": True}


def test_a_retry_after_the_end_of_the_job_approves_nothing_newer_than_its_first_try(
    job: Job, driver: ScriptedDriver, between_looks: Steps, late: list[tuple[str, ...]]
) -> None:
    """S7.8: approved while the job ran, killed, tried again; what waits by then nobody has looked at."""
    driver.checkpoint(1)

    def die() -> None:
        approve(driver, 1)()
        raise KeyboardInterrupt

    between_looks.append(die)
    with pytest.raises(KeyboardInterrupt):
        commit().execute(job.context("publish"))
    driver.generation_log.append("committed", {"checkpoint_id": 1})
    driver.checkpoint(2)
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[2])
    assert commit().execute(job.context("publish"))["checkpoint_id"] == 1
    assert late == [("airflow:d/r1/publish", "--approve", "1")]
    assert commit().execute(job.context("another"))["checkpoint_id"] == 2


def test_a_retry_that_finds_its_approval_has_only_the_commit_left(
    job: Job, driver: ScriptedDriver, late: list[tuple[str, ...]]
) -> None:
    """S7.8: approved, killed, tried again: nothing waits any more, and 1 is still to be committed."""
    driver.checkpoint(1)
    driver.generation_log.append("approve", {"checkpoint_id": 1, "by": "x", "command": "a"})
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[1])
    assert commit().execute(job.context("publish"))["checkpoint_id"] == 1
    driver.generation_log.append("committed", {"checkpoint_id": 1})
    with pytest.raises(AirflowException, match="no checkpoint of the job waits"):
        commit().execute(job.context("another"))
    assert len(late) == 1


def test_the_process_that_commits_tells_its_refusal_in_its_own_words(job: Job) -> None:
    """A real process; the job it is about commits by itself."""
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.checkpoint(1)
    driver.status("FINISHED")
    with pytest.raises(
        AirflowException,
        match=r"the job commits without approval, and no checkpoint waits for approval or rejection \[job j1\]",
    ):
        commit(checkpoint_id=1).execute(job.context("publish"))


def test_an_interpreter_without_tidegate_is_named(job: Job, driver: ScriptedDriver, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named tidegate >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentProblemError, match="no module named tidegate"):
        commit_pending(JobRoot(str(job.root), python=str(python)), "j1", (), asked_by="x", timeout_s=60.0)


def test_an_interpreter_without_the_runtime_is_told_to_be_replaced(job: Job, tmp_path: Path) -> None:
    python = tmp_path / "python"
    error = {"code": "environment", "what": "`tidegate gc` needs the runtime", "where": "", "cause": "no numba"}
    python.write_text(f"#!/bin/sh\necho '{json.dumps({'error': {**error, 'remedy': 'Run: pip'}})}'; exit 12\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentProblemError, match=f'needs the runtime .*{python}.* or set "python" of the conn'):
        commit_pending(JobRoot(str(job.root), python=str(python)), "j1", (), asked_by="x", timeout_s=60.0)


def test_a_refused_verdict_fails_the_task_with_the_drivers_words(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    between_looks.append(
        lambda: driver.answer(only_command(driver), ok=False, code="nothing_waits", message="none waits")
    )
    with pytest.raises(AirflowException, match="none waits"):
        commit().execute(job.context("publish"))


def test_a_rejection_says_what_was_rejected_and_what_then(
    job: Job, driver: ScriptedDriver, between_looks: Steps
) -> None:
    between_looks.append(
        lambda: driver.answer(only_command(driver), code="rejected", checkpoint_id=2, then="replay", rejected=[2, 3])
    )
    found = reject(checkpoint_id="2", then="replay").execute(job.context("reject"))
    assert (found["checkpoint_id"], found["rejected"], found["then"]) == (2, [2, 3], "replay")
    command = job.client.command(only_command(driver))
    assert command is not None
    assert (command.verb, command.arguments) == ("reject", {"checkpoint_id": 2, "then": "replay", "reason": ""})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"checkpoint_id": None}, "names no checkpoint to reject"),
        ({"checkpoint_id": 1, "then": "retry"}, "then='retry'"),
    ],
)
def test_a_rejection_that_cannot_be_meant_is_refused_before_anything_is_sent(
    job: Job, driver: ScriptedDriver, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        reject(**arguments).execute(job.context("reject"))
    assert driver.commands() == []


def test_the_sensor_finds_the_newest_that_waits_also_after_the_jobs_end(job: Job, driver: ScriptedDriver) -> None:
    """S7.8: a job that ended with verdicts outstanding still has something to look at."""
    assert not staged(job).is_done
    driver.checkpoint(1)
    driver.checkpoint(2)
    driver.checkpoint(3, "savepoint")
    found = staged(job).xcom_value
    assert (found["checkpoint_id"], found["verdict"], found["waiting"]) == (2, "waiting", [1, 2])
    assert not staged(job, newer_than={"checkpoint_id": 2}).is_done
    assert staged(job, checkpoint_id="1").xcom_value["checkpoint_id"] == 1
    driver.status("FINISHED_COMMIT_PENDING", uncommitted=[1, 2])
    assert staged(job).xcom_value["checkpoint_id"] == 2


def test_the_sensor_does_not_wait_for_what_cannot_come(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1)
    driver.checkpoint(2, "savepoint")
    driver.checkpoint(3)
    driver.checkpoint(4, aborted="disk full")
    driver.generation_log.append("approve", {"checkpoint_id": 1, "by": "x", "command": "a"})
    driver.generation_log.append("reject", {"checkpoint_id": 3, "then": "replay", "by": "x", "command": "b"})
    assert staged(job, checkpoint_id=1).xcom_value["verdict"] == "approved"
    for checkpoint_id, words in ((3, "rejected"), (2, "savepoint"), (4, "disk full")):
        with pytest.raises(AirflowException, match=words):
            staged(job, checkpoint_id=checkpoint_id)
    driver.status("FINISHED")
    with pytest.raises(AirflowException, match="FINISHED"):
        staged(job)


def test_the_sensor_refuses_a_job_that_commits_by_itself(job: Job) -> None:
    job.submit()
    driver = ScriptedDriver(job.client)
    driver.status("RUNNING")
    driver.checkpoint(1)
    with pytest.raises(AirflowFailException, match="on_request"):
        staged(job)


@pytest.mark.parametrize("kind", ["staged", "commit"])
def test_both_waits_can_be_held_by_the_triggerer(kind: str) -> None:
    trigger = TRIGGERS[kind](root="/r", job_id="j1", wait={"command_id": "c"} if kind == "commit" else {})
    path, arguments = trigger.serialize()
    assert path.endswith(type(trigger).__name__)
    assert TRIGGERS[kind](**arguments).job_wait() == trigger.job_wait()
