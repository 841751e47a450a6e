"""Secrets that a driver gets in its environment: whoever starts it has them, or starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tidegate.errors import EnvironmentProblemError, OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.driver_secrets import ConnectionField, check_driver_secrets, connection_field
from tidegate.jobs.launch.kubernetes import KubernetesLauncher
from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.launcher_registry import passes_environment
from tidegate.jobs.launch.local import LocalLauncher, launch_local
from tidegate.jobs.launch.spark_submit import SparkSubmitLauncher
from tidegate.jobs.launch.yarn import YarnLauncher
from tidegate.jobs.records import Spec

SECRET = "hunter2-quite-secret"
SECRETS = {"KAFKA_PASSWORD": "conn:my_kafka/password"}
PROGRAM = """#!/bin/sh
printf '%s' "$KAFKA_PASSWORD" > {folder}/found
printf '%s ' "$@" > {folder}/arguments
echo done > {folder}/done
"""
"""Stands in for Python and for spark-submit: it writes what it gets."""


@pytest.fixture
def submitted(tmp_path: Path, pipeline: str) -> tuple[JobClient, Spec]:
    client = JobClient(str(tmp_path / "root"), "flights")
    return client, client.submit(pipeline=pipeline, secrets=SECRETS)


@pytest.fixture
def program(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "done")
    path = tmp_path / "program"
    path.write_text(PROGRAM.format(folder=tmp_path))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("conn:my_kafka/password", ConnectionField("my_kafka", "password")),
        ("conn:team/my:kafka/login", ConnectionField("team/my:kafka", "login")),
        ("conn:k/extra/sasl.password", ConnectionField("k", "extra", "sasl.password")),
        ("conn:k/extra/a/password", ConnectionField("k", "extra", "a/password")),
    ],
)
def test_a_place_is_a_field_of_a_connection(place: str, expected: ConnectionField) -> None:
    assert connection_field("X", place) == expected


@pytest.mark.parametrize(
    "place", ["", "hunter2", "conn:", "conn:k", "conn:k/", "conn:k/extra/", "conn:/password", "conn:k/port", None, 7]
)
def test_anything_else_is_refused_without_being_shown(place: Any) -> None:
    with pytest.raises(OptionError, match=r"secrets\['X'\].*conn:ID/extra/KEY") as caught:
        check_driver_secrets({"X": place})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", [LocalLauncher, SparkSubmitLauncher])
def test_a_process_of_this_host_gets_the_values_and_no_record_has_them(
    submitted: tuple[JobClient, Spec], program: str, tmp_path: Path, kind: Callable[[LauncherSettings], Any]
) -> None:
    client, spec = submitted
    settings = LauncherSettings(python=program, spark_submit=program, environment={"KAFKA_PASSWORD": SECRET})
    assert SECRET not in repr(settings)
    launch = kind(settings).launch(client, replace(spec, master="local[1]"))
    (tmp_path / "done").read_text()
    assert (tmp_path / "found").read_text() == SECRET
    assert SECRET not in (tmp_path / "arguments").read_text() and SECRET not in repr(launch)
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert len(files) >= 3 and not any(SECRET.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("kind", [LocalLauncher, SparkSubmitLauncher, YarnLauncher, KubernetesLauncher])
def test_nothing_is_started_or_recorded_without_a_secret(
    submitted: tuple[JobClient, Spec], program: str, tmp_path: Path, kind: Callable[[LauncherSettings], Any]
) -> None:
    """An agent, or somebody who restores the job on the command line."""
    client, spec = submitted
    launcher = kind(LauncherSettings(python=program, spark_submit=program))
    master = {YarnLauncher: "yarn", KubernetesLauncher: "k8s://https://h"}.get(kind, "local[1]")  # type: ignore[call-overload]
    with pytest.raises(EnvironmentProblemError, match=r"KAFKA_PASSWORD \(conn:my_kafka/password\).*from Airflow"):
        launcher.launch(client, replace(spec, master=master))
    assert not client.launches() and not (tmp_path / "found").exists()


def test_a_process_that_has_the_variable_may_start_the_driver(
    submitted: tuple[JobClient, Spec], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, spec = submitted
    with pytest.raises(EnvironmentProblemError):
        launch_local(client, spec, python=program)
    monkeypatch.setenv("KAFKA_PASSWORD", "own")
    launch_local(client, spec, python=program)
    (tmp_path / "done").read_text()
    assert (tmp_path / "found").read_text() == "own"


def test_only_launchers_of_this_host_pass_an_environment() -> None:
    kinds = ("local", "spark-submit", "yarn", "kubernetes", "agent")
    assert [kind for kind in kinds if passes_environment(kind)] == ["local", "spark-submit"]


def test_a_launcher_of_another_package_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        kind: ClassVar[str] = "silent"

    monkeypatch.setattr("tidegate.jobs.launch.launcher_registry.launcher_class", lambda _: Silent)
    assert not passes_environment("silent")
