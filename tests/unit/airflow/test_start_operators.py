"""Starting, running and restoring: one submission and one driver, however often Airflow tries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_job import PIPELINE, Job, ScriptedDriver

from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from tidegate.coordinator.recovery.restore_point import choose_restore_point
from tidegate.coordinator.recovery.rewind import plan_rewind
from tidegate.errors import SnapshotError
from tidegate.jobs.launch.driver_requirements import require_driver_machine
from tidegate.jobs.records import RelativePaths
from tidegate.testing.collect_sink import CollectSink


def start(**changes: Any) -> TidegateStartJobOperator:
    arguments: dict[str, Any] = {"task_id": "start", "job_id": "j1", "pipeline": PIPELINE, **changes}
    return TidegateStartJobOperator(**arguments)


def runs_at_once(job: Job) -> list[ScriptedDriver]:
    """Make every launch a driver that says RUNNING."""
    drivers: list[ScriptedDriver] = []

    def on_launch(spec: int, attempt: int) -> None:
        driver = ScriptedDriver(job.client, spec, attempt)
        driver.status("RUNNING")
        driver.beat()
        drivers.append(driver)

    job.on_launch = on_launch
    return drivers


def test_start_returns_once_the_job_runs(job: Job, between_looks: list[Any]) -> None:
    drivers: list[ScriptedDriver] = []
    job.on_launch = lambda spec, attempt: drivers.append(ScriptedDriver(job.client, spec, attempt))
    between_looks += [lambda: drivers[0].status("WAITING_FOR_SLOTS"), lambda: drivers[0].status("RUNNING")]
    result = start(options={"parallelism": "2"}, arguments={"out": "o"}).execute(job.context())
    assert result == {"job_id": "j1", "spec": 1, "generation": 1, "status": "RUNNING"}
    spec = job.client.specs()[0]
    assert spec.options["parallelism"] == 2
    assert spec.arguments == {"out": "o"}
    assert (spec.master, spec.owner_dag) == ("local[2]", "d")
    assert between_looks == []


def test_what_this_host_lacks_is_said_before_anything_is_submitted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection's master is local[2]."""
    monkeypatch.setattr("airflow_tidegate.launchers.driver_launch.require_driver_machine", require_driver_machine)
    with pytest.raises(AirflowException, match=r"local\[2\] has only 2 of 3 slots"):
        start(options={"parallelism": 3}).execute(job.context())
    monkeypatch.setenv("JAVA_HOME", str(job.root))
    with pytest.raises(AirflowException, match="cannot be run; Spark needs Java 17 or newer"):
        start().execute(job.context())
    assert job.client.specs() == () and job.launches == []


def test_an_interpreter_without_the_runtime_is_named_before_anything_is_submitted(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho the package numba is not installed >&2; exit 1\n")
    python.chmod(0o755)
    root = replace(start().job_root(), python=str(python))
    monkeypatch.setattr(TidegateStartJobOperator, "job_root", lambda _: root)
    with pytest.raises(AirflowException, match=rf'{python} cannot run a driver.* Set "python" to .*tidegate\[spark\]'):
        start().execute(job.context())
    assert job.client.specs() == () and job.launches == []


def test_a_job_that_is_restored_under_a_mistyped_id_gets_the_nearest_name(job: Job) -> None:
    runs_at_once(job)
    start().execute(job.context())
    mistyped = TidegateRestoreJobOperator(task_id="restore", job_id="j11")
    with pytest.raises(AirflowException, match=r"Did you mean 'j1'\?"):
        mistyped.execute(job.context())


def test_a_retry_finds_its_own_submission_and_driver(job: Job) -> None:
    runs_at_once(job)
    start().execute(job.context())
    job.client.is_alive = lambda **_: True  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_tidegate.launchers.driver_launch.find_local_driver", lambda *_: object())
        result = start().execute(job.context())
    assert result["generation"] == 1
    assert len(job.client.specs()) == 1
    assert job.launches == [1]


def test_a_retry_launches_a_driver_for_its_own_submission_when_none_lives(
    job: Job, between_looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_at_once(job)
    start().execute(job.context())
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    result = start().execute(job.context())
    assert job.launches == [1, 1]
    assert len(job.client.specs()) == 1
    assert result["generation"] == 2


def test_what_a_failed_driver_said_is_not_taken_for_the_words_of_the_one_launched_for_the_retry(
    job: Job, between_looks: list[Any]
) -> None:
    drivers: list[ScriptedDriver] = []

    def fails(spec: int, attempt: int) -> None:
        driver = ScriptedDriver(job.client, spec, attempt)
        driver.generation_log.append(
            "failure", {"message": "disk full", "operator": "daily", "subtask": 1, "traceback": None}
        )
        driver.status("FAILED")

    job.on_launch = fails
    with pytest.raises(AirflowException, match="disk full"):
        start().execute(job.context())
    job.on_launch = lambda spec, attempt: None
    between_looks += [
        lambda: drivers.append(ScriptedDriver(job.client, 1, 2)),
        lambda: drivers[0].status("RUNNING"),
    ]
    assert start().execute(job.context())["status"] == "RUNNING"


def test_a_clear_submits_anew_once_the_job_has_ended(job: Job) -> None:
    drivers = runs_at_once(job)
    start().execute(job.context())
    drivers[0].status("FINISHED")
    with pytest.raises(AirflowException, match="exists, and is FINISHED.*fresh=True"):
        start().execute(job.context(clear_number=1))
    start(fresh=True).execute(job.context(clear_number=1))
    assert [s.number for s in job.client.specs()] == [1, 2]


def test_a_second_job_of_the_same_id_is_refused_while_the_first_lives(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_at_once(job)
    start().execute(job.context())
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    with pytest.raises(AirflowException, match="j1") as caught:
        start().execute(job.context(run_id="r2"))
    assert "running" in str(caught.value).lower()
    assert len(job.client.specs()) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"paralelism": 2}}, "parallelism"),
        ({"options": {"checkpoint_interval": 5}}, "checkpoint_interval"),
        ({"job_id": "../x"}, r"\.\./x"),
        ({"pipeline": "pipe.py"}, "pipe.py"),
        ({"pipeline": "nowhere.py:build"}, "nowhere.py"),
        ({"pipeline": None}, "pipeline="),
        ({"timeout": 5}, "timeout"),
        ({"on_kill": "explode"}, "keep_running"),
    ],
    ids=["option name", "bare number", "job id", "no colon", "no file", "no pipeline", "timeout", "on_kill"],
)
def test_what_a_retry_cannot_mend_fails_at_once_with_nothing_left_behind(
    job: Job, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        start(**changes).execute(job.context())
    assert job.launches == []
    assert not any(p.is_file() for p in job.root.rglob("*"))


def test_the_users_traceback_reaches_the_airflow_task_log(job: Job) -> None:
    def fails(spec: int, attempt: int) -> None:
        driver = ScriptedDriver(job.client, spec, attempt)
        trace = "Traceback (most recent call last):\n  File 'pipe.py', line 3\nZeroDivisionError: division by zero\n"
        failure = {"message": "division by zero", "operator": "rate", "subtask": 1, "traceback": trace}
        driver.generation_log.append("failure", failure)
        driver.status("FAILED")

    job.on_launch = fails
    with pytest.raises(AirflowException) as caught:
        start().execute(job.context())
    text = str(caught.value)
    assert "operator rate, subtask 1" in text
    assert "File 'pipe.py', line 3" in text
    assert text.count("division by zero") == 2, "once as the message, once in the traceback"
    assert caught.value.__cause__ is None


def test_run_waits_for_the_end_and_not_only_for_running(job: Job, between_looks: list[Any]) -> None:
    drivers = runs_at_once(job)
    between_looks += [lambda: None, lambda: drivers[0].status("FINISHED")]
    operator = TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE)
    assert operator.execute(job.context())["status"] == "FINISHED"


def test_run_fails_when_somebody_stops_the_job_before_its_end(job: Job, between_looks: list[Any]) -> None:
    drivers = runs_at_once(job)
    between_looks.append(lambda: drivers[0].status("STOPPED", stop={"outcome": "committed", "mode": "suspend"}))
    operator = TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE)
    with pytest.raises(AirflowException, match="STOPPED"):
        operator.execute(job.context())


def test_a_killed_run_cancels_its_job_and_a_killed_start_does_not(job: Job, between_looks: list[Any]) -> None:
    drivers = runs_at_once(job)
    run = TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE)
    between_looks += [run.on_kill, lambda: drivers[0].status("CANCELED")]
    with pytest.raises(AirflowException, match="CANCELED"):
        run.execute(job.context("run"))
    [command] = drivers[0].commands()
    assert command.startswith("cancel-run-")
    keep = start(fresh=True)
    keep.execute(job.context(clear_number=1))
    keep.on_kill()
    assert drivers[0].commands() == [command]


def test_restore_takes_what_is_not_given_from_the_last_submission(job: Job) -> None:
    drivers = runs_at_once(job)
    start(arguments={"out": "o"}, options={"parallelism": 2}, master="local[7]").execute(job.context())
    drivers[0].checkpoint(1, "stop-savepoint")
    drivers[0].status("STOPPED", stop={"outcome": "committed", "mode": "suspend", "checkpoint_id": 1, "path": "p"})
    (job.dag_file.parent / "pipe.py").write_text("changed since\n")
    first = job.client.specs()[0]
    operator = TidegateRestoreJobOperator(task_id="restore", job_id="j1", from_="latest")
    assert operator.execute(job.context("restore"))["spec"] == 2
    second = job.client.specs()[1]
    assert (second.artifact, second.pipeline) == (first.artifact, first.pipeline)
    assert (second.arguments, second.options, second.master) == ({"out": "o"}, first.options, "local[7]")
    assert second.restore is not None and second.restore.kind == "latest"


def test_a_cleared_run_starts_afresh_and_a_retried_one_goes_on(job: Job, between_looks: list[Any]) -> None:
    """S9.3: what docs/airflow.md says of a clear."""
    drivers = runs_at_once(job)
    run = TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE, fresh=True)
    for clear_number in (0, 0, 1):
        between_looks.append(lambda: drivers[-1].status("FAILED", reason="boom"))
        with pytest.raises(AirflowException, match="boom"):
            run.execute(job.context("run", clear_number=clear_number))
    assert job.launches == [1, 1, 2]
    first, second = job.client.specs()
    assert second.restore is None and second.lineage != first.lineage


@pytest.mark.parametrize("from_", ["latest", 1], ids=str)
def test_a_cleared_restore_names_its_snapshot_anew(job: Job, from_: Any) -> None:
    """S9.3: "latest" is what the job has come to; a checkpoint that is named is gone back to, if the driver lets it."""
    drivers = runs_at_once(job)
    start().execute(job.context())
    drivers[0].checkpoint(1)
    drivers[0].status("FAILED")
    restore = TidegateRestoreJobOperator(task_id="restore", job_id="j1", from_=from_)
    restore.execute(job.context("restore"))
    drivers[1].checkpoint(2)
    drivers[1].status("FAILED")
    restore.execute(job.context("restore", clear_number=1))
    specs = job.client.specs()
    decisions = job.client.decisions()
    point = choose_restore_point(decisions, specs, 3)
    assert point is not None and point.checkpoint_id == (2 if from_ == "latest" else 1)
    sinks = {"out": CollectSink("out")}
    given = {"location": point.location, "checkpoint_id": point.checkpoint_id, "sinks": sinks}
    given["lineage"] = specs[2].lineage
    if from_ == "latest":
        assert plan_rewind(specs, decisions, specs[2], **given) is None
    else:
        with pytest.raises(SnapshotError, match=r"checkpoints \[2\] were completed after"):
            plan_rewind(specs, decisions, specs[2], **given)


def test_a_cleared_restore_is_refused_while_the_job_lives(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = runs_at_once(job)
    start().execute(job.context())
    drivers[0].checkpoint(1)
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    restore = TidegateRestoreJobOperator(task_id="restore", job_id="j1")
    with pytest.raises(AirflowException, match="is alive"):
        restore.execute(job.context("restore", clear_number=1))


def test_restore_of_a_job_that_never_was_says_so(job: Job) -> None:
    operator = TidegateRestoreJobOperator(task_id="restore", job_id="j1", from_="latest")
    with pytest.raises(AirflowException, match="the job to restore does not exist"):
        operator.execute(job.context())


def test_wrong_names_of_arguments_fail_for_good_before_anything_is_submitted(job: Job) -> None:
    """S9.3: told from the pipeline's source, since Airflow has not what importing it needs."""
    (job.dag_file.parent / "typed.py").write_text("import pyspark_or_so\n\n\ndef build(out: str, late: int = 5): ...\n")
    with pytest.raises(AirflowFailException, match=r"there is no argument 'lat', did you mean 'late'\?.*typed.py:4"):
        start(pipeline="typed.py:build", arguments={"out": "o", "lat": 7}).execute(job.context())
    assert job.client.specs() == () and job.launches == []


@pytest.mark.parametrize("code", ["pipeline", "option"])
def test_a_wrong_value_of_an_argument_is_the_drivers_to_tell_and_no_retry_mends_it(job: Job, code: str) -> None:
    """S9.3: with the root cause in the task's log."""
    told = "'x' is not of type int [pipeline typed:build, argument 'late'] cause: an integer is needed"

    def refuses(spec: int, attempt: int) -> None:
        driver = ScriptedDriver(job.client, spec, attempt)
        driver.generation_log.append(
            "failure", {"message": told, "operator": None, "subtask": None, "traceback": "", "code": code}
        )
        driver.status("FAILED", reason=told)

    job.on_launch = refuses
    with pytest.raises(AirflowFailException) as failed:
        start().execute(job.context())
    assert told in str(failed.value)


def test_relative_paths_lie_beside_the_dag_file_and_within_its_bundle(job: Job) -> None:
    runs_at_once(job)
    context = job.context()
    context["dag"] = SimpleNamespace(fileloc="/bundle/dags/flights.py")
    context["ti"].bundle_instance = SimpleNamespace(path=Path("/bundle"))
    start(pipeline=str(job.dag_file.parent / PIPELINE)).execute(context)
    assert job.client.spec(1).relative_paths == RelativePaths("/bundle/dags", "/bundle")


def test_without_a_dag_file_relative_paths_are_refused(job: Job) -> None:
    runs_at_once(job)
    context = job.context()
    context["dag"] = None
    start(pipeline=str(job.dag_file.parent / PIPELINE)).execute(context)
    assert job.client.spec(1).relative_paths == RelativePaths(None)
