"""Operator that checks whether a pipeline can restore a snapshot, before a job is stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow_tidegate.arguments import NOTHING, flag, whole_number
from airflow_tidegate.failures import AirflowFailException, airflow_failures
from airflow_tidegate.operators.job_operator import JobOperator
from airflow_tidegate.operators.restore import restore_from
from airflow_tidegate.waits.job_waits import Payload
from tidegate.errors import OptionError
from tidegate.jobs.client.preflight import graph_from, preflight_restore
from tidegate.jobs.restore.compatibility import RestoreFinding

OnMisfit = Literal["fail", "return"]


class TidegateCheckRestoreOperator(JobOperator):
    """Check whether a pipeline can restore a snapshot.

    It compares uids, states and their columns, max_parallelism, finished operators, and drains (S5.5, S6.4, S7.5). It
    only reads the job directory: no driver, Spark or pipeline is needed. It cannot check whether sources still find
    their positions; `tidegate snapshot check` does. It changes nothing, so a retry and a clear check again. XCom:
    `{"fits", "findings", "path", "spec"}`; a finding is `{"code", "verdict", "uid", "state", "what", "cause",
    "remedy"}`.

    Args:
        from_: the snapshot: "latest", a checkpoint id, a savepoint's path or URL, or the XCom of a savepoint,
            checkpoint or stop task.
        graph: the pipeline's graph: path or URL of a file written by `tidegate snapshot check --write-graph`, or its
            document; None: the graph pinned by the driver of the job's newest submission.
        parallelism: parallelism of the restore; None: the graph's own.
        allow_non_restored_state: state without an operator may be dropped (S5.5).
        allow_drained: a drain's savepoint may be restored (S7.5).
        on_misfit: "fail" the Airflow task with every reason, or "return" the verdict, for a branch.
    """

    template_fields: Sequence[str] = (
        *JobOperator.template_fields,
        "from_",
        "graph",
        "parallelism",
        "allow_non_restored_state",
        "allow_drained",
        "on_misfit",
    )

    def __init__(
        self,
        *,
        from_: str | int | Mapping[str, Any] = "latest",
        graph: str | Mapping[str, Any] | None = None,
        parallelism: int | str | None = None,
        allow_non_restored_state: bool | str = False,
        allow_drained: bool | str = False,
        on_misfit: OnMisfit = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_ = from_
        self.graph = graph
        self.parallelism = parallelism
        self.allow_non_restored_state = allow_non_restored_state
        self.allow_drained = allow_drained
        self.on_misfit = on_misfit

    def execute(self, context: Any) -> Payload:
        """Check the snapshot. Raises AirflowFailException with every reason if it does not fit."""
        with airflow_failures():
            if self.on_misfit not in ("fail", "return"):
                raise OptionError(
                    f"on_misfit={self.on_misfit!r} is unknown",
                    where=f"Airflow task {self.task_id}",
                    remedy='Use "fail" or "return"',
                )
            root = self.job_root()
            restore = restore_from(
                self.from_,
                allow_non_restored_state=flag(self.allow_non_restored_state, "allow_non_restored_state"),
                on_committed_after="refuse",
                allow_drained=flag(self.allow_drained, "allow_drained"),
            )
            found = preflight_restore(
                root.client(self.job_id),
                restore,
                None if self.graph in NOTHING else graph_from(self.graph or "", root.storage_options),
                parallelism=None if self.parallelism in NOTHING else whole_number(self.parallelism, "parallelism", 1),
            )
        for finding in found.verdict.findings:
            self.log.info("job %s, snapshot %s: %s: %s", self.job_id, found.path, finding.verdict, _words(finding))
        if not found.verdict.fits and self.on_misfit == "fail":
            reasons = "; ".join(map(_words, found.verdict.refused))
            raise AirflowFailException(
                f"job {self.job_id}: the pipeline cannot be restored from snapshot {found.path}: {reasons}"
            )
        return {**found.verdict.to_json(), "path": found.path, "spec": found.spec}


def _words(finding: RestoreFinding) -> str:
    return ". ".join(text for text in (": ".join(filter(None, (finding.what, finding.cause))), finding.remedy) if text)
