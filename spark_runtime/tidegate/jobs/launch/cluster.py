"""Common parts of cluster launchers: spark-submit in cluster mode, and the cluster's answers afterwards.

spark-submit ends when the driver is submitted. If the launching process dies before it has recorded the driver, the
driver can be found by the launch's record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.driver_secrets import require_driver_secrets
from tidegate.jobs.launch.launcher import LauncherSetting, LauncherSettings
from tidegate.jobs.launch.programs import Answer, Run, run_program
from tidegate.jobs.launches import record_launch
from tidegate.jobs.records import Launch, Spec

SUBMIT_LIMIT_S = 600.0
"""Timeout of spark-submit, in seconds. It uploads the files of the driver."""
STATUS_TIMEOUT_S = 60.0
"""Timeout of a request to the cluster, in seconds."""
TAIL = 2000
"""Length of a program's output in an error message, in characters."""


class ClusterLauncher:
    """Base of the launchers that hand a driver over to a cluster with spark-submit."""

    kind: ClassVar[str] = ""
    settings: ClassVar[tuple[LauncherSetting, ...]] = ()
    runs_on_this_host: ClassVar[bool] = False

    def __init__(self, settings: LauncherSettings, run: Run = run_program) -> None:
        self._settings, self._run = settings, run

    def _record(
        self, job: JobDirectory, spec: Spec, attempt: int | None, command: Callable[[Launch], Sequence[str]]
    ) -> Launch:
        # A cluster starts the driver, without the environment of this process.
        where = f"job {spec.job_id}, submission {spec.number}, launcher {self.kind}"
        require_driver_secrets(spec.secrets, {}, where=where)
        return record_launch(
            job.store, job.layout, spec.number, launcher=self.kind, command=command, host=spec.master, attempt=attempt
        )

    def _submit(self, spec: Spec, launch: Launch) -> Answer:
        answer = self._run(launch.command, SUBMIT_LIMIT_S)
        if answer.code != 0:
            raise EnvironmentProblemError(
                f"spark-submit ended with exit code {answer.code}",
                where=f"job {spec.job_id}, launcher {self.kind}, master {spec.master}",
                cause=answer.text[-TAIL:].strip(),
                remedy="Fix the problem that spark-submit reports, and start or restore the job again",
            )
        return answer


def no_answer(who: str, answer: Answer) -> EnvironmentProblemError:
    """Return the error for a cluster that does not answer a request."""
    return EnvironmentProblemError(
        f"{who} did not answer",
        cause=answer.text[-TAIL:].strip(),
        remedy="Check that this host can reach the cluster, and repeat the command",
    )
