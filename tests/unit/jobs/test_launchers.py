"""Ways to bring a driver up: what each starts, how it is found again, and who gives way to whom."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_contract import ScriptedDriver

from tidegate.errors import AlreadyExistsError, EnvironmentProblemError, FencedError, OptionError
from tidegate.jobs import os_processes
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.kubernetes import KubernetesLauncher
from tidegate.jobs.launch.launcher import DriverState, LauncherSettings
from tidegate.jobs.launch.launcher_registry import check_launcher_kind, find_running_driver, make_launchers
from tidegate.jobs.launch.local import LocalLauncher
from tidegate.jobs.launch.programs import Answer, run_program
from tidegate.jobs.launch.spark_submit import SparkSubmitLauncher
from tidegate.jobs.launch.yarn import YarnLauncher
from tidegate.jobs.launches import (
    find_local_driver,
    local_driver_death,
    read_launch,
    record_launch,
    refuse_if_superseded,
)
from tidegate.jobs.process_environment import storage_options_from, storage_options_text
from tidegate.jobs.records import Launch, Spec

SPARK_SUBMIT = """#!{python}
# Stands in for spark-submit in client mode: the driver's program is a child, and it ends with it.
import subprocess, sys
entry = next(i for i, word in enumerate(sys.argv) if word.endswith("driver_entry.py"))
sys.exit(subprocess.run([sys.executable, "{program}", *sys.argv[entry:]]).returncode)
"""
PROGRAM = """
import os, signal, sys
def end(*_):
    print("a savepoint, then the end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(sys.argv[1:], flush=True)
open(os.environ["READY"], "w").close()
signal.pause()
"""
APPLICATION = "application_1700000000000_0007"


def a_launch(spec: int = 1, attempt: int = 1, nonce: str = "0123456789abcdef", **more: Any) -> Launch:
    return Launch(spec, attempt, "yarn", "yarn", "", (), nonce, **more)


class Cluster:
    """Answers of a cluster's programs, and what was asked."""

    def __init__(self, *answers: tuple[str, Answer]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> Answer:
        self.asked.append(tuple(command))
        word, answer = self.answers.pop(0)
        assert word in command, f"{word} was to be asked, not {command}"
        return answer


def submitted(client: JobClient, spec: Spec, master: str, **conf: str) -> Spec:
    """The submission, with another master and settings."""
    return replace(spec, master=master, spark_conf=conf)


# ---------------------------------------------------------------- who gives way to whom


def test_a_driver_whose_launch_was_given_up_before_it_began_does_not_begin(client: JobClient, spec: Spec) -> None:
    """S9.2: whoever recorded a newer launch takes this one for dead."""
    record_launch(client.store, client.layout, spec.number, launcher="local")
    refuse_if_superseded(client.store, client.layout, 1, 1)
    record_launch(client.store, client.layout, spec.number, launcher="local")
    with pytest.raises(FencedError, match=r"launch 1 of submission 1 was replaced.*launch 2 of submission 1"):
        refuse_if_superseded(client.store, client.layout, 1, 1)
    refuse_if_superseded(client.store, client.layout, 1, 2)


def test_a_driver_of_an_older_submission_does_not_begin_once_a_newer_one_was_launched(
    client: JobClient, spec: Spec
) -> None:
    """S9.2."""
    record_launch(client.store, client.layout, spec.number, launcher="local", attempt=5)
    record_launch(client.store, client.layout, 2, launcher="local")
    with pytest.raises(FencedError, match="launch 1 of submission 2 is recorded"):
        refuse_if_superseded(client.store, client.layout, 1, 5)


def test_a_driver_that_nobody_recorded_may_begin(client: JobClient, spec: Spec) -> None:
    refuse_if_superseded(client.store, client.layout, 1, 1)


def test_a_running_driver_ends_once_a_newer_launch_has_fenced_and_one_that_starts_late_does_not_begin(
    client: JobClient, spec: Spec
) -> None:
    """S9.2: the fence is by (submission, launch)."""
    first = ScriptedDriver(client, spec, launch=1)
    first.status("RUNNING")
    second = ScriptedDriver(client, spec, launch=3)
    for act in (first.generation_log.check, lambda: first.status("RUNNING")):
        with pytest.raises(FencedError, match=r"generation 1 was replaced.*submission 1, launch 3"):
            act()
    with pytest.raises(FencedError, match=r"launch 2 of submission 1 was replaced"):
        ScriptedDriver(client, spec, launch=2)
    second.status("RUNNING")


def test_a_launch_of_one_attempt_is_made_once(client: JobClient, spec: Spec) -> None:
    assert record_launch(client.store, client.layout, spec.number, launcher="x", attempt=3).attempt == 3
    with pytest.raises(AlreadyExistsError):
        record_launch(client.store, client.layout, spec.number, launcher="x", attempt=3)
    assert record_launch(client.store, client.layout, spec.number, launcher="x").attempt == 4


# ---------------------------------------------------------------- processes of this machine


class Machine:
    """A spark-submit that starts a stand-in for the driver."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "program.py").write_text(PROGRAM)
        self.spark_submit = folder / "bin" / "spark-submit"
        self.spark_submit.parent.mkdir()
        self.spark_submit.write_text(SPARK_SUBMIT.format(python=sys.executable, program=folder / "program.py"))
        self.spark_submit.chmod(0o755)
        self.ready = folder / "ready"
        os.mkfifo(self.ready)
        monkeypatch.setenv("READY", str(self.ready))
        self.settings = LauncherSettings("spark-submit", python="/opt/python", spark_submit=str(self.spark_submit))
        self.launched: list[tuple[SparkSubmitLauncher, Launch]] = []

    def launch(self, client: JobClient, spec: Spec) -> tuple[SparkSubmitLauncher, Launch]:
        """Launch, and wait until the program is up."""
        launcher = SparkSubmitLauncher(self.settings)
        launch = launcher.launch(client, spec)
        self.launched.append((launcher, launch))
        self.ready.read_bytes()
        return launcher, launch


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    for launcher, launch in made.launched:
        launcher.kill(launch, graceful=False)


def gone(launch: Launch) -> None:
    """Wait until the process is."""
    assert launch.pid is not None
    while os_processes.is_running(launch.pid, launch.process_started):
        os.sched_yield()


@pytest.fixture
def local_client(tmp_path: Path) -> JobClient:
    return JobClient(str(tmp_path / "root"), "flights")


@pytest.fixture
def cluster_spec(local_client: JobClient, pipeline: str) -> Spec:
    return local_client.submit(pipeline=pipeline, master="spark://host:7077", spark_conf={"spark.executor.cores": "1"})


def test_spark_submit_is_found_again_asked_for_a_graceful_end_and_read(
    machine: Machine, local_client: JobClient, cluster_spec: Spec
) -> None:
    launcher, launch = machine.launch(local_client, cluster_spec)
    again = JobClient(local_client.root, "flights")
    found = find_running_driver(again, cluster_spec, make_launchers(LauncherSettings()))
    assert found is not None and found.launch == launch and isinstance(found.launcher, SparkSubmitLauncher)
    assert find_local_driver(again.store, again.layout, cluster_spec.number) is not None
    assert found.launcher.kill(found.launch)
    gone(launch)
    assert launcher.log(launch).splitlines()[-1] == "a savepoint, then the end"
    assert launcher.state(launch) is DriverState.GONE
    assert find_running_driver(again, cluster_spec, make_launchers(LauncherSettings())) is None
    assert local_driver_death(again.store, again.layout, cluster_spec.number) == launch
    assert not launcher.kill(launch)


def test_spark_submit_killed_at_once_takes_its_program_along(
    machine: Machine, local_client: JobClient, cluster_spec: Spec
) -> None:
    launcher, launch = machine.launch(local_client, cluster_spec)
    assert launch.pid is not None
    ((program, started),) = os_processes.child_processes(launch.pid, "driver_entry.py")
    assert launcher.kill(launch, graceful=False)
    gone(launch)
    gone(replace(launch, pid=program, process_started=started))
    assert "savepoint" not in launcher.log(launch)


def test_the_launch_is_there_before_the_process_and_a_second_attempt_of_its_number_is_refused(
    machine: Machine, local_client: JobClient, cluster_spec: Spec
) -> None:
    launcher, launch = machine.launch(local_client, cluster_spec)
    assert read_launch(local_client.store, local_client.layout, 1, 1) == launch
    with pytest.raises(AlreadyExistsError):
        launcher.launch(local_client, cluster_spec, attempt=1)
    assert local_client.launches() == [(1, 1)]


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:6443"])
def test_spark_submit_in_client_mode_is_not_for_clusters_that_run_the_driver(
    local_client: JobClient, cluster_spec: Spec, master: str
) -> None:
    with pytest.raises(OptionError, match=r"cannot be used with the launcher spark-submit.*yarn or kubernetes"):
        SparkSubmitLauncher(LauncherSettings()).launch(local_client, replace(cluster_spec, master=master))
    assert local_client.launches() == []


def test_a_spark_submit_that_is_not_there_gives_a_clear_error(local_client: JobClient, cluster_spec: Spec) -> None:
    settings = LauncherSettings(spark_submit="/no/such/spark-submit")
    with pytest.raises(EnvironmentProblemError, match=r"cannot be started.*/no/such/spark-submit"):
        SparkSubmitLauncher(settings).launch(local_client, cluster_spec)


def test_an_argument_that_no_process_can_be_given_is_a_clear_error(local_client: JobClient, cluster_spec: Spec) -> None:
    settings = LauncherSettings(spark_submit="/bin/true")
    spec = replace(cluster_spec, spark_conf={"a": "x\0y"})
    with pytest.raises(EnvironmentProblemError, match=r"cannot be started.*null byte"):
        SparkSubmitLauncher(settings).launch(local_client, spec)
    with pytest.raises(EnvironmentProblemError, match=r"cannot be run.*null byte"):
        run_program(("/bin/true", "x\0y"), 1.0)


@pytest.mark.parametrize("found_by", ["SPARK_HOME", "PATH", "python", "own python"])
def test_spark_submit_is_looked_for_where_spark_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found_by: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path) if found_by == "SPARK_HOME" else "/nowhere")
    monkeypatch.setenv("PATH", str(tmp_path / "bin") if found_by == "PATH" else "/nowhere")
    python = str(tmp_path / "bin" / "python") if found_by == "python" else "./environment/bin/python"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python") if "own" in found_by else "/nowhere/python")
    assert LauncherSettings(python=python).found_spark_submit() == str(machine.spark_submit)


def test_a_process_of_another_machine_is_unknown_and_not_touched(local_client: JobClient, cluster_spec: Spec) -> None:
    started = os_processes.process_start_time(os.getpid())
    elsewhere = Launch(1, 1, "local", "elsewhere", "", (), "n", pid=os.getpid(), process_started=started)
    launcher = LocalLauncher(LauncherSettings())
    assert launcher.state(elsewhere) is DriverState.UNKNOWN
    assert not launcher.kill(elsewhere, graceful=False)


# ---------------------------------------------------------------- YARN


def test_yarn_hands_the_driver_over_and_records_its_application(client: JobClient, spec: Spec) -> None:
    cluster = Cluster(("--deploy-mode", Answer(0, f"INFO YarnClientImpl: Submitted application {APPLICATION}\n")))
    launch = YarnLauncher(LauncherSettings("yarn"), cluster).launch(client, submitted(client, spec, "yarn"))
    assert (launch.external_id, launch.host, launch.pid) == (APPLICATION, "yarn", None)
    assert read_launch(client.store, client.layout, 1, 1) == launch
    assert cluster.asked == [launch.command]


def test_a_yarn_application_is_found_by_its_tag_when_its_launcher_died_before_it_recorded_it(
    client: JobClient, spec: Spec
) -> None:
    def dies(command: Sequence[str], limit_s: float) -> Answer:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        YarnLauncher(LauncherSettings(), dies).launch(client, submitted(client, spec, "yarn"))
    recorded = read_launch(client.store, client.layout, 1, 1)
    cluster = Cluster(
        ("-appTags", Answer(0, f"Total number of applications:1\n{APPLICATION}\ttidegate flights\tSPARK\n")),
        ("-status", Answer(0, "Application Report :\n\tState : RUNNING\n\tFinal-State : UNDEFINED\n")),
    )
    found = find_running_driver(client, spec, {"yarn": YarnLauncher(LauncherSettings(), cluster)})
    assert found is not None and found.launch == recorded
    assert f"tidegate-{recorded.nonce}" in cluster.asked[0]
    assert cluster.asked[1] == ("yarn", "application", "-status", APPLICATION)


@pytest.mark.parametrize(
    ("report", "state"),
    [
        ("\tState : ACCEPTED\n", DriverState.RUNNING),
        ("\tState : RUNNING\n\tFinal-State : UNDEFINED\n", DriverState.RUNNING),
        ("\tState : FINISHED\n\tFinal-State : SUCCEEDED\n", DriverState.GONE),
        ("\tState : KILLED\n", DriverState.GONE),
        (f"Application with id '{APPLICATION}' doesn't exist in RM or Timeline Server.", DriverState.GONE),
        ("Connection refused", DriverState.UNKNOWN),
    ],
)
def test_what_yarn_says_of_an_application(report: str, state: DriverState) -> None:
    launcher = YarnLauncher(LauncherSettings(), Cluster(("-status", Answer(0, report))))
    assert launcher.state(a_launch(external_id=APPLICATION)) is state


def test_a_yarn_that_does_not_answer_is_an_error_and_an_unknown_application_is_gone() -> None:
    """As `Launcher.state` says: UNKNOWN would let the caller launch a second driver after a silence."""
    refused = Cluster(("-status", Answer(255, "java.net.ConnectException: Connection refused")))
    with pytest.raises(EnvironmentProblemError, match=r"YARN did not answer.*Connection refused"):
        YarnLauncher(LauncherSettings(), refused).state(a_launch(external_id=APPLICATION))
    gone = Cluster(("-status", Answer(255, f"Application with id '{APPLICATION}' doesn't exist in RM.")))
    assert YarnLauncher(LauncherSettings(), gone).state(a_launch(external_id=APPLICATION)) is DriverState.GONE


def test_a_yarn_application_is_killed_and_read_by_its_id() -> None:
    cluster = Cluster(
        ("-status", Answer(0, "\tState : RUNNING\n")),
        ("-kill", Answer(0, "Killed application")),
        ("logs", Answer(0, "the driver's words")),
    )
    launcher = YarnLauncher(LauncherSettings(extra={"yarn": "/opt/hadoop/bin/yarn"}), cluster)
    launch = a_launch(external_id=APPLICATION)
    assert launcher.kill(launch)
    assert launcher.log(launch) == "the driver's words"
    assert cluster.asked[1] == ("/opt/hadoop/bin/yarn", "application", "-kill", APPLICATION)
    assert cluster.asked[2][:4] == ("/opt/hadoop/bin/yarn", "logs", "-applicationId", APPLICATION)


def test_a_refused_submission_tells_spark_submits_last_words(client: JobClient, spec: Spec) -> None:
    cluster = Cluster(("--deploy-mode", Answer(1, "Queue 'x' does not exist")))
    with pytest.raises(EnvironmentProblemError, match=r"exit code 1.*launcher yarn.*Queue 'x' does not exist"):
        YarnLauncher(LauncherSettings(), cluster).launch(client, submitted(client, spec, "yarn"))


def test_yarn_that_does_not_answer_is_said_so() -> None:
    cluster = Cluster(("-appTags", Answer(1, "no route to host")))
    with pytest.raises(EnvironmentProblemError, match=r"YARN did not answer.*no route"):
        YarnLauncher(LauncherSettings(), cluster).state(a_launch())


# ---------------------------------------------------------------- Kubernetes


def a_pod_spec(spec: Spec, **conf: str) -> Spec:
    settings = {"spark.kubernetes.container.image": "repo/tidegate:1", **conf}
    return replace(spec, master="k8s://https://host:6443", spark_conf=settings)


def test_kubernetes_records_namespace_and_pod(client: JobClient, spec: Spec) -> None:
    cluster = Cluster(("--deploy-mode", Answer(0, "")))
    given = a_pod_spec(spec, **{"spark.kubernetes.namespace": "jobs"})
    launch = KubernetesLauncher(LauncherSettings(), cluster).launch(client, given)
    assert launch.external_id == f"jobs:tidegate-flights-1-1-{launch.nonce[:8]}"
    assert f"spark.kubernetes.driver.pod.name={launch.external_id.partition(':')[2]}" in launch.command


def test_a_pod_is_found_by_its_name_when_its_launcher_died_before_it_recorded_it(client: JobClient, spec: Spec) -> None:
    def dies(command: Sequence[str], limit_s: float) -> Answer:
        raise KeyboardInterrupt

    given = a_pod_spec(spec, **{"spark.kubernetes.namespace": "jobs", "spark.kubernetes.context": "blue"})
    with pytest.raises(KeyboardInterrupt):
        KubernetesLauncher(LauncherSettings(), dies).launch(client, given)
    nonce = read_launch(client.store, client.layout, 1, 1).nonce
    cluster = Cluster(("--status", Answer(0, "Application status (driver): \n\t pod name: p\n\t phase: Pending\n")))
    settings = LauncherSettings(spark_submit="submit")
    found = find_running_driver(client, spec, {"kubernetes": KubernetesLauncher(settings, cluster)})
    assert found is not None
    assert cluster.asked == [
        ("submit", "--status", f"jobs:tidegate-flights-1-1-{nonce[:8]}")
        + ("--master", "k8s://https://host:6443", "--conf", "spark.kubernetes.context=blue")
    ]


@pytest.mark.parametrize(
    ("code", "report", "state"),
    [
        (0, "Application status (driver): \n\t phase: Running\n", DriverState.RUNNING),
        (0, "Application status (driver): \n\t phase: Succeeded\n", DriverState.GONE),
        (0, "Application status (driver): \n\t phase: Failed\n", DriverState.GONE),
        (0, "Application not found.", DriverState.GONE),
        (0, "Unable to find application.", DriverState.GONE),
    ],
)
def test_what_spark_submit_says_of_a_pod(code: int, report: str, state: DriverState) -> None:
    launcher = KubernetesLauncher(LauncherSettings(), Cluster(("--status", Answer(code, report))))
    assert launcher.state(a_launch(external_id="jobs:pod")) is state


def test_kubernetes_that_does_not_answer_is_said_so() -> None:
    launcher = KubernetesLauncher(LauncherSettings(), Cluster(("--status", Answer(1, "Unauthorized"))))
    with pytest.raises(EnvironmentProblemError, match=r"Kubernetes did not answer.*Unauthorized"):
        launcher.state(a_launch(external_id="jobs:pod"))


@pytest.mark.parametrize("graceful", [True, False])
def test_a_pod_is_deleted_with_its_grace_period_or_at_once(graceful: bool) -> None:
    cluster = Cluster(("--status", Answer(0, " phase: Running\n")), ("--kill", Answer(0, "")))
    launch = a_launch(external_id="jobs:pod")
    launcher = KubernetesLauncher(LauncherSettings(spark_submit="submit"), cluster)
    assert launcher.kill(launch, graceful=graceful)
    at_once = ("--conf", "spark.kubernetes.appKillPodDeletionGracePeriod=0")
    assert cluster.asked[1] == ("submit", "--kill", "jobs:pod", "--master", "yarn") + (() if graceful else at_once)
    assert launcher.log(launch) == "kubectl logs --namespace jobs pod"


# ---------------------------------------------------------------- the rest


def test_a_program_that_is_not_there_or_does_not_end_is_told() -> None:
    with pytest.raises(EnvironmentProblemError, match=r"/no/such/yarn cannot be run.*name its path"):
        run_program(("/no/such/yarn",), 1.0)
    with pytest.raises(EnvironmentProblemError, match=r"did not end within 0.2 s"):
        run_program((sys.executable, "-c", "import signal; signal.pause()"), 0.2)
    answer = run_program((sys.executable, "-c", "import sys; print('a'); sys.exit(3)"), 60.0)
    assert answer == Answer(3, "a\n")


@pytest.mark.parametrize("options", [{}, {"key": "secret:env/KEY", "client_kwargs": {"endpoint_url": 'x"$y\\`z`'}}])
def test_storage_options_pass_through_a_shell_script_unquoted(options: dict[str, Any]) -> None:
    text = storage_options_text(options)
    assert not set(text) & set("\"'$`\\ ")
    assert storage_options_from(text) == options
    assert storage_options_from(json.dumps(options)) == options


def test_no_storage_options_are_none() -> None:
    assert storage_options_from("") == {}


def test_an_unknown_launcher_is_refused_with_those_there_are() -> None:
    assert check_launcher_kind("yarn", "connection c") == "yarn"
    with pytest.raises(OptionError, match=r"no launcher 'mesos'.*connection c.*spark-submit"):
        check_launcher_kind("mesos", "connection c")


def test_a_driver_is_looked_for_by_the_launcher_that_launched_it(client: JobClient, spec: Spec) -> None:
    """Whatever the connection says by now; of an unknown launcher, and of other submissions, none is found."""
    record_launch(client.store, client.layout, spec.number, launcher="of-the-future")
    record_launch(client.store, client.layout, 2, launcher="yarn")
    assert find_running_driver(client, spec, {"yarn": YarnLauncher(LauncherSettings(), Cluster())}) is None
