"""One attempt of a batch job on Spark: stages on a thread of their own, decisions on the driver's loop."""

from __future__ import annotations

import json
import queue
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import InheritableThread

from tidegate.connectors.split_documents import assign_splits
from tidegate.coordinator import events as ev
from tidegate.coordinator.batch_commit import BatchCommit, StagedReport
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.errors import FencedError, TidegateError, UnclearAnswerError
from tidegate.plan.batch_plan import BatchPlan
from tidegate.spark.application import SparkApplication
from tidegate.spark.barrier_stage import first_line
from tidegate.spark.batch.rdd_frames import RddFrames
from tidegate.spark.batch.spark_frames import SparkFrames
from tidegate.spark.batch.stage_compiler import compile_batch, needs_spark_sql
from tidegate.spark.batch.stage_task import sum_counters
from tidegate.spark.batch.worker_task import WorkerPlace, counters_of_stages, failure_in
from tidegate.spark.driver_loop.spark_job import SparkJob, Splits
from tidegate.subtask.failure_codes import failure_code

TICK_S = 0.1
"""Longest time, in seconds, between two rounds of the driver's loop."""
CANCEL_WAIT_S = 60.0
"""Time, in seconds, that cancelled stages may take to end."""
CANCEL_AGAIN_S = 1.0
"""Interval, in seconds, at which they are cancelled again."""
NO_SNAPSHOTS = (
    "a batch job takes no checkpoints or savepoints, and cannot be stopped with a savepoint, because it commits once, "
    "at its end. Cancel the job, or wait for its end"
)
NO_VERDICT = "a batch job has nothing to approve or reject before its end"


class BatchRun:
    """A run as the supervisor's loop uses it. `outcome` is set when it is over."""

    def __init__(self, answer: Callable[[ev.CommandAnswer], None]) -> None:
        self._answer = answer
        self.outcome: RunEnded | RunFailed | None = None

    def handle_command(self, request: ev.RunRequest) -> None:
        """Refuse the command, because batch mode has no barriers (S8.1)."""
        if request.request_id is not None:
            text = NO_VERDICT if isinstance(request, ev.Verdict) else NO_SNAPSHOTS
            self._answer(ev.CommandAnswer(request.request_id, False, "batch_mode", text))

    def fail(self, failure: RunFailed) -> None:
        """Fail the run; the first failure is the root cause."""
        if self.outcome is None:
            self.outcome = failure


@dataclass(frozen=True)
class StageExecution:
    """Execution of the stages of one run; blocks."""

    application: SparkApplication
    job: SparkJob
    plan: BatchPlan
    splits: Splits
    place: WorkerPlace

    def run(self) -> list[StagedReport]:
        """Run every stage, and return what the sinks have staged."""
        parallelism = self.plan.parallelism
        frames: SparkFrames | RddFrames = (
            SparkFrames(self.application.session, self.place, parallelism)
            if needs_spark_sql(self.plan)
            else RddFrames(self.application.context, self.place, parallelism)
        )
        try:
            ends: Any = compile_batch(self.plan, assign_splits(self.splits, parallelism), frames)
            reports = [StagedReport.from_json(json.loads(text)) for text in frames.run_and_collect(ends)]
            counted = counters_of_stages(self.job.store, self.place.checkpoint_path)
            # All counters are summed in the end, so any report may carry the counters of stages without a sink.
            return [*reports[:-1], replace(reports[-1], counters=sum_counters([reports[-1].counters, *counted]))]
        finally:
            frames.close()


class BatchAttempt:
    """One run. `run` blocks until it is over and returns its outcome; `wake` may be called from any thread.

    Attributes:
        job_run: the run that receives commands.
    """

    def __init__(
        self,
        application: SparkApplication,
        job_run: BatchRun,
        commit: BatchCommit,
        calculation: Callable[[], Sequence[StagedReport]] | None,
        *,
        run_id: str,
        splits: Splits,
        on_running: Callable[[], None],
        on_reports: Callable[[Sequence[StagedReport]], None],
        on_round: Callable[[], None],
    ) -> None:
        """Create the run.

        Args:
            calculation: runs the stages; None: all data is staged and only has to be committed.
            on_round: called at every round of the loop, at least each TICK_S and after `wake`.
        """
        self.job_run = job_run
        self._context: Any = application.context
        self._commit = commit
        self._calculation = calculation
        self._group = f"tidegate-{run_id}"
        self._run_id = run_id
        self._splits = splits
        self._on_running, self._on_reports, self._on_round = on_running, on_reports, on_round
        self._done: queue.Queue[Any] = queue.Queue()
        self._is_complete = calculation is None
        self._slots: dict[int, Any] = {}

    def run(self) -> RunEnded | RunFailed:
        """Run the stages, complete the checkpoint, commit. Raises FencedError if a newer generation runs the job."""
        started = time.monotonic()
        self._on_running()
        if self._calculation is not None:
            reports = self._run_on_thread(self._calculation)
            if self.job_run.outcome is None:
                self._on_reports(reports)
                self._commit.complete(reports, self._splits, int((time.monotonic() - started) * 1000))
                self._is_complete = True
        if self.job_run.outcome is None and self._run_on_thread(self._published, goes_on=True):
            left = self._commit.committed()
            self.job_run.outcome = RunEnded(None, self._commit.checkpoint_id, self._commit.path, None, left)
        assert self.job_run.outcome is not None, "the run is over"
        return self.job_run.outcome

    def wake(self) -> None:
        """Start a round of the loop now."""
        self._done.put(None)

    def shut_down(self, reason: str) -> list[ev.SnapshotRequest]:
        """End a failed run: its claimed checkpoint is aborted."""
        if not self._is_complete:
            self._commit.abort(reason)
        return []

    def _published(self) -> bool:
        self._commit.publish()
        return True

    def _run_on_thread(self, work: Callable[[], Any], *, goes_on: bool = False) -> Any:
        """Return the result of `work`, which runs on a thread of its own while the loop continues.

        Returns None, with `outcome` set, if the work or the run fails.

        Args:
            goes_on: the work may finish although the run has failed, if it does so in time. It is a commit: readers
                must not find half of it, and a cancelled job has no successor that completes it.
        """
        thread: Any = InheritableThread(target=self._work, args=(work,), name=self._group, daemon=True)
        thread.start()
        while self.job_run.outcome is None:
            try:
                done = self._done.get(timeout=TICK_S)
            except queue.Empty:
                done = None
            if done is not None:
                thread.join()
                return self._accepted_reports(*done)
            self._on_round()
        if goes_on:
            thread.join(CANCEL_WAIT_S)
        by_s = time.monotonic() + CANCEL_WAIT_S
        while thread.is_alive():  # repeated, because between two Spark jobs there is none to cancel
            self._context.cancelJobGroup(self._group)
            thread.join(CANCEL_AGAIN_S)
            if time.monotonic() >= by_s:
                break
        return self._late_reports() if goes_on else None

    def _late_reports(self) -> Any:
        while not self._done.empty():
            done = self._done.get()
            if done is not None:
                return self._accepted_reports(*done)
        return None

    def _work(self, work: Callable[[], Any]) -> None:
        try:
            self._context.setJobGroup(self._group, f"tidegate run {self._run_id}", interruptOnCancel=True)
            self._done.put((work(), None))
        # Every error must reach the loop, which waits for a result.
        except BaseException as error:
            self._done.put((None, error))

    def _accepted_reports(self, result: Any, error: BaseException | None) -> Any:
        if error is None:
            return result
        if isinstance(error, FencedError | UnclearAnswerError) or not isinstance(error, Exception):
            raise error
        self.job_run.fail(failure_of(error))
        return None


def failure_of(error: Exception) -> RunFailed:
    """Return the root cause of an error of the stages or the commit."""
    text = str(error)
    found = failure_in(text)
    if found is not None:
        return found
    if isinstance(error, TidegateError):
        return RunFailed(text, code=failure_code(error))
    trace = "".join(traceback.format_exception(error))
    return RunFailed(f"Spark: {first_line(error)}", traceback=trace)
