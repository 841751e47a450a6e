"""Drivers that YARN or Kubernetes runs: spark-submit in cluster mode, and the cluster's own answers afterwards.

spark-submit ends once the driver is submitted. When whoever runs it dies before it has recorded what became of it, the
launch's record alone finds the driver: a YARN application by its tag, a pod by its name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch import cluster_commands as commands
from tidegate.jobs.launch import driver_entry
from tidegate.jobs.launch.launcher import DriverState, LauncherSettings
from tidegate.jobs.launches import record_launch, record_process
from tidegate.jobs.records import Launch, Spec

SUBMIT_LIMIT_S = 600.0
"""How long spark-submit may take to hand a driver over: it uploads what the driver needs, seconds."""
ASK_LIMIT_S = 60.0
"""How long the cluster may take to answer a question, seconds."""
TAIL = 2000
"""How much of a program's words an error shows, characters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said: exit code, and standard output and error together."""

    code: int
    text: str


Run = Callable[[Sequence[str], float], Answer]
"""Runs a command with a limit in seconds."""


def run_program(command: Sequence[str], limit_s: float) -> Answer:
    """Run it here. Raises EnvironmentProblemError when it is not there, or takes longer than `limit_s`."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        raise EnvironmentProblemError(
            f"{command[0]} cannot be run",
            cause=str(error),
            remedy="Install it here, or name its path in the connection",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblemError(
            f"{' '.join(command[:3])} did not end within {limit_s:g} s",
            remedy="Look whether the cluster can be reached from here",
        ) from error
    return Answer(done.returncode, done.stdout)


class _ClusterLauncher:
    """What both have in common."""

    kind: ClassVar[str] = ""

    def __init__(self, settings: LauncherSettings, run: Run = run_program) -> None:
        self._settings, self._run = settings, run

    def _record(
        self, job: JobDirectory, spec: Spec, attempt: int | None, command: Callable[[Launch], Sequence[str]]
    ) -> Launch:
        return record_launch(
            job.store, job.layout, spec.number, launcher=self.kind, command=command, host=spec.master, attempt=attempt
        )

    def _hand_over(self, spec: Spec, launch: Launch) -> Answer:
        answer = self._run(launch.command, SUBMIT_LIMIT_S)
        if answer.code != 0:
            raise EnvironmentProblemError(
                f"spark-submit ended with exit code {answer.code}",
                where=f"job {spec.job_id}, launcher {self.kind}, master {spec.master}",
                cause=answer.text[-TAIL:].strip(),
                remedy="Correct what it says, and launch again",
            )
        return answer


class YarnLauncher(_ClusterLauncher):
    """The driver in YARN's ApplicationMaster; `external_id`: the application's id."""

    kind: ClassVar[str] = "yarn"

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        entry = os.path.abspath(driver_entry.__file__)
        launch = self._record(
            job, spec, attempt, lambda made: commands.yarn_command(self._settings, spec, made, job.root, entry)
        )
        answer = self._hand_over(spec, launch)
        application = commands.yarn_application(answer.text) or self._by_tag(launch)
        if application is None:
            raise EnvironmentProblemError(
                "spark-submit named no application",
                where=f"job {spec.job_id}",
                cause=answer.text[-TAIL:].strip(),
                remedy=f"Look for the tag {commands.yarn_tag(launch)} in YARN",
            )
        return record_process(job.store, job.layout, replace(launch, external_id=application))

    def state(self, launch: Launch) -> DriverState:
        """See `Launcher.state`."""
        application = self._application(launch)
        if application is None:
            return DriverState.GONE
        return commands.yarn_state(self._ask(commands.yarn_status_command(self._settings, application)))

    def log(self, launch: Launch) -> str:
        """See `Launcher.log`."""
        application = self._application(launch)
        if application is None:
            return ""
        return self._ask(commands.yarn_log_command(self._settings, application))

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`: YARN knows no graceful end. Send the job a stop first."""
        application = self._application(launch)
        if application is None or self.state(launch) is DriverState.GONE:
            return False
        return self._run(commands.yarn_kill_command(self._settings, application), ASK_LIMIT_S).code == 0

    def _application(self, launch: Launch) -> str | None:
        return launch.external_id or self._by_tag(launch)

    def _by_tag(self, launch: Launch) -> str | None:
        answer = self._run(commands.yarn_list_command(self._settings, launch), ASK_LIMIT_S)
        if answer.code != 0:
            raise _silent("YARN", answer)
        return commands.yarn_application(answer.text)

    def _ask(self, command: Sequence[str]) -> str:
        return self._run(command, ASK_LIMIT_S).text


class KubernetesLauncher(_ClusterLauncher):
    """The driver in a pod of its own; `external_id`: `namespace:pod`."""

    kind: ClassVar[str] = "kubernetes"

    def launch(self, job: JobDirectory, spec: Spec, attempt: int | None = None) -> Launch:
        """See `Launcher.launch`."""
        launch = self._record(
            job, spec, attempt, lambda made: commands.kubernetes_command(self._settings, spec, made, job.root)
        )
        self._hand_over(spec, launch)
        return record_process(job.store, job.layout, replace(launch, external_id=commands.kubernetes_id(spec, launch)))

    def state(self, launch: Launch) -> DriverState:
        """See `Launcher.state`."""
        answer = self._run(self._asking("--status", launch), ASK_LIMIT_S)
        state = commands.kubernetes_state(answer.text)
        if state is DriverState.UNKNOWN and answer.code != 0:
            raise _silent("Kubernetes", answer)
        return state

    def log(self, launch: Launch) -> str:
        """See `Launcher.log`: spark-submit reads no logs, so this says how to."""
        namespace, _, pod = _submission(launch).partition(":")
        return f"kubectl logs --namespace {namespace} {pod}"

    def kill(self, launch: Launch, *, graceful: bool = True) -> bool:
        """See `Launcher.kill`. Graceful: the pod has its grace period. It is Spark's JVM that gets the SIGTERM, so no
        savepoint comes of it; send the job a stop first."""
        if self.state(launch) is DriverState.GONE:
            return False
        return self._run(self._asking("--kill", launch, {} if graceful else _AT_ONCE), ASK_LIMIT_S).code == 0

    def _asking(self, flag: str, launch: Launch, more: dict[str, str] | None = None) -> Sequence[str]:
        conf = {**_given_conf(launch), **(more or {})}
        return commands.kubernetes_ask_command(self._settings, flag, launch.host, _submission(launch), conf)


_AT_ONCE = {"spark.kubernetes.appKillPodDeletionGracePeriod": "0"}


def _given_conf(launch: Launch) -> dict[str, str]:
    """The settings in a launch's command line: what it was launched with, whatever the connection says by now."""
    words = launch.command
    pairs = [words[i + 1].partition("=") for i in range(len(words) - 1) if words[i] == "--conf"]
    return {name: value for name, _, value in pairs}


def _submission(launch: Launch) -> str:
    """`namespace:pod`, also of a launch that nothing was recorded of after its start."""
    if launch.external_id is not None:
        return launch.external_id
    conf = _given_conf(launch)
    return f"{conf.get(commands.NAMESPACE, commands.DEFAULT_NAMESPACE)}:{conf['spark.kubernetes.driver.pod.name']}"


def _silent(who: str, answer: Answer) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"{who} did not answer",
        cause=answer.text[-TAIL:].strip(),
        remedy="Look whether the cluster can be reached from here",
    )
