"""Runs a whole job in one thread of this process: the real coordinator, slot and subtasks, without Spark, sockets or
sleeping.

Messages between driver and slot make a JSON round trip, snapshots go to a store, and the caller advances the time.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.api.pipeline import Pipeline
from tidegate.channel.control.protocol import DriverMessage, SlotMessage
from tidegate.channel.control.protocol_codec import received
from tidegate.connectors.found_schema import using_found_schemas
from tidegate.connectors.split_documents import assign_splits
from tidegate.connectors.transactions import job_storage
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpoint_mode import needs_final_checkpoint
from tidegate.coordinator.driver_job import DriverJob, Splits, fresh_splits
from tidegate.coordinator.enumeration import Enumerations
from tidegate.coordinator.job_run import JobRun, RunEnded, RunFailed
from tidegate.coordinator.recovery.fork_check import two_phase_sinks
from tidegate.coordinator.recovery.restore import RestoreState
from tidegate.coordinator.recovery.source_schemas import schemas_in_effect
from tidegate.coordinator.split_search import searches_of
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, write_pinned_graph
from tidegate.jobs.decision_log import DecisionLog, GenerationLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.operators.stream_operator import StartRequests
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan
from tidegate.plan.graph_document import graph_document
from tidegate.snapshot.location import open_location
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.snapshots.restored_state import load_restored_state
from tidegate.testing.inline_requests import InlineRequests

MAX_ROUNDS = 200_000
"""Most rounds of `until` before it reports that the job is stuck."""

_names = itertools.count(1)


class InlineExecutor(Executor):
    """Runs work at once, or stores it for `release` while `held` is set."""

    def __init__(self) -> None:
        self.held = False
        self._waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run or store `fn`; the runtime does not use the future."""
        if self.held:
            self._waiting.append(lambda: fn(*args, **kwargs))
        else:
            fn(*args, **kwargs)
        return Future()

    def release(self) -> None:
        """Run the stored work."""
        self.held = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()


@dataclass
class InProcessJob:
    """A job directory in memory and its runs.

    Args:
        build: creates the pipeline, for every run again, as slots do.
        options: JobOptions fields.
        root: root of the job directory; default: a memory store of its own.
        scratch: local folder for state on disk; empty: operators have none.
        requests: how `map_async` calls its function; default: at once, on this thread.
        input_steps: elements that a subtask reads from its inputs in one round; default one, so that a test can stop
            the job between any two.
        gathered_part_bytes: as in `Deployment`; default 0, so that every batch of a source is sent at once.
        deletes: False: simulates a slow store: retired snapshots stay until a `tick` with True deletes them.
    """

    build: Callable[[], Pipeline]
    options: Mapping[str, Any] = field(default_factory=dict)
    job_id: str = "job"
    lineage: str = "lineage-1"
    root: str = ""
    scratch: str = ""
    requests: StartRequests = InlineRequests
    input_steps: int = 1
    gathered_part_bytes: int = 0
    answers: dict[str, ev.CommandAnswer] = field(default_factory=dict)
    deletes: bool = True

    def __post_init__(self) -> None:
        self.root = self.root or f"memory://in-process-{next(_names)}"
        self.store: Store = open_store(self.root)
        self.layout = JobLayout(self.job_id)
        self.now_ms = 1_700_000_000_000
        self._nonce = itertools.count(1)
        self._spec_number = 0
        self.last_job: DriverJob | None = None
        self.specs: list[Spec] = []
        self.log = self._open_log()

    def _open_log(self) -> DecisionLog:
        return DecisionLog(self.store, self.layout, now_iso=self.now_iso, nonce=lambda: f"n{next(self._nonce)}")

    def now_iso(self) -> str:
        """Return the time of the job's clock."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).isoformat()

    def submit(self, restore: RestoreFrom | None = None) -> InProcessRun:
        """Write a new submission, and deploy and start its first run."""
        self._spec_number += 1
        self._spec = Spec(
            job_id=self.job_id,
            number=self._spec_number,
            submission_id=f"s{self._spec_number}",
            pipeline="in_process:build",
            artifact="",
            arguments={},
            options=JobOptions.from_mapping(self.options).to_mapping(),
            master="in-process",
            spark_conf={},
            storage_options={},
            restore=restore,
            lineage=self.lineage,
            owner_dag=None,
            submitted_at=self.now_iso(),
            submitted_by="test",
        )
        self.specs.append(self._spec)
        return self.relaunch()

    def relaunch(self) -> InProcessRun:
        """Start a new driver for the current submission: a new generation, with its own view of the log."""
        self.log = self._open_log()
        self.generation_log = self.log.begin_generation(spec=self._spec_number, launch=1)
        return self.rerun()

    def rerun(self) -> InProcessRun:
        """Start a new run of the same driver after a failed run."""
        return InProcessRun(self, self._spec, self.generation_log)


def _built_job(owner: InProcessJob, spec: Spec, generation_log: GenerationLog) -> tuple[DriverJob, ExecutionPlan]:
    """Build the job as a new driver does: the graph is built and pinned, and planned."""
    options = JobOptions.from_mapping(spec.options)
    schemas = schemas_in_effect(owner.store, owner.layout, spec, owner.specs, owner.log)
    with using_found_schemas(schemas):
        graph = owner.build().build()
    execution = make_execution_plan(graph, options.parallelism, options.max_parallelism)
    document, sinks = graph_document(graph), {uid: s.describe() for uid, s in two_phase_sinks(graph).items()}
    limits = options.parallelism, options.max_parallelism
    pinned = PinnedGraph(spec.number, *limits, document, owner.now_iso(), sinks, options.to_mapping())
    write_pinned_graph(owner.store, owner.layout, pinned)
    job = DriverJob(
        root=owner.root,
        storage_options={},
        store=owner.store,
        layout=owner.layout,
        spec=spec,
        options=options,
        graph=graph,
        plan=execution,
        log=owner.log,
        generation_log=generation_log,
        now_iso=owner.now_iso,
        specs=lambda: owner.specs,
    )
    return job, execution


class InProcessRun:
    """One run: pump it, request snapshots, crash it."""

    def __init__(self, owner: InProcessJob, spec: Spec, generation_log: GenerationLog) -> None:
        self.owner = owner
        self.writers = InlineExecutor()
        self._to_driver: list[SlotMessage] = []
        self._retired: list[str] = []
        job, execution = _built_job(owner, spec, generation_log)
        if owner.last_job is not None and owner.last_job.generation_log is generation_log:
            job = owner.last_job  # a driver that restarts its job keeps its record of deleted snapshots
        self._job = owner.last_job = job
        found = job.find_restore()
        restore = found[1] if found else None
        splits = job.splits(restore)
        commit_only = found[0].checkpoint_id if found is not None and found[0].commit_only else None
        run_id = f"r{next(owner._nonce):06d}"
        job.rewind_sinks(restore, run_id)
        enumerations, states = job.enumerations(restore)
        self._searches = searches_of(job.sources, states)
        self.run = self._new_run(run_id, restore, splits, commit_only, enumerations)
        self.slot = self._new_slot(run_id)
        deployment = self._deployment(run_id, execution, restore, splits, commit_only)
        self._subtasks = deploy(execution, deployment, self.slot, None)
        self.slot.start(self._subtasks)
        self._deliver()

    def _new_run(
        self,
        run_id: str,
        restore: RestoreState | None,
        splits: Splits,
        commit_only: int | None,
        enumerations: Enumerations,
    ) -> JobRun:
        owner, job = self.owner, self._job
        interval = job.options.checkpoint_interval
        return JobRun(
            facts=job.facts(),
            coordinator=job.coordinator(run_id, int(interval.total_seconds() * 1000) if interval else 0, commit_only),
            slots=self,
            run_id=run_id,
            next_checkpoint_id=job.next_checkpoint_id(),
            splits=splits,
            restored_from=restore.location if restore else None,
            answer=lambda answer: owner.answers.__setitem__(answer.request_id, answer),
            now_ms=lambda: owner.now_ms,
            retire=self._retire,
            on_completed=lambda: None,
            at_work=lambda: {s.subtask: s.at_work() for s in self.slot._subtasks},
            carried=restore.metadata.counters if restore is not None else {},
            enumerations=enumerations,
            on_permitted=self._completed,
        )

    def _new_slot(self, run_id: str) -> Slot:
        owner, job = self.owner, self._job
        return Slot(
            run_id=run_id,
            generation=job.generation_log.generation,
            send=self._from_slot,
            open_location=self._open_location,
            threshold_bytes=job.options.state_size_threshold_bytes,
            writers=self.writers,
            now_ms=lambda: owner.now_ms,
            wake=LoopSignal(),
            compression=job.options.snapshot_compression,
            input_steps=owner.input_steps,
        )

    def _deployment(
        self,
        run_id: str,
        execution: ExecutionPlan,
        restore: RestoreState | None,
        splits: Splits,
        commit_only: int | None,
    ) -> Deployment:
        owner, spec, options = self.owner, self._job.spec, self._job.options
        indices = tuple(range(options.parallelism))
        documents = {i: json.loads(json.dumps(restore.for_slot(i))) for i in indices} if restore is not None else {}
        return Deployment(
            job_id=spec.job_id,
            lineage=spec.lineage,
            generation=self._job.generation_log.generation,
            run_id=run_id,
            indices=indices,
            mode=options.checkpoint_mode,
            wait_for_final=needs_final_checkpoint(options, commit_only),
            channel_capacity_bytes=options.channel_capacity_bytes,
            splits=assign_splits(fresh_splits(splits, restore), options.parallelism),
            restored=load_restored_state(documents, self._open_location, execution),
            idle_after_ms=None if options.idle_after is None else options.idle_after // timedelta(milliseconds=1),
            unaligned_after_ms=options.unaligned_after_ms,
            processing_time_on_end=options.processing_time_on_end,
            gated=options.commit == "on_request",
            state_backend=options.state_backend,
            state_memory_bytes=options.state_memory_bytes,
            scratch=os.path.join(owner.scratch, run_id) if owner.scratch else "",
            requests=owner.requests,
            gathered_part_bytes=owner.gathered_part_bytes,
            sink_storage=job_storage(owner.store, spec),
        )

    def _open_location(self, location: str) -> tuple[Store, str]:
        return open_location(self.owner.store, self._job.spec, location)

    # ------------------------------------------------------------ wiring

    def broadcast(self, message: DriverMessage) -> None:
        """Send a message from driver to slot."""
        self.slot.post(received(message))

    def send(self, slot: int, message: DriverMessage) -> None:
        """Send a message from driver to slot. One slot hosts all subtasks."""
        self.slot.post(received(message))

    def _search(self) -> bool:
        """Search for splits of the sources for which it is time. Return whether there were any."""
        due = self.run.take_searches()
        for uid in due:
            try:
                self.run.on_searched(self._searches[uid].search())
            except Exception as error:
                text = f"source {uid!r} could not discover its splits: {type(error).__name__}: {error}"
                self.run.fail(RunFailed(text, operator=uid))
        return bool(due)

    def _completed(self, checkpoint_id: int, states: Mapping[str, Any]) -> None:
        for uid, state in states.items():
            self._searches[uid].completed(checkpoint_id, state)

    def _from_slot(self, message: SlotMessage) -> None:
        self._to_driver.append(received(message))

    def _deliver(self) -> bool:
        any_delivered = bool(self._to_driver)
        while self._to_driver:
            self.run.on_slot_message(self._to_driver.pop(0))
        return any_delivered

    def _retire(self, _id: int, path: str) -> None:
        self._retired.append(path)
        self._delete_retired()

    def _delete_retired(self) -> None:
        while self._retired and self.owner.deletes:
            self._job.delete_snapshot(self._retired.pop(0))

    # ------------------------------------------------------------ inspecting

    def watermarks(self) -> dict[str, int]:
        """Return by uid of a source or operator its watermark, microseconds, the minimum over its subtasks."""
        found: dict[str, int] = {}
        for subtask in self._subtasks:
            head = [subtask.source_input.uid] if subtask.source_input is not None else []
            for uid in head + [uid for uid, _ in subtask.contexts()]:
                found[uid] = min(found.get(uid, subtask.watermark_us), subtask.watermark_us)
        return found

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters by uid: of sources over all runs, of operators over this run's subtasks."""
        found = {uid: Counter(counts) for uid, counts in self.run.ended_counts.items()}
        for uid, context in (known for subtask in self._subtasks for known in subtask.contexts()):
            found.setdefault(uid, Counter()).update(context.counters)
        for source in (subtask.source_input for subtask in self._subtasks):
            if source is not None:
                found.setdefault(source.uid, Counter()).update(source.counters())
        return {uid: dict(counts) for uid, counts in found.items() if counts}

    # ------------------------------------------------------------ driving

    @property
    def outcome(self) -> RunEnded | RunFailed | None:
        """Return the outcome once the run has ended, else None."""
        return self.run.outcome

    def pump(self, rounds: int = 1) -> bool:
        """Let slot and driver work for `rounds` rounds. Returns False if the last round did nothing."""
        progressed = False
        for _ in range(rounds):
            progressed = self._search()
            progressed = self.slot.run_round() or progressed
            progressed = self._deliver() or progressed
        return progressed

    def tick(self, ms: int) -> None:
        """Advance the clock."""
        self.owner.now_ms += ms
        self._delete_retired()
        self.run.note_overdue_deletions(len(self._retired))
        self.run.on_event(ev.Tick())

    def until(self, condition: Callable[[], bool]) -> None:
        """Pump until `condition` holds. Raises AssertionError if the job is stuck before."""
        for _ in range(MAX_ROUNDS):
            if condition():
                return
            if not self.pump():
                self.tick(10)
        raise AssertionError(f"stuck: outcome {self.outcome}, answers {self.owner.answers}")

    def to_end(self) -> RunEnded | RunFailed:
        """Pump until the run has ended."""
        self.until(lambda: self.outcome is not None)
        assert self.outcome is not None
        return self.outcome

    def ask(self, request: ev.SnapshotRequest) -> ev.CommandAnswer | None:
        """Request a snapshot and pump until it is answered, or for a stop until the run has ended."""
        self.run.handle_command(request)
        if request.kind == "stop-savepoint":
            self.until(lambda: self.outcome is not None or request.request_id in self.owner.answers)
        else:
            self.until(lambda: request.request_id in self.owner.answers)
        return self.owner.answers.get(request.request_id or "")

    def crash(self) -> list[ev.SnapshotRequest]:
        """End every subtask at once; the driver notices it."""
        self.slot.close()
        for search in self._searches.values():
            search.close()
        self.run.fail(RunFailed("crashed by the test"))
        return self.run.shut_down("crashed by the test")
