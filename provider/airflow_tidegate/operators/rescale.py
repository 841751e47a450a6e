"""Operator that changes the parallelism of a running job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_tidegate.arguments import whole_number
from airflow_tidegate.failures import Failure
from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.operators.step_operator import PendingWait
from airflow_tidegate.operators.upgrade import TidegateUpgradeJobOperator
from airflow_tidegate.waits.job_waits import Payload, result_summary
from tidegate.errors import OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec


class TidegateRescaleJobOperator(TidegateUpgradeJobOperator):
    """Suspend a job and resume from that savepoint at another parallelism; succeed at its first completed checkpoint.

    Code, arguments and other options stay the same (S5.5). If the job completes no checkpoint, the old parallelism is
    restored, and the task fails with the reason. TidegateUpgradeJobOperator describes retries and clears.

    A job that already has the parallelism is not changed. XCom: `{"job_id", "spec", "generation", "status",
    "parallelism", "rescaled_from", "savepoint", "checkpoint_id", "path"}`; the last three are null if there was nothing
    to do.

    Args:
        parallelism: new number of slots; at most the job's `max_parallelism`.
        first_checkpoint_timeout, stop_timeout, on_kill, timeout: as for an upgrade.
    """

    template_fields: Sequence[str] = (*TidegateUpgradeJobOperator.template_fields, "parallelism")

    def __init__(self, *, parallelism: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parallelism = parallelism

    def advance(
        self, client: JobClient, root: JobRoot, context: Any, found: Payload | None, failure: Failure | None
    ) -> PendingWait | Payload:
        """Do the next step; nothing for a job that already runs at this parallelism and was not stopped for it."""
        view = client.view()
        facts = self._facts(client, context, lost=False)
        if facts.new is None and facts.old is None and not view.is_terminal:
            before = client.spec(facts.before)
            if before.options["parallelism"] == self._wanted():
                nothing = dict.fromkeys(("savepoint", "checkpoint_id", "path"))
                return {**result_summary(view), "upgraded_from": facts.before, **nothing}
        return super().advance(client, root, context, found, failure)

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """Return the XCom with the old and the new parallelism."""
        before = client.spec(found.pop("upgraded_from")).options["parallelism"]
        return {**found, "parallelism": self._wanted(), "rescaled_from": before}

    def new_options(self, like: Spec) -> JobOptions:
        """Return the options of `like` with the new parallelism."""
        return JobOptions.from_mapping({**like.options, "parallelism": self._wanted()})

    def check_arguments(self, like: Spec) -> None:
        """Check that only the parallelism changes. Raises OptionError."""
        given = (self.pipeline, self.arguments, self.options, self.master, self.spark_conf)
        if any(value is not None for value in given):
            raise OptionError(
                "the task changes more than the parallelism, but a rescale can change only the parallelism",
                where=f"Airflow task {self.task_id}",
                remedy="Use TidegateUpgradeJobOperator for other changes",
            )
        most = JobOptions.from_mapping(like.options).max_parallelism
        if self._wanted() > most:
            raise OptionError(
                f"parallelism={self._wanted()} is more than the job's max_parallelism, {most}",
                where=f"Airflow task {self.task_id}",
                cause="max_parallelism is the number of key groups of the job's state, and never changes",
                remedy=f"Use at most {most}",
            )

    def _wanted(self) -> int:
        return whole_number(self.parallelism, "parallelism", 1)
