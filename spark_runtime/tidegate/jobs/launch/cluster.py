"""What launchers of a cluster have in common: spark-submit in cluster mode, and the cluster's own answers afterwards.

spark-submit ends once the driver is submitted. When whoever runs it dies before it has recorded what became of it, the
launch's record alone finds the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from tidegate.errors import EnvironmentProblemError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launch.launcher import LauncherSetting, LauncherSettings
from tidegate.jobs.launch.programs import Answer, Run, run_program
from tidegate.jobs.launches import record_launch
from tidegate.jobs.records import Launch, Spec

SUBMIT_LIMIT_S = 600.0
"""How long spark-submit may take to hand a driver over: it uploads what the driver needs, seconds."""
STATUS_TIMEOUT_S = 60.0
"""How long the cluster may take to answer a question, seconds."""
TAIL = 2000
"""How much of a program's words an error shows, characters."""


class ClusterLauncher:
    """The settings, and handing a driver over to the cluster by spark-submit."""

    kind: ClassVar[str] = ""
    settings: ClassVar[tuple[LauncherSetting, ...]] = ()
    runs_on_this_host: ClassVar[bool] = False

    def __init__(self, settings: LauncherSettings, run: Run = run_program) -> None:
        self._settings, self._run = settings, run

    def _record(
        self, job: JobDirectory, spec: Spec, attempt: int | None, command: Callable[[Launch], Sequence[str]]
    ) -> Launch:
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
                remedy="Correct what it says, and launch again",
            )
        return answer


def no_answer(who: str, answer: Answer) -> EnvironmentProblemError:
    """The error for a cluster that does not answer a question."""
    return EnvironmentProblemError(
        f"{who} did not answer",
        cause=answer.text[-TAIL:].strip(),
        remedy="Look whether the cluster can be reached from here",
    )
