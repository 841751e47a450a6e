"""The driver's loop around `Supervisor`: takes events, and executes actions on log, Spark and runs (S9.1, S7.5, S7.7).

A second thread polls commands and signals and puts them into the inbox. During a run, the run's own loop is active and
calls this one at every round. So everything that touches a run or the supervisor is on one thread.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tidegate.clock import steady_clock
from tidegate.connectors.found_schema import found_schemas
from tidegate.connectors.interface import ReadBySpark
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpoint_mode import needs_final_checkpoint
from tidegate.coordinator.job_run import JobRun, RunFailed
from tidegate.coordinator.recovery.restore_point import RestorePoint, choose_restore_point, end_status
from tidegate.coordinator.split_search import searches_of
from tidegate.coordinator.supervision import supervision_events as sv
from tidegate.coordinator.supervision.supervisor import Supervisor
from tidegate.errors import (
    FencedError,
    SlotsUnavailableError,
    SnapshotError,
    SparkLostError,
    StoreError,
    TidegateError,
    UnclearAnswerError,
)
from tidegate.log_format import context
from tidegate.plan.graph_document import graph_document
from tidegate.spark.application import SlotWait, SparkApplication, start_application, ui_url
from tidegate.spark.driver_loop.attempt import Attempt, SlotState
from tidegate.spark.driver_loop.checkpoint_deletion import CANCELLED_WORKER_GRACE_S
from tidegate.spark.driver_loop.spark_job import SparkJob, Splits, assign_splits, fresh_splits
from tidegate.spark.driver_loop.status_hint import busy_operators, job_metrics, job_watermark_us

logger = logging.getLogger("tidegate.spark")

COMMAND_POLL_S = 0.5
"""Interval, in seconds, at which signals, and commands that could not be checked, are processed. New commands are
processed at once."""
SLOT_POLL_S = 0.5
"""Interval, in seconds, at which the driver queries the free slots of Spark while it waits."""

LateEvent = Callable[[], sv.SupervisionEvent]
"""Returns the event when it is processed."""


class StreamingLoop:
    """Runs attempts until the job ends."""

    def __init__(
        self,
        job: SparkJob,
        terminated: threading.Event,
        *,
        new_application: Callable[..., SparkApplication] = start_application,
        new_slot_wait: Callable[[SparkApplication, Any, Any], SlotWait] = SlotWait,
        new_attempt: Callable[..., Attempt] = Attempt,
    ) -> None:
        """Create the loop.

        Args:
            terminated: set by SIGTERM.
            new_application, new_slot_wait, new_attempt: create the objects that use Spark.
        """
        self._job = job
        self._terminated = terminated
        self._new_application, self._new_slot_wait, self._new_attempt = new_application, new_slot_wait, new_attempt
        self._now_ms = steady_clock()
        self._runs = itertools.count(1)
        self._supervisor = Supervisor(job.options)
        self._inbox: queue.Queue[LateEvent] = queue.Queue()
        self._attempt: Attempt | None = None
        self._late: list[ev.RunRequest] = []
        self._application: SparkApplication | None = None
        self._splits: Splits | None = None
        self._wants_slots = False
        self._slot_wait: SlotWait | None = None
        self._start: sv.StartRun | None = None
        self._exit_code: int | None = None
        self._over = threading.Event()
        job.retiring.grace_s = job.options.checkpoint_timeout.total_seconds() + CANCELLED_WORKER_GRACE_S

    def run(self) -> int:
        """Run until the job ends, and return the driver's exit code. Raises FencedError if a newer generation runs the
        job.
        """
        job = self._job
        job.hint.update(slots_needed=job.options.parallelism, slots_registered=0, restarts=0)
        self._feed(sv.BeginSupervision(end_status(job.generation_log.decisions, job.spec.number)))
        if self._exit_code is not None:
            return self._exit_code
        watcher = threading.Thread(target=self._watch, name="supervision", daemon=True)
        watcher.start()
        try:
            self._validate_before_start()
            self._take_events()
            while self._exit_code is None:
                self._run_round(self.application())
            return self._exit_code
        except (FencedError, UnclearAnswerError):
            raise
        except Exception as error:
            self._raise_if_spark_is_lost(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._over.set()
            job.desk.arrived.set()
            watcher.join(5.0)
            if self._application is not None:
                self._application.stop()

    def application(self) -> SparkApplication:
        """Return the job's Spark application, which is started at the first call."""
        if self._application is None:
            moves_rows = self._moves_rows_in_spark()
            self._application = self._new_application(self._job.spec, self._job.options, moves_rows=moves_rows)
            self._job.hint.update(spark_ui=ui_url(self._application))
        return self._application

    def _raise_if_spark_is_lost(self, cause: str) -> None:
        """Raise SparkLostError if the JVM has ended: its failures are none of the job. Args: cause: what was seen."""
        if self._application is not None and self._application.is_lost():
            raise SparkLostError(
                "the JVM of the driver has ended",
                where=f"job {self._job.spec.job_id}",
                cause=f"it was killed, for example because memory was short, or it failed; {cause}",
                remedy="A new driver continues the job from its latest recovery point. If this repeats, see the "
                "driver's log and the kernel's log of this machine",
            )

    def _moves_rows_in_spark(self) -> bool:
        """Return whether Spark's JVM processes rows of the job."""
        return any(isinstance(node.source, ReadBySpark) for node in self._job.graph.nodes)

    def _validate_before_start(self) -> None:
        """Report configuration errors, and sources that cannot be read, before the driver waits for Spark and slots.

        If the store does not answer now, the first run tries again, and fails if the store still does not answer
        (S9.1).
        """
        try:
            found = self._job.find_restore()
            self._splits = self._job.splits(found[1] if found else None)
            if found is not None:
                self._job.check_sources(*found)
        except UnclearAnswerError:
            raise
        except StoreError as error:
            logger.warning("the snapshot to restore could not be read; the first run tries again: %s", error)
            return
        self._job.retire_garbage()

    # ------------------------------------------------------------ the loop

    def _run_round(self, application: SparkApplication) -> None:
        """Do one round between runs, or a whole run."""
        if self._start is not None:
            # Cleared before the run, because events at the end of the run may set the next start.
            start, self._start = self._start, None
            self._feed(self._one_run(application, start.requests))
            return
        if self._wants_slots:
            self._poll_slots(application)
        self._take_events(self._pause_s())

    def _take_events(self, wait_s: float = 0.0) -> None:
        """Process events of the inbox, up to a StartRun; and a Tick when it is due."""
        while self._start is None and self._exit_code is None:
            try:
                event = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            except queue.Empty:
                break
            # Only the first event is awaited; the others are processed if they are there.
            wait_s = 0.0
            self._feed(event())
        wake_ms = self._supervisor.next_wake_ms()
        if self._start is None and wake_ms is not None and self._now_ms() >= wake_ms:
            self._feed(sv.Tick())

    def _pause_s(self) -> float:
        if self._start is not None or self._exit_code is not None:
            return 0.0
        wake_ms = self._supervisor.next_wake_ms()
        return SLOT_POLL_S if wake_ms is None else min(SLOT_POLL_S, max(0.001, (wake_ms - self._now_ms()) / 1000))

    def _feed(self, event: sv.SupervisionEvent) -> None:
        for action in self._supervisor.handle(event, self._now_ms()):
            self._carry_out(action)

    def _poll_slots(self, application: SparkApplication) -> None:
        job = self._job
        if self._slot_wait is None:
            self._slot_wait = self._new_slot_wait(application, job.spec, job.options)
        slot_wait = self._slot_wait
        try:
            there = slot_wait.poll()
        except SlotsUnavailableError as error:
            self._feed(sv.RunImpossible(RunFailed(str(error), code=error.code), error.exit_code, self._stop_point()))
            return
        finally:
            job.hint.update(slots_registered=slot_wait.offered)
        if there:
            self._feed(sv.SlotsAvailable())

    # ------------------------------------------------------------ actions

    def _carry_out(self, action: sv.SupervisionAction) -> None:  # noqa: C901, PLR0912 - one case per action
        job = self._job
        match action:
            case sv.WaitForSlots():
                self._wants_slots, self._slot_wait = True, None
            case sv.StartRun():
                self._wants_slots, self._start = False, action
            case sv.CheckGeneration():
                untold = job.generation_log.check_quietly()
                if untold is not None:
                    logger.warning(
                        "the decision log could not be checked for a newer driver; it is checked again: %s", untold
                    )
            case sv.DeliverToRun(request):
                self._deliver(self._run, request)
            case sv.JudgeStop(command_id):
                self._judge_stop(command_id)
            case sv.FailCurrentRun(failure):
                self._run.fail(failure)
            case sv.RecordStatus(status, data):
                if status == "RUNNING":
                    job.hint.update(run_id=data["run_id"])
                elif status == "RESTARTING":
                    job.hint.update(restarts=self._supervisor.restarts)
                job.status(status, **data)
            case sv.RecordFailure(failure):
                self._record(failure)
            case sv.AnswerCommand(answer):
                job.desk.answer(answer)
            case sv.AnswerAllOpen():
                job.desk.answer_all(action)
            case sv.DeleteCheckpoints():
                self._delete_checkpoints()
            case sv.EndDriver(exit_code):
                self._wants_slots, self._exit_code = False, exit_code

    def _judge_stop(self, command_id: str) -> None:
        """Judge a stop command. If the store does not answer, do nothing: the supervisor repeats the question."""
        try:
            wanted = self._job.desk.is_wanted(command_id, begun=self._supervisor.tries_again(command_id))
        except StoreError as error:
            logger.warning(
                "the store does not answer, so a stop command is checked again: %s",
                error,
                extra=context(command=command_id),
            )
            return
        self._enqueue(lambda: sv.StopJudged(command_id, wanted, self._stop_point(), self._latest()))

    def _deliver(self, run: JobRun, request: ev.RunRequest) -> None:
        """Pass a command to the run. A run with an outcome accepts no more commands, so the next run gets it."""
        if run.outcome is None:
            run.handle_command(request)
        else:
            self._late.append(request)

    @property
    def _run(self) -> JobRun:
        assert self._attempt is not None, "the supervisor uses a run only while there is one"
        return self._attempt.job_run

    def _record(self, failure: RunFailed) -> None:
        place = context(operator=failure.operator, subtask=failure.subtask)
        trace = f"\n{failure.traceback.rstrip()}" if failure.traceback else ""
        logger.error("the run of the job failed: %s%s", failure.message, trace, extra=place)
        self._job.generation_log.append(
            "failure",
            {
                "message": failure.message,
                "operator": failure.operator,
                "subtask": failure.subtask,
                "traceback": failure.traceback,
                "code": failure.code,
            },
        )

    def _delete_checkpoints(self) -> None:
        job = self._job
        try:
            job.delete_checkpoints()
        except (SnapshotError, StoreError) as error:
            logger.warning(
                "not all checkpoints in %s could be deleted; delete the rest yourself: %s",
                job.layout.checkpoints,
                error,
            )

    # ------------------------------------------------------------ one run

    def _one_run(
        self, application: SparkApplication, requests: Sequence[ev.RunRequest]
    ) -> sv.RunTornDown | sv.RunImpossible:
        """Run the job once. Blocks until the run is over; events are processed meanwhile."""
        try:
            wanted = [request for request in requests if self._is_wanted(request)]
            attempt, stop = self._make_attempt(application)
        except (FencedError, UnclearAnswerError):
            raise
        except StoreError as error:
            failure = RunFailed(f"the snapshot from which the run starts could not be read: {error}", code=error.code)
            return sv.RunTornDown(failure, tuple(requests), self._stop_point(), random.random(), self._latest())
        except TidegateError as error:
            return sv.RunImpossible(RunFailed(str(error), code=error.code), error.exit_code, self._stop_point())
        self._attempt = attempt
        again: list[ev.RunRequest] = []
        try:
            for request in wanted:
                self._deliver(attempt.job_run, request)
            outcome = attempt.run()
            if isinstance(outcome, RunFailed):
                self._raise_if_spark_is_lost(outcome.message)
                again += attempt.shut_down(outcome.message)
            elif stop is not None:
                outcome = replace(outcome, stop=stop.mode, checkpoint_id=stop.checkpoint_id, path=stop.path)
            # Answers and progress that the run has put into the inbox are processed before its end.
            self._take_events()
        finally:
            self._attempt = None
        again += self._late
        self._late = []
        return sv.RunTornDown(outcome, tuple(again), self._stop_point(), random.random(), self._latest())

    def _make_attempt(self, application: SparkApplication) -> tuple[Attempt, sv.StopPoint | None]:
        """Return the next run, and the completed stop-savepoint if that is what the run commits."""
        job = self._job
        # In ascending order, because sinks recognise by it what an earlier run of this generation left.
        run_id = f"{next(self._runs):06d}{secrets.token_hex(4)}"
        found = job.find_restore()
        restore = found[1] if found else None
        commit_only = found[0].checkpoint_id if found is not None and found[0].commit_only else None
        splits = self._splits = job.splits(restore) if self._splits is None else self._splits
        if restore is not None and restore.way_back is not None:
            place = context(checkpoint=restore.way_back.checkpoint_id)
            logger.warning(
                "the run starts from the earlier snapshot %s: %s",
                restore.location,
                restore.way_back.log_text(),
                extra=place,
            )
        job.rewind_sinks(restore, run_id)
        interval = job.options.checkpoint_interval
        interval_ms = 0 if interval is None else int(interval.total_seconds() * 1000)
        pause_ms = int(job.options.min_pause_between_checkpoints.total_seconds() * 1000)
        facts = job.facts()
        coordinator = job.coordinator(run_id, random.randint(min(pause_ms, interval_ms), interval_ms), commit_only)
        next_checkpoint_id = job.next_checkpoint_id()
        enumerations, states = job.enumerations(restore)

        def make_run(attempt: Attempt) -> JobRun:
            run = JobRun(
                facts=facts,
                coordinator=coordinator,
                slots=attempt,
                run_id=run_id,
                next_checkpoint_id=next_checkpoint_id,
                splits=splits,
                restored_from=restore.location if restore else None,
                answer=lambda answer: self._inbox.put(lambda: sv.RunAnswered(answer, run.outcome is not None)),
                now_ms=self._now_ms,
                retire=job.retiring.add,
                on_completed=lambda: self._inbox.put(sv.RunProgressed),
                watermark_us=lambda: job_watermark_us(attempt.slots),
                at_work=lambda: busy_operators(attempt.slots),
                carried=restore.metadata.counters if restore is not None else {},
                enumerations=enumerations,
            )
            return run

        started = sv.RunStarted(run_id, restore.location if restore else None, commit_only is not None)
        attempt = self._new_attempt(
            application,
            job.options,
            self._slot_parameters(run_id),
            master=job.spec.master,
            make_run=make_run,
            searches=searches_of(job.sources, states),
            assignments=assign_splits(fresh_splits(splits, restore), job.plan.parallelism),
            restore=restore,
            wait_for_final=needs_final_checkpoint(job.options, commit_only),
            on_running=lambda: self._inbox.put(lambda: started),
            on_metrics=self._on_metrics,
            on_round=self._on_round,
        )
        return attempt, _as_stop_point(found[0]) if found else None

    def _slot_parameters(self, run_id: str) -> Mapping[str, Any]:
        """Return the parameters for `Attempt`."""
        job = self._job
        return {
            "root": job.root,
            "storage_options": job.storage_options,
            "job_id": job.spec.job_id,
            "spec": job.spec.number,
            "generation": job.generation_log.generation,
            "run_id": run_id,
            "digest": job.plan.digest,
            "schemas": found_schemas(graph_document(job.graph)),
            "log_format": job.options.log_format,
        }

    def _is_wanted(self, request: ev.RunRequest) -> bool:
        """Return whether the command of this request, if there is one, may still be executed (S9.4)."""
        command_id = request.request_id
        if command_id is None:
            return True
        return self._job.desk.is_wanted(command_id, begun=self._supervisor.tries_again(command_id))

    def _stop_point(self) -> sv.StopPoint | None:
        """Return the completed stop-savepoint of this submission, by the part of the log that this driver has read or
        written.
        """
        return _as_stop_point(self._next_point())

    def _latest(self) -> sv.Latest | None:
        """Return the snapshot from which the next run would start, by the same part of the log."""
        point = self._next_point()
        return None if point is None else (point.checkpoint_id, point.location)

    def _next_point(self) -> RestorePoint | None:
        job = self._job
        try:
            return choose_restore_point(job.generation_log.decisions, job.specs(), job.spec.number)
        except TidegateError:
            return None

    def _on_round(self) -> float | None:
        """Do the supervisor's part of a round of the run. Return the seconds until its next time."""
        self._take_events()
        if self._attempt is not None and self._attempt.job_run.outcome is None:
            self._attempt.job_run.note_overdue_deletions(self._job.retiring.overdue)
        wake_ms = self._supervisor.next_wake_ms()
        return None if wake_ms is None else (wake_ms - self._now_ms()) / 1000

    def _on_metrics(self, slots: Mapping[int, SlotState]) -> None:
        coordinator, ended, enumerations = self._run.coordinator, self._run.ended_counts, self._run.enumerations
        self._job.hint.set_source(
            lambda: {
                **job_metrics(self._job.graph, slots, ended, enumerations.outages()),
                "refused_requests": coordinator.refused,
                "sources_paused": coordinator.sources_paused,
                "waits_for_deletions": coordinator.waits_for_deletions,
            },
        )

    # ------------------------------------------------------------ commands and signals, own thread

    def _watch(self) -> None:
        """Watch commands and signals. No error may end this thread, because the job would then receive no more
        commands.
        """
        reported = False
        arrived = self._job.desk.arrived
        while True:
            arrived.wait(COMMAND_POLL_S)
            # Before the commands are taken: one that arrives meanwhile ends the next wait.
            arrived.clear()
            if self._over.is_set():
                return
            try:
                for command in self._job.desk.take():
                    self._enqueue(partial(sv.CommandArrived, command))
                if self._terminated.is_set() and not reported:
                    reported = True
                    self._enqueue(sv.Terminated)
            except Exception:
                logger.exception("internal error: commands and signals could not be processed; it is tried again")

    def _enqueue(self, event: LateEvent) -> None:
        self._inbox.put(event)
        # Read once, because the loop's thread may set it to None at any time.
        attempt = self._attempt
        if attempt is not None:
            attempt.wake()


def _as_stop_point(point: RestorePoint | None) -> sv.StopPoint | None:
    if point is None or not point.commit_only:
        return None
    assert point.checkpoint_id is not None, "a stop-savepoint of this submission is in the log"
    return sv.StopPoint(point.checkpoint_id, point.location, "drain" if point.stop_mode == "drain" else "suspend")
