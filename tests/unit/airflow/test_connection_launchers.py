"""The connection's launcher behind the operators: one driver per submission, whoever launches it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launcher_package
import pytest
from scripted_job import PIPELINE, Job, ScriptedDriver

from airflow_tidegate.get_provider_info import get_provider_info
from airflow_tidegate.hooks.tidegate import TidegateHook
from airflow_tidegate.launchers import ensure_driver
from airflow_tidegate.operators.start import TidegateStartJobOperator
from airflow_tidegate.version_compat import AirflowFailException
from tidegate.errors import EnvironmentProblemError, JobFailedError
from tidegate.jobs.launch import cluster
from tidegate.jobs.launch.desired_state import read_desired
from tidegate.jobs.launch.programs import Answer
from tidegate.jobs.launches import read_launch, record_launch

APPLICATION = "application_1700000000000_0007"


@pytest.fixture
def connection(job: Job, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the connection's extra."""

    def connect(**extra: Any) -> None:
        document = {"conn_type": "tidegate", "host": str(job.root), "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps(document))

    return connect


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """YARN's programs: what was asked. An application runs as soon as one was submitted."""
    asked: list[tuple[str, ...]] = []

    def run(command: Sequence[str], limit_s: float) -> Answer:
        asked.append(tuple(command))
        if "-status" in command:
            return Answer(0, "\tState : RUNNING\n")
        return Answer(0, f"Submitted application {APPLICATION}\n")

    monkeypatch.setattr(cluster.ClusterLauncher.__init__, "__defaults__", (run,))
    return asked


def start(**changes: Any) -> TidegateStartJobOperator:
    return TidegateStartJobOperator(task_id="start", job_id="j1", pipeline=PIPELINE, **changes)


def runs(job: Job, launch: int = 1) -> ScriptedDriver:
    driver = ScriptedDriver(job.client, 1, launch)
    driver.status("RUNNING")
    driver.beat()
    return driver


def test_with_an_agent_the_operator_records_the_desired_state_and_waits(
    job: Job, connection: Any, between_looks: list[Any]
) -> None:
    connection(launcher="agent", master="spark://host:7077")

    def an_agent_launches() -> None:
        desired = read_desired(job.client)
        assert desired is not None and (desired.state, desired.spec, desired.launch) == ("running", 1, 1)
        record_launch(job.client.store, job.client.layout, job.client.spec(1).number, launcher="local", attempt=1)
        runs(job)

    between_looks.append(an_agent_launches)
    assert start().execute(job.context())["status"] == "RUNNING"
    assert job.launches == []
    assert job.client.spec(1).master == "spark://host:7077"


def test_a_retry_of_a_failed_job_asks_the_agent_for_another_driver(
    job: Job, connection: Any, between_looks: list[Any]
) -> None:
    connection(launcher="agent")

    def launches(attempt: int, status: str) -> Any:
        def act() -> None:
            record_launch(
                job.client.store, job.client.layout, job.client.spec(1).number, launcher="local", attempt=attempt
            )
            ScriptedDriver(job.client, 1, attempt).status(status)

        return act

    between_looks.append(launches(1, "FAILED"))
    with pytest.raises(Exception, match="failed"):
        start().execute(job.context())
    between_looks.append(launches(2, "RUNNING"))
    assert start().execute(job.context())["generation"] == 2
    desired = read_desired(job.client)
    assert desired is not None and desired.launch == 2


def test_a_driver_that_lives_is_not_asked_for_again(job: Job, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connection(launcher="agent")
    job.submit()
    record_launch(job.client.store, job.client.layout, job.client.spec(1).number, launcher="local", attempt=1)
    runs(job)
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    operator = start()
    assert ensure_driver(job.client, job.client.spec(1), operator.job_root()) == 0
    assert read_desired(job.client) is None


def test_yarn_is_handed_one_driver_and_a_retry_finds_it(
    job: Job, connection: Any, between_looks: list[Any], programs: list[tuple[str, ...]]
) -> None:
    connection(launcher="yarn", master="yarn", spark_submit="/opt/spark/bin/spark-submit")
    between_looks.append(lambda: runs(job))
    assert start().execute(job.context())["status"] == "RUNNING"
    assert start().execute(job.context())["status"] == "RUNNING"
    assert [command[0] for command in programs] == ["/opt/spark/bin/spark-submit", "yarn"]
    assert job.client.launches() == [(1, 1)]
    assert job.launches == []


def test_a_cluster_launcher_may_be_used_where_workers_are_ephemeral(
    job: Job, connection: Any, programs: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "KubernetesExecutor")
    spec = job.submit(master="yarn")
    connection(launcher="yarn", master="yarn")
    assert ensure_driver(job.client, spec, start().job_root()) == 0
    assert len(programs) == 1
    connection(launcher="spark-submit")
    monkeypatch.setattr("airflow_tidegate.launchers.driver_launch.find_running_driver", lambda *_: None)
    with pytest.raises(EnvironmentProblemError, match="worker that ends with its task"):
        ensure_driver(job.client, spec, start().job_root())


def test_a_master_that_does_not_go_with_the_launcher_fails_the_task_at_once(job: Job, connection: Any) -> None:
    connection(launcher="kubernetes", master="local[2]")
    with pytest.raises(AirflowFailException, match=r"local\[2\] cannot be used with the launcher kubernetes"):
        start().execute(job.context())


def test_a_cancelled_submission_is_launched_by_nobody(job: Job, connection: Any) -> None:
    connection(launcher="agent")
    spec = job.submit()
    ScriptedDriver(job.client, 1).status("CANCELED")
    with pytest.raises(JobFailedError, match="was cancelled"):
        ensure_driver(job.client, spec, start().job_root())
    assert read_desired(job.client) is None


def test_a_launcher_of_another_package_is_named_by_a_connection(
    job: Job, connection: Any, between_looks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its entry point alone: the form has its field, the hook reads it, and the operator launches with it."""
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch):
        fields = get_provider_info()["connection-types"][0]["conn-fields"]
        assert "nomad" in fields["launcher"]["schema"]["enum"]
        assert fields["nomad_address"]["description"] == "URL of Nomad's server."
        connection(launcher="nomad", nomad_address="http://here:4646")
        between_looks.append(lambda: runs(job))
        assert start().execute(job.context())["status"] == "RUNNING"
        assert start().execute(job.context())["status"] == "RUNNING"
    launch = read_launch(job.client.store, job.client.layout, 1, 1)
    assert (launch.launcher, launch.host) == ("nomad", "http://here:4646")
    assert job.client.launches() == [(1, 1)] and job.launches == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_library\n", "cannot be loaded"),
        (launcher_package.SOURCE.replace("(self, settings)", "(self)"), "cannot be created"),
        (
            launcher_package.SOURCE.replace("return [Check(", "raise LookupError\n        return [Check("),
            "cannot be ch",
        ),
    ],
    ids=["no import", "no constructor", "no check"],
)
def test_the_test_button_reports_a_broken_launcher_of_another_package(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    connection(launcher="nomad", master="nomad")
    with launcher_package.installed(tmp_path / "site-packages", monkeypatch, source):
        good, message = TidegateHook().test_connection()
    assert not good
    assert f"the launcher 'nomad' {told}" in message and "package nomad_launcher" in message
