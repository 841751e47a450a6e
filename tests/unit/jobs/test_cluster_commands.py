"""Command lines of spark-submit, against what Spark 4's documentation demands of each deploy mode."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.errors import OptionError
from tidegate.jobs.launch import driver_entry
from tidegate.jobs.launch.kubernetes import kubernetes_command, pod_name
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.spark_submit import client_command
from tidegate.jobs.launch.yarn import yarn_application, yarn_command
from tidegate.jobs.process_environment import storage_options_from
from tidegate.jobs.records import Launch, Spec

ROOT = "s3://bucket/jobs"
LAUNCH = Launch(2, 3, "x", "h", "", (), "0123456789abcdef0123456789abcdef")
SETTINGS = LauncherSettings(python="./environment/bin/python", spark_submit="/opt/spark/bin/spark-submit")
ARGUMENTS = ("--root", ROOT, "--job", "flights", "--spec", "2", "--launch", "3")


@pytest.fixture
def spec() -> Spec:
    return Spec(
        job_id="flights",
        number=2,
        submission_id="s",
        pipeline="p:build",
        artifact="a" * 64,
        arguments={},
        options={},
        master="yarn",
        spark_conf={"spark.archives": "hdfs:///env.tar.gz#environment", "spark.hadoop.fs.s3a.secret": "secret:env/S"},
        storage_options={"secret": "secret:env/S"},
        restore=None,
        lineage="l",
        owner_dag=None,
        submitted_at="",
        submitted_by="",
    )


def settings_of(command: tuple[str, ...]) -> dict[str, str]:
    """What `--conf` says, each name once."""
    pairs = [command[i + 1].split("=", 1) for i, word in enumerate(command) if word == "--conf"]
    assert len({name for name, _ in pairs}) == len(pairs)
    return {pair[0]: pair[1] for pair in pairs}


def flag(command: tuple[str, ...], name: str) -> str:
    """The value of a flag that is there once."""
    assert command.count(name) == 1
    return command[command.index(name) + 1]


def test_client_mode_runs_the_driver_with_the_interpreter_of_the_connection(spec: Spec) -> None:
    command = client_command(SETTINGS, replace(spec, master="spark://host:7077"), LAUNCH, ROOT, "/x/driver_entry.py")
    assert command[0] == "/opt/spark/bin/spark-submit"
    assert (flag(command, "--master"), flag(command, "--deploy-mode")) == ("spark://host:7077", "client")
    assert command[-9:] == ("/x/driver_entry.py", *ARGUMENTS)
    assert settings_of(command)["spark.pyspark.driver.python"] == "./environment/bin/python"
    unset = client_command(LauncherSettings(), spec, LAUNCH, ROOT, "e")
    assert settings_of(unset)["spark.pyspark.driver.python"] == sys.executable


def test_yarn_does_not_wait_begins_once_and_is_tagged(spec: Spec) -> None:
    command = yarn_command(SETTINGS, spec, LAUNCH, ROOT, "/x/driver_entry.py")
    assert (flag(command, "--master"), flag(command, "--deploy-mode")) == ("yarn", "cluster")
    assert command[-9:] == ("/x/driver_entry.py", *ARGUMENTS)
    conf = settings_of(command)
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert conf["spark.yarn.maxAppAttempts"] == "1"
    assert conf["spark.yarn.tags"] == f"tidegate-{LAUNCH.nonce}"
    assert conf["spark.archives"] == "hdfs:///env.tar.gz#environment"
    assert conf["spark.pyspark.python"] == "./environment/bin/python"
    assert storage_options_from(conf["spark.yarn.appMasterEnv.TIDEGATE_STORAGE_OPTIONS"]) == spec.storage_options


def test_what_the_user_sets_on_yarn_stands_beside_what_tidegate_needs(spec: Spec) -> None:
    given = {
        "spark.yarn.tags": "team-a",
        "spark.yarn.maxAppAttempts": "2",
        "spark.yarn.submit.waitAppCompletion": "true",
        "spark.pyspark.python": "python3.12",
        "spark.submit.pyFiles": "hdfs:///extra.zip",
    }
    conf = settings_of(yarn_command(SETTINGS, replace(spec, spark_conf=given), LAUNCH, ROOT, "e"))
    assert conf["spark.yarn.tags"] == f"team-a,tidegate-{LAUNCH.nonce}"
    assert conf["spark.yarn.maxAppAttempts"] == "2"
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert conf["spark.pyspark.python"] == "python3.12"
    assert conf["spark.submit.pyFiles"] == "hdfs:///extra.zip"


def on_kubernetes(spec: Spec, **conf: str) -> Spec:
    return replace(spec, master="k8s://https://host:6443", spark_conf=conf)


def test_kubernetes_names_the_pod_and_takes_everything_from_the_image(spec: Spec) -> None:
    given = on_kubernetes(
        spec,
        **{
            "spark.kubernetes.container.image": "repo/tidegate:1",
            "spark.kubernetes.driver.secretKeyRef.S": "store:secret",
            "spark.kubernetes.driver.pod.name": "mine",
        },
    )
    command = kubernetes_command(SETTINGS, given, LAUNCH, ROOT)
    assert (flag(command, "--master"), flag(command, "--deploy-mode")) == ("k8s://https://host:6443", "cluster")
    assert command[-9:] == ("local:///opt/tidegate/driver_entry.py", *ARGUMENTS)
    conf = settings_of(command)
    assert conf["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert conf["spark.kubernetes.driver.pod.name"] == "tidegate-flights-2-3-01234567"
    assert conf["spark.kubernetes.container.image"] == "repo/tidegate:1"
    assert conf["spark.kubernetes.driver.secretKeyRef.S"] == "store:secret"
    assert storage_options_from(conf["spark.kubernetes.driverEnv.TIDEGATE_STORAGE_OPTIONS"]) == spec.storage_options


def test_an_image_of_the_driver_alone_will_do(spec: Spec) -> None:
    given = on_kubernetes(spec, **{"spark.kubernetes.driver.container.image": "repo/tidegate:1"})
    assert kubernetes_command(SETTINGS, given, LAUNCH, ROOT)
    with pytest.raises(OptionError, match=r"no container image.*Set spark.kubernetes.container.image"):
        kubernetes_command(SETTINGS, on_kubernetes(spec), LAUNCH, ROOT)


def test_no_secret_and_no_reference_to_one_is_on_a_command_line(spec: Spec) -> None:
    image = {"spark.kubernetes.container.image": "i", **spec.spark_conf}
    for command in (
        client_command(SETTINGS, spec, LAUNCH, ROOT, "e"),
        yarn_command(SETTINGS, spec, LAUNCH, ROOT, "e"),
        kubernetes_command(SETTINGS, on_kubernetes(spec, **image), LAUNCH, ROOT),
    ):
        assert "spark.hadoop.fs.s3a.secret" not in settings_of(command)


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn-cluster", "k8s"])
def test_a_cluster_launcher_refuses_another_clusters_master(spec: Spec, master: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be used with the launcher yarn.*Set master to yarn"):
        yarn_command(SETTINGS, replace(spec, master=master), LAUNCH, ROOT, "e")
    with pytest.raises(OptionError, match=r"cannot be used with the launcher kubernetes.*k8s://"):
        kubernetes_command(SETTINGS, replace(spec, master=master), LAUNCH, ROOT)


@pytest.mark.parametrize("job_id", ["flights", "Flights_of.2026", "x" * 128, "7-", "___9"])
def test_a_pods_name_is_a_host_name_and_another_for_every_launch(job_id: str) -> None:
    """RFC 1123: 63 characters, lower case, letters, digits and dashes."""
    name = pod_name(job_id, LAUNCH)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    others = [replace(LAUNCH, attempt=4), replace(LAUNCH, spec=3), replace(LAUNCH, nonce="f" * 32)]
    assert len({name, *(pod_name(job_id, other) for other in others)}) == 4


def test_an_applications_id_is_found_in_spark_submits_words() -> None:
    words = "INFO Client: Application report for application_1700000000000_0012 (state: ACCEPTED)"
    assert yarn_application(words) == "application_1700000000000_0012"
    assert yarn_application("Total number of applications:0") is None


def test_the_drivers_program_needs_nothing_beside_it() -> None:
    """It is copied into images and containers as one file."""
    source = Path(driver_entry.__file__).read_text(encoding="utf-8")
    imported = {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert imported == {"runpy"}
    (module,) = re.findall(r'run_module\("([\w.]+)"', source)
    assert importlib.util.find_spec(module) is not None
