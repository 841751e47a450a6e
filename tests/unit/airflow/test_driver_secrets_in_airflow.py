"""Secrets of Airflow connections: drivers get them in their environment, and nothing else holds them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_job import PIPELINE, Job, ScriptedDriver

from airflow_tidegate.launchers import cli_process, connection_secrets
from airflow_tidegate.launchers.cli_process import run_cli_verb
from airflow_tidegate.launchers.connection_secrets import read_secrets
from airflow_tidegate.operators.collect_garbage import TidegateCollectGarbageOperator
from airflow_tidegate.operators.fork import TidegateForkJobOperator
from airflow_tidegate.operators.restore import TidegateRestoreJobOperator
from airflow_tidegate.operators.start import TidegateRunJobOperator, TidegateStartJobOperator
from airflow_tidegate.operators.supervise import TidegateSuperviseJobOperator
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator
from airflow_tidegate.operators.verdicts import TidegateCommitCheckpointOperator, TidegateRejectCheckpointOperator
from airflow_tidegate.plugins.restore_permission import restore_blocker
from airflow_tidegate.version_compat import AirflowFailException
from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import LocalLauncher
from tidegate.jobs.records import Launch

SECRET = "hunter2-quite-secret"
SECRETS = {"KAFKA_PASSWORD": "conn:my_kafka/password"}
Steps = list[Callable[[], None]]


@pytest.fixture(autouse=True)
def kafka_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with a secret in each field that may be used."""
    extra = {"sasl.token": "extra-secret", "keyfile": {"private": "deep"}, "nothing": ""}
    connection = {"conn_type": "kafka", "host": "broker", "login": "etl-user", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", json.dumps(connection))


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is masked in logs."""
    found: list[str] = []
    monkeypatch.setattr(connection_secrets, "mask_secret", found.append)
    return found


@pytest.fixture
def environments(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Variables that each launched driver gets; each driver says RUNNING."""
    found: list[dict[str, str]] = []
    launch = LocalLauncher.launch

    def observed(self: LocalLauncher, client: JobClient, spec: Any, attempt: int | None = None) -> Launch:
        found.append(dict(self._settings.environment))
        assert SECRET not in repr(self._settings)
        return launch(self, client, spec, attempt)

    monkeypatch.setattr(LocalLauncher, "launch", observed)

    def on_launch(spec: int, attempt: int) -> None:
        driver = ScriptedDriver(job.client, spec, attempt)
        driver.status("RUNNING")
        driver.checkpoint(10 * spec + attempt)
        driver.beat()

    job.on_launch = on_launch
    return found


def start(**changes: Any) -> TidegateStartJobOperator:
    return TidegateStartJobOperator(**{"task_id": "t", "job_id": "j1", "pipeline": PIPELINE, **changes})


def use_launcher(job: Job, monkeypatch: pytest.MonkeyPatch, **extra: Any) -> None:
    connection = {"conn_type": "tidegate", "host": str(job.root), "extra": {"master": "local[2]", **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps(connection))


def assert_nowhere_below(folder: Path) -> None:
    holding = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holding == []


def test_a_driver_gets_the_values_and_the_job_directory_only_the_places(
    job: Job, environments: list[dict[str, str]], masked: list[str]
) -> None:
    secrets = {
        **SECRETS,
        "KAFKA_USER": "conn:my_kafka/login",
        "TOKEN": "conn:my_kafka/extra/sasl.token",
        "KEYFILE": "conn:my_kafka/extra/keyfile",
    }
    operator = start(secrets=secrets)
    found = operator.execute(job.context())
    values = {"KAFKA_PASSWORD": SECRET, "KAFKA_USER": "etl-user", "TOKEN": "extra-secret"}
    assert environments == [{**values, "KEYFILE": '{"private": "deep"}'}]
    assert job.client.specs()[0].secrets == secrets
    assert set(masked) == set(environments[0].values())
    assert_nowhere_below(job.root)
    assert SECRET not in repr(found) + repr(vars(operator))
    assert "secrets" in operator.template_fields


def test_a_retry_reads_them_again_only_if_it_launches_a_driver(
    job: Job, environments: list[dict[str, str]], masked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(secrets=SECRETS).execute(job.context())
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: True)
    masked.clear()
    start(secrets=SECRETS).execute(job.context())
    assert len(environments) == 1 and masked == []
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    start(secrets=SECRETS).execute(job.context())
    assert [one["KAFKA_PASSWORD"] for one in environments] == [SECRET, SECRET]


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ({"KAFKA_PASSWORD": SECRET}, "not a field of an Airflow connection"),
        ({"KAFKA_PASSWORD": f"conn:{SECRET}"}, "not a field of an Airflow connection"),
        ({"KAFKA_PASSWORD": "conn:my_kafka/host"}, "conn:ID/password"),
        ({"KAFKA-PASSWORD": "conn:my_kafka/password"}, "not a name of an environment variable"),
        ({"PYTHONPATH": "conn:my_kafka/password"}, "cannot hold a secret"),
        ({"TIDEGATE_STORAGE_OPTIONS": "conn:my_kafka/password"}, "cannot hold a secret"),
        ("conn:my_kafka/password", "must be a mapping"),
        ({"P": "conn:my_kafak/password"}, "no Airflow connection 'my_kafak'"),
        ({"P": "conn:my_kafka/extra/sasl.tokn"}, "no key 'sasl.tokn' in its extra"),
        ({"P": "conn:my_kafka/extra/nothing"}, "no key 'nothing' in its extra"),
    ],
)
def test_a_wrong_secret_is_refused_before_anything_is_submitted_and_not_shown(
    job: Job, environments: list[dict[str, str]], secrets: Any, words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words) as caught:
        start(secrets=secrets).execute(job.context())
    assert SECRET not in str(caught.value)
    assert job.client.specs() == () and environments == []


def test_a_null_byte_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = SimpleNamespace(password=f"{SECRET}\0", extra_dejson={})
    monkeypatch.setattr(connection_secrets.BaseHook, "get_connection", lambda _: connection)
    with pytest.raises(OptionError, match="null byte") as caught:
        read_secrets(SECRETS)
    assert SECRET not in str(caught.value)


def test_a_connection_id_may_contain_slashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As paths of secrets backends do."""
    asked: list[str] = []

    def get(conn_id: str) -> Any:
        asked.append(conn_id)
        return SimpleNamespace(password=SECRET, extra_dejson={"a/b": "deep-secret"})

    monkeypatch.setattr(connection_secrets.BaseHook, "get_connection", get)
    assert read_secrets({"A": "conn:team/kafka/password", "B": "conn:team/kafka/extra/a/b"}) == {
        "A": SECRET,
        "B": "deep-secret",
    }
    assert asked == ["team/kafka", "team/kafka"]


@pytest.mark.parametrize("launcher", ["agent", "yarn", "kubernetes"])
def test_a_launcher_that_starts_the_driver_elsewhere_is_refused_with_the_other_forms(
    job: Job, environments: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    use_launcher(job, monkeypatch, launcher=launcher)
    with pytest.raises(AirflowFailException, match=rf"launcher {launcher}.*secret:file/PATH.*secret:env/NAME"):
        start(secrets=SECRETS).execute(job.context())
    assert job.client.specs() == () and not job.client.store.exists(job.client.layout.desired)


def test_slots_on_other_machines_need_the_setting_of_spark(
    job: Job, environments: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors of a standalone cluster do not inherit the driver's environment."""
    use_launcher(job, monkeypatch, launcher="local", master="spark://a:7077")
    with pytest.raises(AirflowFailException, match=r"spark://a:7077.*secret:file.*executorEnv.KAFKA_PASSWORD"):
        start(secrets=SECRETS).execute(job.context())
    assert job.client.specs() == ()
    plain = {"spark.executorEnv.KAFKA_PASSWORD": SECRET}
    with pytest.raises(AirflowFailException) as caught:
        start(secrets=SECRETS, spark_conf=plain).execute(job.context())
    assert SECRET not in str(caught.value) and job.client.specs() == ()
    conf = {"spark.executorEnv.KAFKA_PASSWORD": "secret:env/KAFKA_PASSWORD"}
    start(secrets=SECRETS, spark_conf=conf).execute(job.context())
    assert environments == [{"KAFKA_PASSWORD": SECRET}]


@pytest.fixture
def stopped(job: Job, environments: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that was started with a secret, and is stopped."""
    start(secrets=SECRETS).execute(job.context())
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    ScriptedDriver(job.client, 1, 2).status("STOPPED")
    environments.clear()
    return job


def restore(**changes: Any) -> TidegateRestoreJobOperator:
    return TidegateRestoreJobOperator(**{"task_id": "r", "job_id": "j1", **changes})


def test_a_restore_needs_the_secrets_of_the_job_and_passes_them(
    stopped: Job, environments: list[dict[str, str]]
) -> None:
    with pytest.raises(AirflowFailException, match=r'KAFKA_PASSWORD.*secrets={"KAFKA_PASSWORD": "conn:my_kafka/pass'):
        restore().execute(stopped.context("r"))
    assert len(stopped.client.specs()) == 1 and environments == []
    restore(secrets=SECRETS).execute(stopped.context("r"))
    assert environments == [{"KAFKA_PASSWORD": SECRET}]
    assert stopped.client.specs()[1].secrets == SECRETS


def test_a_restore_may_rename_or_drop_them(stopped: Job, environments: list[dict[str, str]]) -> None:
    other = {"OTHER": "conn:my_kafka/login"}
    restore(secrets=other).execute(stopped.context("r"))
    assert environments == [{"OTHER": "etl-user"}] and stopped.client.specs()[1].secrets == other
    ScriptedDriver(stopped.client, 2, 2).status("STOPPED")
    restore(secrets={}).execute(stopped.context("r2"))
    assert environments[1] == {} and stopped.client.specs()[2].secrets == {}


def test_a_worker_that_has_the_variable_needs_no_connection(
    stopped: Job, environments: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drivers inherit it."""
    monkeypatch.setenv("KAFKA_PASSWORD", "own")
    restore().execute(stopped.context("r"))
    assert environments == [{}] and stopped.client.specs()[1].secrets == SECRETS


def test_a_connection_that_the_job_directory_names_is_not_read(
    stopped: Job, environments: list[dict[str, str]]
) -> None:
    """Who can write there must not be able to read connections."""
    with pytest.raises(AirflowFailException):
        restore().execute(stopped.context("r"))
    blocked = restore_blocker(stopped.client, restore().job_root(), stopped.client.specs())
    assert "KAFKA_PASSWORD" in blocked and "TidegateRestoreJobOperator(secrets=...)" in blocked


def test_a_fork_needs_and_gets_them(
    stopped: Job, environments: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = JobClient(str(stopped.root), "backfill")
    stopped.on_launch = lambda spec, attempt: ScriptedDriver(beside, spec, attempt).status("FINISHED")
    plain: dict[str, Any] = {"task_id": "f", "job_id": "backfill", "from_job": "j1", "arguments": {"out": "y"}}
    with pytest.raises(AirflowFailException, match="KAFKA_PASSWORD"):
        TidegateForkJobOperator(**plain).execute(stopped.context("f"))
    TidegateForkJobOperator(**plain, secrets=SECRETS).execute(stopped.context("f"))
    assert environments == [{"KAFKA_PASSWORD": SECRET}] and beside.specs()[0].secrets == SECRETS


def test_an_upgrade_checks_them_before_it_stops_the_job(job: Job, environments: list[dict[str, str]]) -> None:
    start(secrets=SECRETS).execute(job.context())
    upgrade: dict[str, Any] = {"task_id": "u", "job_id": "j1", "options": {"parallelism": 2}}
    with pytest.raises(AirflowFailException, match="KAFKA_PASSWORD"):
        TidegateUpgradeJobOperator(**upgrade).execute(job.context("u"))
    others = {"OTHER": "conn:my_kafka/login"}
    with pytest.raises(AirflowFailException, match="KAFKA_PASSWORD that the job was submitted with"):
        # A rollback to the old version would lack them.
        TidegateUpgradeJobOperator(**upgrade, secrets=others).execute(job.context("u"))
    assert job.client.view().status == "RUNNING" and not job.client.store.list(job.client.layout.commands)


def test_supervision_without_them_fails_at_once_and_with_them_relaunches(
    job: Job, environments: list[dict[str, str]], between_looks: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the driver dies, perhaps at night."""
    start(secrets=SECRETS).execute(job.context())
    supervise: dict[str, Any] = {"task_id": "s", "job_id": "j1", "deferrable": False}
    with pytest.raises(AirflowFailException, match='secrets={"KAFKA_PASSWORD": "conn:my_kafka/password"}'):
        TidegateSuperviseJobOperator(**supervise).execute(job.context("s"))
    assert len(environments) == 1
    operator = TidegateSuperviseJobOperator(**supervise, secrets=SECRETS)
    monkeypatch.setattr("tidegate.jobs.client.job_client.JobClient.is_alive", lambda self, **_: False)
    assert operator._relaunch(
        job.client,
        operator.job_root(),
        job.client.view(),
        SimpleNamespace(why="dead"),  # type: ignore[arg-type]
    ) in (True, False)
    assert environments[1:] == [{"KAFKA_PASSWORD": SECRET}]


@pytest.mark.parametrize(
    "operator",
    [
        TidegateCommitCheckpointOperator,
        TidegateRejectCheckpointOperator,
        TidegateCollectGarbageOperator,
        TidegateRunJobOperator,
    ],
)
def test_operators_that_run_the_pipelines_code_take_secrets_from_default_args(operator: Any) -> None:
    given = {"job_id": "j1", "secrets": SECRETS, "pipeline": PIPELINE, "checkpoint_id": 1}
    made = operator(task_id="x", default_args=given)
    assert made.secrets == SECRETS and "secrets" in made.template_fields


def test_a_process_of_the_worker_gets_them_in_its_environment(
    job: Job, masked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], Mapping[str, str]]] = []

    def run(command: list[str], env: Mapping[str, str], **_: Any) -> Any:
        seen.append((command, env))
        return subprocess.CompletedProcess(command, 0, "{}", "")

    monkeypatch.setattr(cli_process.subprocess, "run", run)
    run_cli_verb(start().job_root(), "gc", "j1", ["--sinks"], asked_by="t", timeout_s=None, secrets=SECRETS)
    [(command, environment)] = seen
    assert environment["KAFKA_PASSWORD"] == SECRET and masked == [SECRET]
    assert SECRET not in " ".join(command)
