"""The driver's loop for batch mode: the loop of streaming mode with another kind of run (S8.1)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.connectors.found_schema import found_schemas
from tidegate.connectors.interface import ReadBySpark
from tidegate.connectors.split_documents import split_to_json
from tidegate.coordinator.batch_commit import BatchCommit, StagedReport, refuse_restore, was_completed_before
from tidegate.coordinator.supervision import supervision_events as sv
from tidegate.errors import PipelineError, StoreError
from tidegate.plan.batch_plan import BatchPlan, plan_batch
from tidegate.plan.graph_document import graph_document
from tidegate.spark.application import SlotWait, SparkApplication, start_application
from tidegate.spark.batch.stage_compiler import needs_spark_sql
from tidegate.spark.batch.stage_task import sum_counters
from tidegate.spark.batch.worker_task import WorkerPlace
from tidegate.spark.driver_loop.batch_attempt import BatchAttempt, BatchRun, StageExecution
from tidegate.spark.driver_loop.spark_job import SparkJob, Splits
from tidegate.spark.driver_loop.streaming_loop import StreamingLoop


class NoSlotWait(SlotWait):
    """Does not wait for slots, because Spark's stages wait for executors themselves."""

    def poll(self) -> bool:
        """Return True at once."""
        return True


class BatchLoop(StreamingLoop):
    """Runs attempts until the job ends."""

    def __init__(
        self,
        job: SparkJob,
        terminated: threading.Event,
        *,
        new_application: Callable[..., SparkApplication] = start_application,
        new_attempt: Callable[..., Any] = BatchAttempt,
    ) -> None:
        """Create the loop. Raises PipelineError for pipelines that batch mode does not support; the message names the
        reason.
        """
        super().__init__(
            job, terminated, new_application=new_application, new_slot_wait=NoSlotWait, new_attempt=new_attempt
        )
        options = job.options
        allowed = options.allow_mode_dependent
        refuse_restore(job)
        self._plan: BatchPlan = plan_batch(
            job.graph, options.parallelism, options.max_parallelism, allow_mode_dependent=allowed
        )
        self._found: Splits = {}

    def _moves_rows_in_spark(self) -> bool:
        return needs_spark_sql(self._plan)

    def _validate_before_start(self) -> None:
        """Report sources that cannot be read, and sinks that cannot be written, before the driver waits for Spark."""
        decisions = self._job.log.read()
        # A completed submission only has to be committed, and its own output may exist already.
        if was_completed_before(decisions, self._job.spec.number) is None:
            try:
                self._job.check_fresh_start(decisions)
            except StoreError as error:
                raise PipelineError(error.what, where=error.where, cause=error.cause, remedy=error.remedy) from error
        self._found = {
            node.uid: [split_to_json(split) for split in node.source.discover(self._plan.parallelism)]
            for node in self._plan.graph.nodes
            if node.source is not None and not isinstance(node.source, ReadBySpark)
        }
        self._show(())
        self._job.retire_garbage()

    def _make_attempt(self, application: SparkApplication) -> tuple[Any, sv.StopPoint | None]:
        job = self._job
        run_id = f"{next(self._runs):06d}{secrets.token_hex(4)}"
        run = BatchRun(lambda answer: self._inbox.put(lambda: sv.RunAnswered(answer, run.outcome is not None)))
        commit = BatchCommit(job, run_id)
        done = was_completed_before(job.log.read(), job.spec.number)
        calculation = None
        if done is None:
            job.finish_quarantine_moves(None, run_id)
            commit.claim()
            place = WorkerPlace(
                root=job.root,
                storage_options=job.storage_options,
                job_id=job.spec.job_id,
                spec=job.spec.number,
                generation=job.generation_log.generation,
                run_id=run_id,
                digest=self._plan.digest,
                schemas=found_schemas(graph_document(job.graph)),
                checkpoint_id=commit.checkpoint_id,
                checkpoint_path=commit.path,
                now_ms=self._now_ms(),
                log_format=job.options.log_format,
            )
            stages = StageExecution(application, job, self._plan, self._found, place)

            def calculate() -> Sequence[StagedReport]:
                commit.clean()
                return stages.run()

            calculation = calculate
        else:
            commit.checkpoint_id, commit.path = done
        started = sv.RunStarted(run_id, None, done is not None)
        attempt = self._new_attempt(
            application,
            run,
            commit,
            calculation,
            run_id=run_id,
            splits=self._found,
            on_running=lambda: self._inbox.put(lambda: started),
            on_reports=self._show,
            on_round=self._take_events,
        )
        return attempt, None

    def _show(self, reports: Sequence[StagedReport]) -> None:
        """Show sources and counters of operators in the status hint."""
        counters = sum_counters(one.counters for one in reports)
        sources: Mapping[str, Any] = {
            node.uid: {"boundedness": "bounded"} for node in self._plan.graph.nodes if node.source is not None
        }
        self._job.hint.update(sources=sources, counters=counters)
