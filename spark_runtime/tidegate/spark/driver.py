"""The driver process of one job: `python -m tidegate.spark.driver --root R --job J --spec N --launch K`.

It writes a fence to the decision log, which makes it the driver of a new generation. It then runs attempts until the
job ends, and answers commands. Exit code 0: the job ended as requested; 13: a newer generation runs the job, or a newer
launch was recorded before this one began; 14: it is unclear whether the last decision of this driver was recorded; 15:
Spark's JVM has ended, and a new driver is to continue the job; else the code of the error that made the job fail.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.clock import now_iso
from tidegate.connectors.found_schema import FoundSchemas
from tidegate.coordinator.checkpoint_mode import options_in_effect
from tidegate.coordinator.events import CommandAnswer
from tidegate.coordinator.recovery.fork_check import two_phase_sinks
from tidegate.coordinator.recovery.source_schemas import schemas_in_effect
from tidegate.coordinator.supervision.supervision_events import AnswerAllOpen
from tidegate.coordinator.supervision.supervisor import EXIT_TERMINATED, termination_message
from tidegate.errors import FencedError, SparkLostError, StoreError, TidegateError, UnclearAnswerError
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, read_pinned_graph, write_pinned_graph
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.decision_log import DecisionLog, GenerationLog
from tidegate.jobs.launch.local import launch_successor
from tidegate.jobs.launch.replaced_drivers import REPLACED_GRACE_S, end_on_this_host, replaced_launches
from tidegate.jobs.launches import refuse_if_superseded
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.process_environment import STORAGE_OPTIONS_VARIABLE, storage_options_from
from tidegate.jobs.records import Decision, Spec, read_record
from tidegate.jobs.stores.store_registry import open_store
from tidegate.log_format import set_up
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan
from tidegate.plan.graph_document import graph_document
from tidegate.plan.job_graph import JobGraph
from tidegate.spark.driver_loop.checkpoint_deletion import CheckpointDeletion
from tidegate.spark.driver_loop.command_desk import CommandDesk
from tidegate.spark.driver_loop.owner_observer import OwnerObserver
from tidegate.spark.driver_loop.row_materialisation import RowMaterialisation
from tidegate.spark.driver_loop.spark_job import SparkJob
from tidegate.spark.driver_loop.status_hint import HintWriter
from tidegate.spark.driver_loop.streaming_loop import StreamingLoop
from tidegate.spark.scratch import ScratchFolder

logger = logging.getLogger("tidegate.spark")

EXIT_BUG = 70
"""Exit code of an internal error."""
SCHEMA_RETRIES_S = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)
"""Pauses, in seconds, before the restore point is read again: a store outage of five minutes fails no job."""


class _TerminatedError(BaseException):
    """SIGTERM while the user's code builds the pipeline, which may take any time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver process; return its exit code."""
    parser = argparse.ArgumentParser(prog="tidegate.spark.driver")
    parser.add_argument("--root", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--spec", type=int, required=True)
    parser.add_argument("--launch", type=int, required=True)
    arguments = parser.parse_args(argv)
    storage_options = storage_options_from(os.environ.get(STORAGE_OPTIONS_VARIABLE, ""))
    set_up("text", job=arguments.job)  # until the submission, which contains the log format, has been read
    try:
        driver = Driver(arguments.root, arguments.job, arguments.spec, arguments.launch, storage_options)
        try:
            return driver.run()
        except SparkLostError:
            driver.launch_successor()
            raise
    except TidegateError as error:
        logger.error("%s", error)
        return error.exit_code


class Driver:
    """Runs one generation of a job: begins it, reports, and runs the attempts."""

    def __init__(self, root: str, job_id: str, spec_number: int, launch: int, storage_options: dict[str, Any]) -> None:
        self._root = root
        self._storage_options = storage_options
        self._store = open_store(root, storage_options)
        self._layout = JobLayout(job_id)
        self._spec = read_record(self._store, self._layout.spec(spec_number), Spec)
        self._launch = launch
        self._terminated = threading.Event()
        self._is_building = False
        self._supervision: StreamingLoop | None = None
        self._has_progressed = False

    def run(self) -> int:
        """Run the driver until the job ends, and return its exit code."""
        options = self._options_or_defaults()
        set_up(options.log_format, job=self._spec.job_id)
        log = DecisionLog(
            self._store,
            self._layout,
            now_iso=now_iso,
            nonce=lambda: secrets.token_hex(8),
            timeout_s=options.store_timeout.total_seconds(),
        )
        self._listen_to_signals()
        # Before the fence is appended: a superseded launch must not fence the driver that is meant to run the job.
        refuse_if_superseded(self._store, self._layout, self._spec.number, self._launch)
        generation_log = log.begin_generation(spec=self._spec.number, launch=self._launch)
        set_up(options.log_format, job=self._spec.job_id, generation=generation_log.generation)
        logger.info(
            "started generation %d of job %s, submission %d",
            generation_log.generation,
            self._spec.job_id,
            self._spec.number,
        )
        interval_s = options.heartbeat_interval.total_seconds()
        hint = HintWriter(self._store, self._layout, generation_log.generation, interval_s, now_iso)
        hint.start()
        desk = CommandDesk(self._store, self._layout, self._spec, generation_log.generation, now_iso, time.time)
        retiring = CheckpointDeletion(self._store, generation_log.check)
        retiring.start()
        # Later and on another thread: a living driver that notices the fence ends itself, and Spark starts meanwhile.
        ending = threading.Timer(REPLACED_GRACE_S, self._end_replaced_drivers, (generation_log.decisions,))
        ending.daemon = True
        ending.start()
        try:
            return self._run_generation(log, generation_log, hint, desk, retiring)
        except SparkLostError:
            completed = {d.generation for d in generation_log.decisions if d.kind == "complete"}
            self._has_progressed = generation_log.generation in completed
            desk.abandon()
            raise
        except (FencedError, UnclearAnswerError):
            desk.abandon()
            raise
        except TidegateError as error:
            self._record_failure(generation_log, desk, str(error), "", error.code)
            logger.error("%s", error)
            return error.exit_code
        except Exception as error:
            trace = traceback.format_exc()
            self._record_failure(generation_log, desk, f"internal error: {type(error).__name__}: {error}", trace)
            logger.exception("internal error of tidegate; the job fails. Report this error")
            return EXIT_BUG
        except _TerminatedError:
            self._record_failure(generation_log, desk, termination_message("the pipeline was not built yet"), "")
            return EXIT_TERMINATED
        finally:
            ending.cancel()
            desk.close()
            retiring.close()
            hint.close()

    def _end_replaced_drivers(self, decisions: Sequence[Decision]) -> None:
        """Kill drivers on this host that this one has fenced off, so that their Spark applications free their cores.

        Args:
            decisions: the log up to the own fence.
        """
        try:
            job = JobDirectory(self._root, self._spec.job_id, self._storage_options)
            for launch in end_on_this_host(replaced_launches(job, decisions)):
                logger.warning(
                    "ended the replaced driver of launch %d, process %s, which still ran", launch.attempt, launch.pid
                )
        except TidegateError as error:
            logger.warning("whether a replaced driver still runs could not be checked: %s", error)

    def launch_successor(self) -> None:
        """After the death of the JVM: start the next driver, if the launcher of this one starts no more drivers.

        Only if this driver has completed a checkpoint. Else a JVM that always dies would be started again and again.
        """
        if not self._has_progressed:
            logger.warning("this driver has completed no checkpoint, so it starts no new one")
            return
        job = JobDirectory(self._root, self._spec.job_id, self._storage_options)
        try:
            launch = launch_successor(job, self._spec, self._launch)
        except TidegateError as error:
            logger.error("the next driver could not be started: %s", error)
            return
        if launch is not None:
            logger.warning("process %s is the next driver, launch %d", launch.pid, launch.attempt)

    def _run_generation(
        self,
        log: DecisionLog,
        generation_log: GenerationLog,
        hint: HintWriter,
        desk: CommandDesk,
        retiring: CheckpointDeletion,
    ) -> int:
        options = JobOptions.from_mapping(self._spec.options)
        with ScratchFolder("driver") as scratch:
            client = JobClient(self._root, self._spec.job_id, self._storage_options)
            schemas = self._schemas(client, log)
            graph, execution = self._build(options, os.path.join(scratch, "artifact"), schemas)
            logger.info("execution plan:\n%s", execution.explain())
            options = self._pin(options, graph)
            materialising = RowMaterialisation(
                store=self._store,
                layout=self._layout,
                spec=self._spec,
                root=self._root,
                storage_options=self._storage_options,
                generation_log=generation_log,
                now_iso=now_iso,
                session=self._session,
            )
            job = SparkJob(
                root=self._root,
                storage_options=self._storage_options,
                store=self._store,
                layout=self._layout,
                spec=self._spec,
                options=options,
                graph=graph,
                plan=execution,
                log=log,
                generation_log=generation_log,
                hint=hint,
                desk=desk,
                retiring=retiring,
                materialising=materialising,
                now_iso=now_iso,
                specs=client.specs,
            )
            retiring.spared, retiring.delete = job.folders_in_use, job.delete_snapshot
            with OwnerObserver(client, self._spec.number, options):
                self._supervision = _loop_of(options)(job, self._terminated)
                return self._supervision.run()

    def _schemas(self, client: JobClient, log: DecisionLog) -> FoundSchemas:
        """Return the schemas in effect, see `schemas_in_effect`. If the store does not answer, retry as a run does
        (S9.1).
        """
        for delay_s in SCHEMA_RETRIES_S:
            try:
                return schemas_in_effect(self._store, self._layout, self._spec, client.specs(), log)
            except StoreError as error:
                logger.warning("the snapshot to restore cannot be read; next attempt in %d s: %s", delay_s, error)
            if self._terminated.wait(delay_s):
                raise _TerminatedError
        return schemas_in_effect(self._store, self._layout, self._spec, client.specs(), log)

    def _build(self, options: JobOptions, code: str, schemas: FoundSchemas) -> tuple[JobGraph, ExecutionPlan]:
        """Return the pinned pipeline and its plan. SIGTERM ends this at once, because nothing is appended meanwhile."""
        self._is_building = True
        try:
            if self._terminated.is_set():
                raise _TerminatedError
            unpack_artifact(self._store, self._layout, self._spec.artifact, code)
            graph = load_pipeline(
                code,
                self._spec.pipeline,
                dict(self._spec.arguments),
                paths=self._spec.relative_paths,
                schemas=schemas,
            )
            return graph, make_execution_plan(graph, options.parallelism, options.max_parallelism)
        finally:
            self._is_building = False

    def _pin(self, options: JobOptions, graph: JobGraph) -> JobOptions:
        """Record the graph and the options in effect of the submission, and return the options.

        An earlier driver of the submission may have recorded them.
        """
        number, limits = self._spec.number, (options.parallelism, options.max_parallelism)
        before = read_pinned_graph(self._store, self._layout, number) if options.left_open else None
        options = options_in_effect(options, graph, before.options if before is not None else {})
        sinks = {uid: sink.describe() for uid, sink in two_phase_sinks(graph).items()}
        document, used = graph_document(graph), options.to_mapping()
        write_pinned_graph(self._store, self._layout, PinnedGraph(number, *limits, document, now_iso(), sinks, used))
        return options

    def _session(self) -> SparkSession:
        assert self._supervision is not None, "the supervision looks for sources"
        return self._supervision.application().session

    def _options_or_defaults(self) -> JobOptions:
        """Return the options, or defaults if they are invalid.

        Options are checked at submission. But a driver must send heartbeats and log even if they are wrong.
        """
        try:
            return JobOptions.from_mapping(self._spec.options)
        except TidegateError:
            return JobOptions()

    def _listen_to_signals(self) -> None:
        def on_signal(number: int, _frame: FrameType | None) -> None:
            logger.warning("received signal %s; the driver stops the job", signal.Signals(number).name)
            self._terminated.set()
            if self._is_building:
                raise _TerminatedError

        install: Callable[..., Any] = signal.signal
        install(signal.SIGTERM, on_signal)
        install(signal.SIGINT, on_signal)

    def _record_failure(
        self, generation_log: GenerationLog, desk: CommandDesk, message: str, trace: str, code: str = ""
    ) -> None:
        try:
            generation_log.append(
                "failure", {"message": message, "operator": None, "subtask": None, "traceback": trace, "code": code}
            )
            generation_log.append("status", {"status": "FAILED", "reason": message})
            desk.answer_all(AnswerAllOpen(CommandAnswer("", False, "job_failed", message)))
        except TidegateError as error:
            if isinstance(error, FencedError | UnclearAnswerError):
                desk.abandon()
            logger.error("the failure of the job could not be recorded in the decision log; the driver ends: %s", error)


def _loop_of(options: JobOptions) -> type[StreamingLoop]:
    if options.execution_mode != "batch":
        return StreamingLoop
    # Imported here, because its imports cost a driver of streaming mode half a second of CPU.
    from tidegate.spark.driver_loop.batch_loop import BatchLoop

    return BatchLoop


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Waits for no thread, such as a thread that user code has left running. It does not flush the streams itself.
    os._exit(code)
