"""What the Test button of a connection finds of its launcher."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.launch.launcher import LauncherSettings, World
from tidegate.jobs.launch.launcher_checks import require_interpreter
from tidegate.jobs.launch.launcher_registry import check_launcher
from tidegate.jobs.launch.programs import Answer, connects

SUBMIT = sys.executable  # any program that is there
HAS_ALL = Answer(0, "")
IMAGE = {"spark.kubernetes.container.image": "repo/tidegate:1"}


def check(
    kind: str,
    master: str = "local[*]",
    *,
    answer: Answer | Exception = HAS_ALL,
    refuses: Mapping[str, str] | None = None,
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    yarn: str = SUBMIT,
    **settings: Any,
) -> tuple[list[str], list[str]]:
    """What is well, and what is not."""

    def run(command: object, limit_s: float) -> Answer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    world = World(run, lambda host, port: (refuses or {}).get(f"{host}:{port}"), environment or {})
    given = LauncherSettings(kind, **{"spark_submit": SUBMIT, "extra": {"yarn": yarn}, **settings})
    found = check_launcher(given, master, conf or {}, world)
    return [c.text for c in found if c.ok], [c.text for c in found if not c.ok]


def test_a_local_driver_needs_an_interpreter() -> None:
    assert check("local", python="/x/python") == (["python: /x/python has the packages for a driver"], [])
    lacking = Answer(1, "No module named 'tidegate'\n")
    assert "No module named 'tidegate'. Set \"python\" to" in check("local", answer=lacking)[1][0]
    nameless = Answer(1, "the package numba is not installed\n")
    assert check("local", python="/x/python", answer=nameless)[1] == [
        "python: /x/python cannot run a driver: the package numba is not installed. "
        'Set "python" to an interpreter with tidegate[spark], or run with it: pip install "tidegate[spark]"'
    ]
    missing = EnvironmentProblemError("/x/python cannot be run")
    assert check("local", answer=missing)[1] == ["python: /x/python cannot be run"]


def test_spark_submit_brings_its_own_pyspark() -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: Sequence[str], limit_s: float) -> Answer:
        asked.append(tuple(command))
        return HAS_ALL

    for kind in ("local", "spark-submit", "yarn", "agent"):
        require_interpreter(LauncherSettings(kind, python="/x/python"), World(run))
    assert [words[:2] + words[3:] for words in asked] == [("/x/python", "-c"), ("/x/python", "-c", "pyspark")]


def test_the_probe_of_an_interpreter_answers_for_this_one() -> None:
    require_interpreter(LauncherSettings("local"))
    with pytest.raises(EnvironmentProblemError, match="/no/such/python cannot be run"):
        require_interpreter(LauncherSettings("local", python="/no/such/python"))


def test_an_error_names_the_setting_of_the_caller() -> None:
    lacking = World(lambda command, limit_s: Answer(1, "no numba"))
    with pytest.raises(EnvironmentProblemError, match="Set --python to an interpreter"):
        require_interpreter(LauncherSettings("local"), lacking, setting="--python")


@pytest.mark.parametrize("launcher", ["local", "spark-submit"])
def test_one_master_that_answers_is_enough(launcher: str) -> None:
    master, refusals = "spark://a:1,b:2", {"a:1": "refused"}
    assert check(launcher, master, refuses=refusals)[0][-1] == "master b:2 answers"
    (problem,) = check(launcher, master, refuses={**refusals, "b:2": "no route"})[1]
    assert "a:1: refused; b:2: no route" in problem
    assert "is not an address" in check(launcher, "spark://a:port")[1][0]


def test_spark_submit_must_be_there() -> None:
    (problem,) = check("spark-submit", spark_submit="/no/such/spark-submit")[1]
    assert "/no/such/spark-submit does not exist" in problem


def test_yarn_needs_its_programs_its_configuration_and_its_master() -> None:
    environment = {"YARN_CONF_DIR": "/etc/hadoop"}
    assert check("yarn", "yarn", environment=environment)[1] == []
    assert "Set HADOOP_CONF_DIR or YARN_CONF_DIR" in check("yarn", "yarn")[1][0]
    assert "/no/yarn does not exist" in check("yarn", "yarn", environment=environment, yarn="/no/yarn")[1][0]
    assert check("yarn", "local[2]", environment=environment)[1] == [
        "master local[2] cannot be used with the launcher yarn"
    ]


@pytest.mark.parametrize(
    ("master", "place"),
    [("k8s://https://host:6443", "host:6443"), ("k8s://host", "host:443"), ("k8s://http://host", "host:80")],
)
def test_kubernetes_needs_its_api_server_and_an_image(master: str, place: str) -> None:
    well, wrong = check("kubernetes", master, conf=IMAGE)
    assert wrong == [] and f"master {place} answers" in well and "image repo/tidegate:1" in well
    assert "image: not set" in check("kubernetes", master)[1][0]
    assert place in check("kubernetes", master, conf=IMAGE, refuses={place: "no"})[1][0]
    assert "cannot be used with" in check("kubernetes", "yarn", conf=IMAGE)[1][0]


def test_an_agent_needs_nothing_here() -> None:
    well, wrong = check("agent", "k8s://https://host:6443", refuses={"host:6443": "no"})
    assert wrong == [] and "`tidegate agent` beside the cluster" in well[0]


def test_a_port_that_nobody_listens_at_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connects("127.0.0.1", port) is None
    assert connects("127.0.0.1", port) is not None
