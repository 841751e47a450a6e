"""Delete what no submission, snapshot or claim of a job needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import NOTHING, duration, flag, whole_number
from airflow_tidegate.failures import airflow_failures
from airflow_tidegate.launchers.cli_process import run_cli_verb
from airflow_tidegate.operators.job_operator import JobOperator
from airflow_tidegate.task_identity import issued_by
from airflow_tidegate.waits.job_waits import Payload
from tidegate.units import format_duration

MAX_LOGGED = 100
"""Deleted paths that the task's log lists; the rest is counted."""


class TidegateCollectGarbageOperator(JobOperator):
    """Delete what dead drivers left: checkpoints that were never completed or are not needed any more, shared files
    that no checkpoint uses, rows of DataFrames that nobody reads, and code that no submission names (S2.3). Savepoints,
    and whatever can be reached, stay. For jobs that run and jobs that have ended.

    A short process of the worker does it, `tidegate gc`, with the connection's interpreter. It may be killed at any
    point; a retry and a clear go on with what is left. XCom: `{"job_id", "dry_run", "collected", "in_sinks",
    "freed_bytes", "too_young", "kept_back", "rows_kept", "sinks_kept"}`: numbers from the third to the sixth, then two
    texts or None, and a list of texts.

    Args:
        older_than: only what was last written so long ago; longer than the job's `checkpoint_timeout`.
        sinks: also what sinks keep for nobody: data staged before a fresh start, commit markers. Runs the pinned
            pipeline's code in that process, which needs the sinks' packages, network and secrets.
        keep: newest recovery points that stay; None: the job's option `retained_checkpoints`.
        dry_run: delete nothing, but tell what would go.
        timeout: how long it may take.
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "older_than", "keep", "sinks", "only_tell")

    def __init__(
        self,
        *,
        older_than: timedelta | str = "1 h",
        keep: int | str | None = None,
        sinks: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.keep = keep
        self.sinks = sinks
        self.only_tell = dry_run

    def execute(self, context: Any) -> Payload:
        """Run the process, and list what it says."""
        with airflow_failures():
            words = ["--older-than", format_duration(duration(self.older_than, "older_than"))]
            if self.keep not in NOTHING:
                words += ["--keep", str(whole_number(self.keep, "keep", 1))]
            if flag(self.sinks, "sinks"):
                words.append("--sinks")
            if flag(self.only_tell, "dry_run"):
                words.append("--dry-run")
            timeout = self.wait_limit()
            limit_s = None if timeout is None else timeout.total_seconds()
            found = run_cli_verb(
                self.job_root(), "gc", self.job_id, words, asked_by=issued_by(context), timeout_s=limit_s
            )
        in_sinks = found.get("in_sinks", [])
        collected = [*found["collected"], *in_sinks]
        for one in collected[:MAX_LOGGED]:
            self.log.info("job %s: %s, %s, %s bytes", self.job_id, one["why"], one["path"], one["size_bytes"])
        if len(collected) > MAX_LOGGED:
            self.log.info("job %s: and %d more", self.job_id, len(collected) - MAX_LOGGED)
        for name in ("kept_back", "rows_kept"):
            if found.get(name):
                self.log.info("job %s: %s: %s", self.job_id, name, found[name])
        for kept in found.get("sinks_kept", []):
            self.log.info("job %s: what sinks keep stays: %s", self.job_id, kept)
        return {**found, "collected": len(found["collected"]), "in_sinks": len(in_sinks)}
