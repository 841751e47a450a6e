"""Operator that deletes files that no submission, snapshot or claim of a job needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow_tidegate.arguments import NOTHING, duration, flag, whole_number
from airflow_tidegate.failures import airflow_failures
from airflow_tidegate.launchers.cli_process import run_cli_verb
from airflow_tidegate.operators.secrets_operator import SecretsOperator
from airflow_tidegate.task_identity import issued_by
from airflow_tidegate.waits.job_waits import Payload
from tidegate.units import format_duration

MAX_LOGGED = 100
"""Most deleted paths that the task's log lists; the rest is counted."""


class TidegateCollectGarbageOperator(SecretsOperator):
    """Delete files left behind by dead drivers, for running jobs and for jobs that have ended.

    These are checkpoints that never completed or are no longer needed, shared files that no checkpoint uses, unread
    rows of DataFrames, and code that no submission names (S2.3). Savepoints, and everything that is still referenced,
    stay.

    The work is done by a short process on the worker, `tidegate gc`, with the connection's interpreter. It may be
    killed at any point; a retry and a clear continue with the rest. XCom: `{"job_id", "dry_run", "collected",
    "in_sinks", "in_sources", "freed_bytes", "too_young", "kept_back", "rows_kept", "sinks_kept"}`: the third to the
    seventh are numbers, the next two are texts or None, the last is a list of texts.

    Args:
        older_than: delete only files written at least this long ago; longer than the job's `checkpoint_timeout`.
        sinks: also delete what sinks no longer need: data staged before a fresh start, commit markers. Runs the pinned
            pipeline's code in that process, which needs the sinks' packages, network and secrets.
        sources: also delete what the sources of ended jobs own, such as replication slots, if no snapshot needs it.
            Runs code like `sinks`.
        keep: number of newest recovery points to keep; None: the job's option `retained_checkpoints`.
        dry_run: delete nothing, but report what would be deleted.
        timeout: time limit of the process.
    """

    template_fields: Sequence[str] = (
        *SecretsOperator.template_fields,
        "older_than",
        "keep",
        "sinks",
        "sources",
        "only_tell",
    )

    def __init__(
        self,
        *,
        older_than: timedelta | str = "1 h",
        keep: int | str | None = None,
        sinks: bool | str = False,
        sources: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.keep = keep
        self.sinks = sinks
        self.sources = sources
        self.only_tell = dry_run

    def execute(self, context: Any) -> Payload:
        """Run the process, and log its report."""
        with airflow_failures():
            words = ["--older-than", format_duration(duration(self.older_than, "older_than"))]
            if self.keep not in NOTHING:
                words += ["--keep", str(whole_number(self.keep, "keep", 1))]
            if flag(self.sinks, "sinks"):
                words.append("--sinks")
            if flag(self.sources, "sources"):
                words.append("--sources")
            if flag(self.only_tell, "dry_run"):
                words.append("--dry-run")
            timeout = self.wait_limit()
            limit_s = None if timeout is None else timeout.total_seconds()
            found = run_cli_verb(
                self.job_root(),
                "gc",
                self.job_id,
                words,
                asked_by=issued_by(context),
                timeout_s=limit_s,
                secrets=self.secrets,
            )
        in_sinks, in_sources = found.get("in_sinks", []), found.get("in_sources", [])
        collected = [*found["collected"], *in_sinks, *in_sources]
        for one in collected[:MAX_LOGGED]:
            self.log.info("job %s: %s, %s, %s bytes", self.job_id, one["why"], one["path"], one["size_bytes"])
        if len(collected) > MAX_LOGGED:
            self.log.info("job %s: and %d more, which are not listed here", self.job_id, len(collected) - MAX_LOGGED)
        for name in ("kept_back", "rows_kept"):
            if found.get(name):
                self.log.info("job %s: %s: %s", self.job_id, name, found[name])
        for kept in found.get("sinks_kept", []):
            self.log.info("job %s: data of connectors that stays: %s", self.job_id, kept)
        counts = {"collected": len(found["collected"]), "in_sinks": len(in_sinks), "in_sources": len(in_sources)}
        return {**found, **counts}
