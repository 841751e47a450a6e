"""The built-in launchers against the launchers' contract: real processes for this host's, stand-ins for clusters."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.launch import local
from tidegate.jobs.launch.kubernetes import KubernetesLauncher
from tidegate.jobs.launch.launcher import Launcher, LauncherSettings
from tidegate.jobs.launch.launcher_registry import BUILT_IN, launcher_class
from tidegate.jobs.launch.local import LocalLauncher
from tidegate.jobs.launch.programs import Answer
from tidegate.jobs.launch.spark_submit import SparkSubmitLauncher
from tidegate.jobs.launch.yarn import YarnLauncher
from tidegate.testing import LauncherConformance

STAND_IN = "import signal\nsignal.pause()\n"
SPARK_SUBMIT = "#!{python}\nimport signal\nsignal.pause()\n"


class TestLocalLauncher(LauncherConformance):
    @pytest.fixture(autouse=True)
    def _stand_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "stand_in.py").write_text(STAND_IN)
        monkeypatch.setattr(local, "DRIVER_MODULE", "stand_in")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make_launcher(self) -> Launcher:
        return LocalLauncher(LauncherSettings("local"))

    def make_broken_launcher(self) -> Launcher:
        return LocalLauncher(LauncherSettings("local", python="/no/such/python"))


class TestSparkSubmitLauncher(LauncherConformance):
    master = "spark://host:7077"

    @pytest.fixture(autouse=True)
    def _stand_in(self, tmp_path: Path) -> None:
        self.program = tmp_path / "spark-submit"
        self.program.write_text(SPARK_SUBMIT.format(python=sys.executable))
        self.program.chmod(0o755)

    def make_launcher(self) -> Launcher:
        return SparkSubmitLauncher(LauncherSettings("spark-submit", spark_submit=str(self.program)))

    def make_broken_launcher(self) -> Launcher:
        return SparkSubmitLauncher(LauncherSettings("spark-submit", spark_submit="/no/such/spark-submit"))


class Yarn:
    """Applications of a cluster: spark-submit submits one, `yarn` answers for them."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.states: dict[str, str] = {}

    def run(self, command: Sequence[str], limit_s: float) -> Answer:
        if "--deploy-mode" in command:
            application = f"application_{len(self.states)}_{secrets.randbelow(10**6)}"
            self.tags[_conf(command, "spark.yarn.tags")] = application
            self.states[application] = "RUNNING"
            return Answer(0, f"Submitted application {application}\n")
        word = command[-1]
        if "-appTags" in command:
            return Answer(0, f"Total number of applications\n{self.tags.get(word, '')}\n")
        if "-kill" in command:
            self.states[word] = "KILLED"
        return Answer(0, f"\tState : {self.states[word]}\n" if "-status" in command else "")


class TestYarnLauncher(LauncherConformance):
    master = "yarn"

    @pytest.fixture(autouse=True)
    def _cluster(self) -> None:
        self.cluster = Yarn()

    def make_launcher(self) -> Launcher:
        return YarnLauncher(LauncherSettings("yarn"), self.cluster.run)

    def make_broken_launcher(self) -> Launcher:
        return YarnLauncher(LauncherSettings("yarn"), _refuse)


class Pods:
    """Pods of a cluster, by `namespace:pod`."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def run(self, command: Sequence[str], limit_s: float) -> Answer:
        if "--deploy-mode" in command:
            self.running.add(f"default:{_conf(command, 'spark.kubernetes.driver.pod.name')}")
            return Answer(0, "")
        pod = command[2]
        if "--kill" in command:
            self.running.discard(pod)
        return Answer(0, "\t phase: Running\n" if pod in self.running else "Application not found.")


class TestKubernetesLauncher(LauncherConformance):
    master = "k8s://https://host:6443"
    spark_conf = {"spark.kubernetes.container.image": "repo/tidegate:1"}

    @pytest.fixture(autouse=True)
    def _cluster(self) -> None:
        self.cluster = Pods()

    def make_launcher(self) -> Launcher:
        return KubernetesLauncher(LauncherSettings("kubernetes"), self.cluster.run)

    def make_broken_launcher(self) -> Launcher:
        return KubernetesLauncher(LauncherSettings("kubernetes"), _refuse)


def test_every_built_in_kind_is_tested_here() -> None:
    suites = [found for found in globals().values() if isinstance(found, type) and found.__name__.startswith("Test")]
    tested = {f"{suite.__name__.removeprefix('Test')}" for suite in suites}
    assert {launcher_class(kind).__name__ for kind in BUILT_IN} == tested


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_built_in_launcher_is_registered_under_its_kind(kind: str) -> None:
    assert launcher_class(kind).kind == kind


def _conf(command: Sequence[str], name: str) -> str:
    (value,) = (word.partition("=")[2] for word in command if word.startswith(f"{name}="))
    return value


def _refuse(command: Sequence[str], limit_s: float) -> Answer:
    raise EnvironmentProblemError("the cluster cannot be reached")
