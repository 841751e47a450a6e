"""What a driver holds about its job, and what every attempt is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.contract.errors import SnapshotError
from tidegate.contract.layout import JobLayout
from tidegate.contract.log import DecisionLog, Reign
from tidegate.contract.options import JobOptions
from tidegate.contract.records import Spec
from tidegate.contract.status import JobStatus, next_checkpoint_id
from tidegate.contract.store import Store
from tidegate.coordinator.coordinator import Coordinator, CoordinatorOptions
from tidegate.coordinator.job_run import JobFacts
from tidegate.coordinator.locations import open_location
from tidegate.coordinator.recovery import (
    RestorePoint,
    choose_restore_point,
    completed_after,
    completed_snapshots,
    last_committed,
)
from tidegate.coordinator.restore import Restore, check_restore
from tidegate.coordinator.topology import ChainShape, Topology
from tidegate.plan.execution import ExecutionPlan, graph_document
from tidegate.plan.graph import JobGraph
from tidegate.snapshot.metadata import read_metadata
from tidegate.spark.commands import CommandDesk
from tidegate.spark.hint import HintWriter
from tidegate.spark.retiring import Retiring
from tidegate.subtask.source import split_to_json

Splits = dict[str, list[dict[str, Any]]]
"""Source uid -> all its splits as JSON."""


@dataclass(frozen=True)
class Job:
    """One submission under one reign."""

    root: str
    storage_options: Mapping[str, Any]
    store: Store
    layout: JobLayout
    spec: Spec
    options: JobOptions
    graph: JobGraph
    plan: ExecutionPlan
    log: DecisionLog
    reign: Reign
    hint: HintWriter
    desk: CommandDesk
    retiring: Retiring
    now_iso: Callable[[], str]
    specs: Callable[[], Sequence[Spec]]

    def facts(self) -> JobFacts:
        """For JobRun."""
        return JobFacts(
            store=self.store,
            layout=self.layout,
            spec=self.spec,
            reign=self.reign,
            topology=topology_of(self.graph, self.plan),
            graph_document=graph_document(self.graph),
            max_parallelism=self.plan.max_parallelism,
            savepoint_directory=self.options.savepoint_directory,
            now_iso=self.now_iso,
        )

    def status(self, status: str, **data: Any) -> None:
        """Append a status change; before one that ends the job, what the slots told last is shown."""
        if JobStatus(status).is_terminal:
            self.hint.write_now()
        self.reign.append("status", {"status": status, **data})
        print(f"tidegate: {status} {data.get('reason', '')}".rstrip(), flush=True)

    def next_checkpoint_id(self) -> int:
        """From the log (S1.4)."""
        return next_checkpoint_id(self.log.read())

    def find_restore(self) -> tuple[RestorePoint, Restore] | None:
        """The restore point of the next run, read and checked; None: a fresh start. Raises SnapshotError."""
        decisions = self.log.read()
        point = choose_restore_point(decisions, self.specs(), self.spec.number)
        if point is None:
            return None
        wanted = self.spec.restore
        store, folder = open_location(self.store, self.spec, point.location)
        metadata = read_metadata(store, folder)
        same_job = metadata.job_id == self.spec.job_id
        rewound = completed_after(decisions, metadata.checkpoint_id, self.spec.number) if same_job else []
        sinks = [n.uid for n in self.graph.nodes if n.sink is not None and n.sink.two_phase]
        if rewound and sinks and (wanted is None or wanted.on_committed_after != "accept_duplicates"):
            raise SnapshotError(
                f"checkpoints {rewound} were completed after {point.location} and may be committed already",
                where=f"job {self.spec.job_id}, sinks {', '.join(sinks)}",
                cause="restoring an older snapshot emits their rows again",
                remedy="Restore the latest, or set on_committed_after=accept_duplicates",
            )
        if metadata.drained_operators and not point.commit_only and not (wanted and wanted.allow_drained):
            raise SnapshotError(
                f"snapshot {point.location} was taken by a drain",
                where=f"job {self.spec.job_id}, operators {', '.join(metadata.drained_operators)}",
                cause="their open windows were fired early and would emit again",
                remedy="Restore an earlier snapshot, or set allow_drained to accept that",
            )
        restore = check_restore(
            point.location,
            metadata,
            self.graph,
            self.plan,
            lineage=self.spec.lineage,
            log_number=point.log_number,
            allow_non_restored_state=bool(wanted and wanted.allow_non_restored_state),
            commit_only=point.commit_only,
        )
        return point, restore

    def splits(self, restore: Restore | None) -> Splits:
        """All splits of all sources: the enumerators' state (S4.3). Discovered, but for sources that the snapshot
        knows."""
        known = restore.metadata.splits if restore is not None else {}
        out: Splits = {}
        for node in self.graph.nodes:
            if node.uid in known:
                out[node.uid] = [dict(split) for split in known[node.uid]]
            elif node.source is not None:
                out[node.uid] = [split_to_json(s) for s in node.source.discover(self.plan.parallelism)]
        return out

    def coordinator(self, run_id: str, first_delay_ms: int, commit_only: int | None = None) -> Coordinator:
        """A fresh coordinator for one run; `commit_only`: the stop-savepoint it only commits."""
        decisions = self.log.read()
        options = self.options
        interval = options.checkpoint_interval
        existing = {f"{self.layout.checkpoints}/{name}" for name in self.store.list(self.layout.checkpoints)}
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
            ),
            run_id=run_id,
            first_delay_ms=first_delay_ms,
            completed=completed_snapshots(decisions, existing),
            last_committed=last_committed(decisions),
            commit_only=commit_only,
        )


def fresh_splits(splits: Splits, restore: Restore | None) -> Splits:
    """Those of the sources that start fresh; a restored source has its splits in its readers' state."""
    known = restore.metadata.splits if restore is not None else {}
    return {uid: of_source for uid, of_source in splits.items() if uid not in known}


def assign(splits: Splits, parallelism: int) -> dict[str, dict[int, Sequence[Mapping[str, Any]]]]:
    """Splits to subtask indices: heaviest first to the least loaded, deterministic (S4.3)."""
    out: dict[str, dict[int, Sequence[Mapping[str, Any]]]] = {}
    for uid, of_source in splits.items():
        chosen: list[list[dict[str, Any]]] = [[] for _ in range(parallelism)]
        load = [0] * parallelism
        for split in sorted(of_source, key=lambda s: -s["weight"]):
            least = load.index(min(load))
            chosen[least].append(split)
            load[least] += split["weight"]
        order = {split["split_id"]: k for k, split in enumerate(of_source)}
        out[uid] = {i: sorted(mine, key=lambda s: order[s["split_id"]]) for i, mine in enumerate(chosen)}
    return out


def topology_of(graph: JobGraph, plan: ExecutionPlan) -> Topology:
    """What the coordinator needs of a plan."""
    chains = []
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
    return Topology(plan.parallelism, tuple(chains))
