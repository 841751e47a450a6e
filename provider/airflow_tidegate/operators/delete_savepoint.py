"""Operator that deletes a savepoint which is no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow_tidegate.arguments import flag
from airflow_tidegate.failures import airflow_failures
from airflow_tidegate.operators.job_operator import JobOperator
from airflow_tidegate.operators.restore import restore_from
from airflow_tidegate.task_identity import issued_by
from airflow_tidegate.waits.job_waits import Payload
from tidegate.errors import OptionError
from tidegate.jobs.client.savepoint_deletion import delete_savepoint


class TidegateDeleteSavepointOperator(JobOperator):
    """Delete a savepoint of a job that runs or has ended (S2.3).

    Refused while a job of the connection's root may start from the savepoint, or its output waits for a verdict. If the
    savepoint is gone already, the task succeeds, so a retry and a clear change nothing. No driver is needed, and
    nothing is deferred. XCom: `{"job_id", "checkpoint_id", "path", "deleted", "existed", "size_bytes", "left",
    "dry_run"}`; `left`: files of others that stay in the folder.

    Args:
        savepoint: its number, its path or URL, or the XCom of a savepoint or stop task.
        also_latest: also if the job has ended and would be restored from it. The job cannot be restored from it then,
            and output of the savepoint that is not committed is lost.
        dry_run: check everything, and delete nothing.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "savepoint", "also_latest", "only_check")

    def __init__(
        self,
        *,
        savepoint: str | int | Mapping[str, Any],
        also_latest: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.also_latest = also_latest
        self.only_check = dry_run

    def execute(self, context: Any) -> Payload:
        """Delete the savepoint."""
        with airflow_failures():
            only_check = flag(self.only_check, "dry_run")
            found = delete_savepoint(
                self.job_root().client(self.job_id),
                self._named(),
                by=issued_by(context),
                also_latest=flag(self.also_latest, "also_latest"),
                dry_run=only_check,
            )
        if not found.existed:
            self.log.info("job %s: savepoint %s is gone already", self.job_id, found.path)
        for path in found.left:
            self.log.warning("job %s: a file of others stays in the folder of the savepoint: %s", self.job_id, path)
        return {"job_id": self.job_id, "dry_run": only_check, **asdict(found), "left": list(found.left)}

    def _named(self) -> str | int:
        """Return the number or the path of the savepoint. Raises OptionError."""
        named = restore_from(
            self.savepoint, allow_non_restored_state=False, on_committed_after="refuse", allow_drained=False
        )
        if named.path is not None:
            return named.path
        if named.checkpoint_id is not None:
            return named.checkpoint_id
        raise OptionError(
            f"savepoint={self.savepoint!r} names no savepoint",
            where=f"Airflow task {self.task_id}",
            remedy="Pass its number, its path or URL, or the XCom of the task that took it",
        )
