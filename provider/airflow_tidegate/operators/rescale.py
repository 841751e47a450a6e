"""Give a running job another parallelism."""

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
    """Suspend a job and go on from that savepoint at another parallelism, with the same code, arguments and other
    options (S5.5); succeed at its first completed checkpoint. When it comes to none, go back to the old parallelism,
    and fail, saying what happened: see TidegateUpgradeJobOperator, which this is a case of, for retries and clears.

    A job that has the parallelism is left as it is. XCom: `{"job_id", "spec", "generation", "status", "parallelism",
    "rescaled_from", "savepoint", "checkpoint_id", "path"}`, the last three null when there was nothing to do.

    Args:
        parallelism: slots from now on; at most the job's `max_parallelism`.
        first_checkpoint_timeout, stop_timeout, on_kill, timeout: as for upgrading.
    """

    template_fields: Sequence[str] = (*TidegateUpgradeJobOperator.template_fields, "parallelism")

    def __init__(self, *, parallelism: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parallelism = parallelism

    def advance(
        self, client: JobClient, root: JobRoot, context: Any, found: Payload | None, failure: Failure | None
    ) -> PendingWait | Payload:
        """The next step; none for a job that runs at this parallelism and was not stopped for it."""
        view = client.view()
        facts = self._facts(client, context, lost=False)
        if facts.new is None and facts.old is None and not view.is_terminal:
            before = client.spec(facts.before)
            if before.options["parallelism"] == self._wanted():
                nothing = dict.fromkeys(("savepoint", "checkpoint_id", "path"))
                return {**result_summary(view), "upgraded_from": facts.before, **nothing}
        return super().advance(client, root, context, found, failure)

    def finish(self, client: JobClient, found: Payload) -> Payload:
        """What was, and what is."""
        before = client.spec(found.pop("upgraded_from")).options["parallelism"]
        return {**found, "parallelism": self._wanted(), "rescaled_from": before}

    def new_options(self, like: Spec) -> JobOptions:
        """Those of `like`, at the other parallelism."""
        return JobOptions.from_mapping({**like.options, "parallelism": self._wanted()})

    def check_arguments(self, like: Spec) -> None:
        """Nothing but the parallelism is another. Raises OptionError."""
        given = (self.pipeline, self.arguments, self.options, self.master, self.spark_conf)
        if any(value is not None for value in given):
            raise OptionError(
                "a rescaled job differs in nothing but its parallelism",
                where=f"Airflow task {self.task_id}",
                remedy="use TidegateUpgradeJobOperator for the rest",
            )
        most = JobOptions.from_mapping(like.options).max_parallelism
        if self._wanted() > most:
            raise OptionError(
                f"parallelism={self._wanted()} is more than the job's max_parallelism, {most}",
                where=f"Airflow task {self.task_id}",
                cause="its state has as many key groups, for its whole life",
                remedy=f"use {most} at most",
            )

    def _wanted(self) -> int:
        return whole_number(self.parallelism, "parallelism", 1)
