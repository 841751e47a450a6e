"""The driver's view of its job, from which every run is created."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from tidegate.connectors.interface import Sink, Source, Split
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.split_documents import split_to_json
from tidegate.connectors.transactions import SinkContext, job_storage
from tidegate.coordinator.checkpoint_mode import check_checkpoint_mode, check_commit, check_sink_modes
from tidegate.coordinator.commits.commit_gate import CommitGate
from tidegate.coordinator.coordinator import Coordinator, CoordinatorOptions
from tidegate.coordinator.enumeration import Enumerations, EnumerationState, SourceEnumeration
from tidegate.coordinator.garbage.abandoned_checkpoints import (
    AbandonedFolder,
    claimed_savepoints,
    find_abandoned_folders,
    restored_checkpoint,
)
from tidegate.coordinator.garbage.shared_files import SharedFiles
from tidegate.coordinator.garbage.unfinished_savepoints import delete_unfinished, existing_files, unfinished_savepoints
from tidegate.coordinator.job_run import RunFacts
from tidegate.coordinator.recovery.fork_check import check_fork, two_phase_sinks, two_phase_sinks_with_data
from tidegate.coordinator.recovery.fresh_start import check_first_run
from tidegate.coordinator.recovery.quarantine_moves import cannot_quarantine, finish_quarantine_moves
from tidegate.coordinator.recovery.restore import RestoreState, check_snapshot_fits
from tidegate.coordinator.recovery.restore_point import (
    RestorePoint,
    check_discarded_verdicts,
    check_drained,
    check_verdicts,
    choose_restore_point,
    completed_snapshots,
    last_committed,
)
from tidegate.coordinator.recovery.rewind import plan_rewind
from tidegate.coordinator.recovery.sink_rewind import rewind_sinks, sink_handles
from tidegate.coordinator.recovery.source_positions import check_discovery, check_positions, positions_of
from tidegate.coordinator.topology import ChainShape, EmitsAtEnd, Topology
from tidegate.errors import SnapshotError, StoreError, UnclearAnswerError
from tidegate.jobs.decision_log import DecisionLog, GenerationLog
from tidegate.jobs.history.checkpoints import named_snapshots
from tidegate.jobs.history.rewinds import rewound_checkpoints
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.history.verdicts import Verdicts, find_verdicts
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions, ProcessingTimeOnEnd
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.status import JobStatus, next_checkpoint_id
from tidegate.jobs.stores.store import Store
from tidegate.log_format import context
from tidegate.plan.execution_plan import ExecutionPlan
from tidegate.plan.graph_document import graph_document
from tidegate.plan.job_graph import JobGraph
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import SnapshotMetadata, read_metadata

logger = logging.getLogger("tidegate.coordinator")

AFTER_ALL_RUNS = "~"
"""A run id that sorts after all other run ids of its generation."""
Splits = dict[str, list[dict[str, Any]]]
"""Source uid -> all its splits as JSON."""


@dataclass(frozen=True)
class DriverJob:
    """One submission under one generation."""

    root: str
    storage_options: Mapping[str, Any]
    store: Store
    layout: JobLayout
    spec: Spec
    options: JobOptions
    graph: JobGraph
    plan: ExecutionPlan
    log: DecisionLog
    generation_log: GenerationLog
    now_iso: Callable[[], str]
    specs: Callable[[], Sequence[Spec]]

    def __post_init__(self) -> None:
        """Check the options against the pipeline.

        Raises PipelineError when the pipeline needs snapshots and the options turn them off, when there is nothing to
        commit after a commit gate, or when sinks belong to the other execution mode.
        """
        if self.options.execution_mode == "streaming":
            check_checkpoint_mode(self.graph, self.options)
        check_commit(self.graph, self.options)
        check_sink_modes(self.graph, self.options)

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts in the log that concern the line of this submission (S7.8)."""
        return find_verdicts(self.specs(), self.generation_log.decisions, self.spec.number)

    def log_context(self, operator: str | None = None) -> dict[str, Any]:
        """Return the fields of log calls that name this job and generation."""
        return context(job=self.spec.job_id, generation=self.generation_log.generation, operator=operator)

    def facts(self) -> RunFacts:
        """Return the facts that JobRun needs."""
        return RunFacts(
            store=self.store,
            layout=self.layout,
            spec=self.spec,
            generation_log=self.generation_log,
            topology=topology_of(self.graph, self.plan, self.options.processing_time_on_end),
            sinks={uid: sink.describe() for uid, sink in self.two_phase_sinks.items()},
            graph_document=graph_document(self.graph),
            max_parallelism=self.plan.max_parallelism,
            savepoint_directory=self.options.savepoint_directory,
            now_iso=self.now_iso,
            specs=tuple(self.specs()),
            cannot_quarantine=cannot_quarantine(self.graph),
        )

    def status(self, status: str, **data: Any) -> None:
        """Append a status change to the decision log."""
        self.generation_log.append("status", {"status": JobStatus(status).value, **data})

    def next_checkpoint_id(self) -> int:
        """Return the next free checkpoint id, from the log (S1.4)."""
        return next_checkpoint_id(self.generation_log.decisions)

    def find_restore(self) -> tuple[RestorePoint, RestoreState] | None:
        """Return the restore point of the next run, read and checked, or None for a fresh start.

        Raises SnapshotError.
        """
        decisions = self.log.read()
        point = choose_restore_point(decisions, self.specs(), self.spec.number)
        if point is None:
            self.check_fresh_start(decisions)
            return None
        wanted = self.spec.restore
        if wanted is not None and wanted.fork_of is not None:
            live = two_phase_sinks_with_data(self.store, wanted.fork_of, self.spec.job_id)
            check_fork(self.graph, self.spec, live, os.path.realpath)
            self.check_fresh_start(decisions)
        verdicts = find_verdicts(self.specs(), decisions, self.spec.number)
        store, folder = open_location(self.store, self.spec, point.location)
        metadata = read_metadata(store, folder)
        way_back = None
        # The log of this job knows nothing about output of another
        # job, so there is nothing to rewind and no verdict to check.
        if metadata.job_id == self.spec.job_id:
            n, lineage, sinks = metadata.checkpoint_id, metadata.lineage, self.two_phase_sinks
            way_back = plan_rewind(
                self.specs(),
                decisions,
                self.spec,
                location=point.location,
                checkpoint_id=n,
                lineage=lineage,
                sinks=sinks,
                never_committed=verdicts.unapproved | verdicts.rejected,
            )
            known = verdicts.views.get(n)
            taken = verdicts if known is None else find_verdicts(self.specs(), decisions, known.spec)
            check_verdicts(verdicts, self.spec, taken, lineage=lineage, checkpoint_id=n, sinks=tuple(sinks))
            if lineage == self.spec.lineage:
                check_discarded_verdicts(self.specs(), decisions, self.spec, taken, n)
        check_drained(point, self.spec, metadata.drained_kinds)
        restore = check_snapshot_fits(
            point.location,
            metadata,
            self.graph,
            self.plan,
            lineage=self.spec.lineage,
            log_number=point.log_number,
            allow_non_restored_state=bool(wanted and wanted.allow_non_restored_state),
            commit_only=point.commit_only,
            state_backend=self.options.state_backend,
        )
        check_discovery(self.graph, restore)
        restore = replace(restore, way_back=way_back, may_share=self._may_share_output(point, metadata))
        if verdicts.gated:
            # An approval may be newer than the restored snapshot, which holds no transaction after its own id.
            permitted = min(verdicts.approved, metadata.checkpoint_id)
            restore = replace(restore, permitted=permitted, log_number=verdicts.approved_at)
        if verdicts.withheld:
            restore = replace(restore, withheld=verdicts.withheld, quarantine=self.layout.quarantine)
        if restore.rescales:
            restore = replace(restore, moved_splits=self._positions(restore, store, folder))
        return point, restore

    def check_fresh_start(self, decisions: Sequence[Decision]) -> None:
        """See `fresh_start.check_first_run`. Raises PipelineError."""
        generation = self.generation_log.generation
        check_first_run(self.graph, self.spec, self.specs(), decisions, generation, _log_outage)

    def _may_share_output(self, point: RestorePoint, metadata: SnapshotMetadata) -> bool:
        """Return whether checkpoints may reference files of the restored snapshot (S7.4).

        They may if it is a checkpoint of this job, and the submission either did not name it or claimed it.
        """
        if metadata.job_id != self.spec.job_id or not point.location.startswith(f"{self.layout.checkpoints}/"):
            return False
        wanted = self.spec.restore
        if wanted is None or wanted.kind == "latest" or wanted.claim_mode == "claim":
            return True
        return point.checkpoint_id in self._own_checkpoints()

    def _own_checkpoints(self) -> set[int]:
        own = (
            e
            for e in entries_by_submission(self.generation_log.decisions)
            if e.spec == self.spec.number and e.kind == "complete"
        )
        return {e.data["checkpoint_id"] for e in own}

    @property
    def two_phase_sinks(self) -> dict[str, Sink]:
        """The pipeline's two-phase-commit sinks, by uid."""
        return two_phase_sinks(self.graph)

    def rewind_sinks(self, restore: RestoreState | None, run_id: str) -> None:
        """Make sinks delete output that is newer than the restored snapshot, if the restore demands it (S9.3).

        Staged output that verdicts rejected with then=quarantine is moved to quarantine first (S7.8). Must be called
        before every run, before a slot of run `run_id` starts: it repeats work that a dead driver left unfinished.
        Blocks.

        Raises:
            SnapshotError: a sink does not support the rewind, and nothing was changed; or the snapshots that record
                what to move to quarantine cannot be read.
            StoreError: the operation failed and is to be repeated.
            FencedError, UnclearAnswerError: another driver may own the job.
        """
        self.finish_quarantine_moves(restore, run_id)
        if restore is None or restore.way_back is None or not restore.way_back.takes_back:
            return
        way_back = restore.way_back
        before = self.next_checkpoint_id()
        self.generation_log.check()  # still the newest generation: the next driver claims no lower checkpoint ids

        def record() -> None:
            if not way_back.is_recorded:
                data = {"checkpoint_id": way_back.checkpoint_id, "sinks": list(way_back.sinks)}
                self.generation_log.append("rewind", data, run_id)

        store, folder = open_location(self.store, self.spec, restore.location)
        held = sink_handles(restore.location, restore.metadata, SnapshotStreams(store, folder))
        sinks = self._sinks_as_one_subtask(self.spec.lineage, run_id)
        rewind_sinks(sinks, held, way_back.checkpoint_id, before, record)

    def finish_quarantine_moves(self, restore: RestoreState | None, run_id: str) -> None:
        """Move output that verdicts withheld, and that earlier runs did not move, to quarantine.

        It must not stay staged, because a run deletes staged output that failed runs left behind. Blocks; idempotent.
        Raises the errors of `rewind_sinks`.

        Args:
            restore: the snapshot of the run. The run's own subtasks move the output that this snapshot holds, unless it
                belongs to another lineage.
        """
        restored = restore.location if restore is not None and not restore.is_fork else None
        sinks_of = partial(self._sinks_as_one_subtask, run_id=run_id)
        read = partial(open_location, self.store, self.spec)
        verdicts, folder = self.verdicts, self.layout.quarantine
        for unmoved in verdicts.unmoved:
            self.generation_log.check()
            into = Quarantine(self.store, folder, unmoved.withheld)
            for remark in finish_quarantine_moves(unmoved, verdicts.views, restored, read, sinks_of, into):
                logger.warning("%s", remark, extra=self.log_context())

    def _sinks_as_one_subtask(self, lineage: str, run_id: str) -> dict[str, tuple[Sink, SinkContext]]:
        """Return the two-phase-commit sinks by uid, each with the context of a writer that acts for all subtasks."""
        job_id, generation = self.spec.job_id, self.generation_log.generation
        schemas = {node.uid: node.schema for node in self.graph.nodes}
        storage = job_storage(self.store, self.spec)
        return {
            uid: (sink, SinkContext(job_id, lineage, uid, 0, 1, generation, run_id, schemas[uid], storage=storage))
            for uid, sink in self.two_phase_sinks.items()
        }

    def check_sources(self, point: RestorePoint, restore: RestoreState) -> None:
        """Check that sources can continue from the snapshot of a new submission. Its own checkpoints are left to the
        run.

        Blocks. Raises SnapshotError when a source cannot continue, StoreError when the snapshot cannot be read.
        """
        if point.checkpoint_id in self._own_checkpoints():
            return
        place = open_location(self.store, self.spec, point.location)
        positions = restore.moved_splits or self._positions(restore, *place)
        for uid, why in check_positions(self.graph, restore, positions).items():
            what = "the source's positions in the snapshot cannot be checked before the run; the run checks them: %s"
            logger.warning(what, why, extra=self.log_context(operator=uid))

    def _positions(self, restore: RestoreState, store: Store, folder: str) -> Splits:
        sources = {node.uid for node in self.graph.nodes if node.source is not None}
        return positions_of(restore, SnapshotStreams(store, folder), sources)

    def splits(self, restore: RestoreState | None) -> Splits:
        """Return all splits of all sources (S4.3).

        Splits come from the snapshot where it has them, and are discovered for the other sources. A source that
        discovers splits while the job runs has none here.
        """
        known = restore.metadata.splits if restore is not None else {}
        out: Splits = {}
        for node in self.graph.nodes:
            if node.uid in known:
                out[node.uid] = [dict(split) for split in known[node.uid]]
            elif node.source is not None and node.source.continuous_discovery() is not None:
                out[node.uid] = []
            elif node.source is not None:
                out[node.uid] = [split_to_json(s) for s in self.discover(node.uid, node.source)]
        return out

    @property
    def sources(self) -> dict[str, Source]:
        """The sources of the job, by uid."""
        return {node.uid: node.source for node in self.graph.nodes if node.source is not None}

    def enumerations(self, restore: RestoreState | None) -> tuple[Enumerations, dict[str, Any]]:
        """Return what one run needs for the sources that discover splits while it runs (S4.3).

        Returns:
            Their enumerations, and source uid -> the state with which its enumerator begins. Sources whose readers have
            all finished are left out.
        """
        restored = restore.metadata.enumerators if restore is not None else {}
        finished = restore.finished if restore is not None else frozenset()
        found: dict[str, SourceEnumeration] = {}
        states: dict[str, Any] = {}
        for chain in self.plan.chains:
            node = self.graph.nodes[chain.nodes[0]]
            discovery = node.source.continuous_discovery() if node.source is not None else None
            readers = [i for i in range(self.plan.parallelism) if (chain.chain_id, i) not in finished]
            if discovery is None or not readers:
                continue
            begun = EnumerationState.from_json(restored[node.uid]) if node.uid in restored else EnumerationState()
            interval_ms = max(1, discovery.interval // timedelta(milliseconds=1))
            found[node.uid] = SourceEnumeration(
                chain.chain_id,
                readers,
                begun,
                interval_ms=interval_ms,
                open_splits=discovery.open_splits,
                after_finished=discovery.after_finished,
            )
            states[node.uid] = begun.state
        return Enumerations(found), states

    def discover(self, uid: str, source: Source) -> Sequence[Split]:
        """Return all splits of a source that starts fresh."""
        return source.discover(self.plan.parallelism)

    def coordinator(self, run_id: str, first_delay_ms: int, commit_only: int | None = None) -> Coordinator:
        """Return a new coordinator for one run. `commit_only`: the stop-savepoint that the run only commits."""
        decisions = self.generation_log.decisions
        options = self.options
        interval = options.checkpoint_interval
        verdicts = self.verdicts
        gone = rewound_checkpoints(self.specs(), entries_by_submission(decisions))
        claimed = claimed_savepoints(decisions, self.specs(), running=self.spec.number)
        gate = None
        if verdicts.gated:
            most, at_end = options.max_uncommitted_checkpoints, self._starts_at_end(decisions)
            gate = CommitGate.of(verdicts, most, commit_only=commit_only is not None, at_end=at_end)
        return Coordinator(
            topology_of(self.graph, self.plan),
            CoordinatorOptions(
                interval_ms=None if interval is None else int(interval.total_seconds() * 1000),
                min_pause_ms=int(options.min_pause_between_checkpoints.total_seconds() * 1000),
                timeout_ms=int(options.checkpoint_timeout.total_seconds() * 1000),
                max_concurrent=options.max_concurrent_checkpoints,
                max_queued=options.max_queued_requests,
                tolerable_failures=options.tolerable_checkpoint_failures,
                retained=options.retained_checkpoints,
                enabled=options.checkpoint_mode != "off",
            ),
            run_id=run_id,
            first_delay_ms=first_delay_ms,
            completed=completed_snapshots(decisions, self._owned_folders(claimed), gone, claimed),
            last_committed=last_committed(decisions, gone),
            restored=restored_checkpoint(decisions, self.specs(), self.spec.number),
            commit_only=commit_only,
            gate=gate,
        )

    def _starts_at_end(self, decisions: Sequence[Decision]) -> bool:
        """Return whether every operator had finished in the snapshot that the next run starts from."""
        point = choose_restore_point(decisions, self.specs(), self.spec.number)
        number = point.log_number if point is not None else 0
        taken = next((d.data for d in decisions if d.number == number and d.kind == "complete"), {})
        return {node.uid for node in self.graph.nodes} <= set(taken.get("finished_operators", ()))

    def garbage(self) -> tuple[AbandonedFolder, ...]:
        """Return the checkpoint folders that are not needed any more when this generation begins (S2.3)."""
        decisions = self.generation_log.decisions
        earlier = [d for d in decisions if d.generation < self.generation_log.generation]
        left, problems = existing_files(self.store, self.spec, [*unfinished_savepoints(earlier)])
        for problem in problems:
            logger.warning("%s", problem, extra=self.log_context())
        return find_abandoned_folders(
            decisions,
            self._owned_folders(claimed_savepoints(decisions, self.specs())) | left,
            self.specs(),
            spec_number=self.spec.number,
            generation=self.generation_log.generation,
            retained=self.options.retained_checkpoints,
            commits=topology_of(self.graph, self.plan).commits,
        )

    def folders_in_use(self) -> frozenset[str]:
        """Return the folders that newer submissions start from. Safe from any thread."""
        specs = self.specs()
        # The usual case: without a newer submission, the log is not read again.
        if specs[-1].number == self.spec.number:
            return frozenset()
        return named_snapshots(self.log.read(), specs, self.spec.number + 1)

    @cached_property
    def shared_files(self) -> SharedFiles:
        """The files that checkpoints share."""

        def required() -> frozenset[str]:
            return named_snapshots(self.generation_log.decisions, self.specs(), self.spec.number)

        generation, check = self.generation_log.generation, self.generation_log.check
        decisions = lambda: self.generation_log.decisions  # noqa: E731
        return SharedFiles(self.store, self.layout, generation, decisions=decisions, required=required, check=check)

    def delete_snapshot(self, location: str) -> None:
        """Delete a snapshot that is not needed any more, with the shared files that only it used. Safe from any thread.

        If the snapshot is a savepoint that was never completed, only files that its run wrote are deleted. Other
        snapshots that the job does not own are left alone.

        Raises:
            FencedError, UnclearAnswerError: another generation may own the job.
            StoreError: some files may be left; repeat the call.
        """
        store, folder = open_location(self.store, self.spec, location)
        # With the slash: a folder of the user may have a name that only begins like the folder of checkpoints.
        if location.startswith(f"{self.layout.checkpoints}/"):
            store.delete_folder(folder)
        elif savepoint := unfinished_savepoints(self.generation_log.decisions).get(location):
            # Nothing to sweep afterwards, because savepoints use no shared files.
            delete_unfinished(store, folder, savepoint)
            return
        elif location in claimed_savepoints(self.generation_log.decisions, self.specs(), running=self.spec.number):
            store.delete_folder(folder)
        self.shared_files.deleted(location)
        self.shared_files.sweep_or_report()

    def delete_checkpoints(self) -> None:
        """Delete all checkpoints, because the job has ended and keeps none (S2.3).

        Kept are checkpoints that newer submissions start from, and checkpoints that wait for a verdict or, approved,
        for their commit. Only the current generation deletes: this is checked before every folder.

        Raises:
            FencedError, UnclearAnswerError: another generation may own the job; the next driver decides about the rest.
            SnapshotError: a kept checkpoint cannot be read, so that all shared files are kept too.
            StoreError: some files may be left.
        """
        verdicts = self.verdicts
        try:
            if verdicts.unmoved:
                self.finish_quarantine_moves(None, AFTER_ALL_RUNS)
            # The output is now in quarantine, so these checkpoints are no longer pinned and can be deleted below.
            verdicts = replace(verdicts, unmoved=())
        except UnclearAnswerError:
            # A StoreError too, but a newer generation may own the job. Nothing more may be deleted then.
            raise
        except (StoreError, SnapshotError) as error:
            logger.warning(
                "rejected output could not be moved to quarantine/ and stays staged: %s",
                error,
                extra=self.log_context(),
            )
        pinned = {verdicts.views[n].path for n in verdicts.pinned}
        for folder in sorted(self._checkpoint_folders() - pinned):
            self.generation_log.check()
            if folder not in self.folders_in_use():  # checked again: deletions take long, and a submission may arrive
                self.store.delete_folder(folder)
                self.shared_files.deleted(folder)
        self.shared_files.sweep()

    def _owned_folders(self, claimed: Collection[str]) -> set[str]:
        """Return the folders of checkpoints and of existing claimed savepoints.

        A savepoint whose store cannot be reached is left out, so that nothing is deleted there.
        """
        found = self._checkpoint_folders()
        for location in claimed:
            try:
                store, folder = open_location(self.store, self.spec, location)
                if store.exists(self.layout.metadata(folder)):
                    found.add(location)
            except StoreError as error:
                what = "claimed savepoint %s is not deleted: its store does not answer; the next driver tries again: %s"
                logger.warning(what, location, error, extra=self.log_context())
        return found

    def _checkpoint_folders(self) -> set[str]:
        return {f"{self.layout.checkpoints}/{name}" for name in self.store.list(self.layout.checkpoints)}


def fresh_splits(
    splits: Mapping[str, Sequence[Mapping[str, Any]]], restore: RestoreState | None
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the splits to assign to readers.

    These are the splits of sources that start fresh. After a rescale they are all splits, with their positions. Without
    a rescale, a restored source has its splits in the state of its readers.
    """
    if restore is None:
        return splits
    fresh = {uid: of_source for uid, of_source in splits.items() if uid not in restore.metadata.splits}
    return {**fresh, **restore.moved_splits}


def topology_of(graph: JobGraph, plan: ExecutionPlan, processing_time_on_end: ProcessingTimeOnEnd = "fire") -> Topology:
    """Return the facts about a plan that the coordinator needs."""
    chains = []
    fire_at_end: list[EmitsAtEnd] = []
    for chain in plan.chains:
        nodes = [graph.nodes[n] for n in chain.nodes]
        chains.append(
            ChainShape(
                chain_id=chain.chain_id,
                operators=tuple(node.uid for node in nodes),
                upstream=tuple((given.upstream_chain, given.exchange != "forward") for given in chain.inputs),
                is_source=not chain.inputs,
                commits=any(node.sink is not None and node.sink.two_phase for node in nodes),
            )
        )
        for node in nodes:
            end = "none" if node.spec is None else node.spec.results_at_end(processing_time_on_end)
            if end == "any":
                fire_at_end.append(EmitsAtEnd(node.uid, chain.chain_id))
            elif end != "none":
                assert node is nodes[0], (
                    f"operator {node.uid!r} emits at the end of one input, but is not the first operator of its chain"
                )
                fire_at_end.append(EmitsAtEnd(node.uid, chain.inputs[end].upstream_chain))
    return Topology(plan.parallelism, tuple(chains), tuple(fire_at_end))


def _log_outage(uid: str, error: Exception) -> None:
    """Log that the input of a source is not reachable at a fresh start. Its splits are discovered again and again."""
    logger.warning(
        "the input of a source is not reachable; the job waits for it: %s", error, extra=context(operator=uid)
    )
