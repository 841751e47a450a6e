"""Read a snapshot for a restore: check that it fits the pipeline, then extract each slot's part (S5.5, S6.2, S6.4,
S9.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.recovery.rewind import RewindPlan
from tidegate.errors import SnapshotError
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.restore.compatibility import OperatorFacts, RestoreTarget, SnapshotFacts, check_compatibility
from tidegate.plan.execution_plan import ExecutionPlan
from tidegate.plan.graph_document import graph_document
from tidegate.plan.job_graph import JobGraph
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata
from tidegate.snapshot.redistribution import Rescale, restore_share


@dataclass(frozen=True)
class RestoreState:
    """A snapshot that fits the pipeline.

    Attributes:
        is_fork: it belongs to another lineage, whose transactions do not belong to this job (S7.4).
        finished: subtasks that run no user code (S6.2); all subtasks when only commits are left (S7.7).
        operators: state of the operators that the pipeline still has.
        parallelism: parallelism of the restored job; the snapshot's own is in `metadata`.
        moved_splits: after a rescale, source uid -> all splits of its readers as JSON, with their positions, which are
            assigned again (S4.3).
        permitted: newest checkpoint that the restore commits, with all earlier ones. None: all that the snapshot holds,
            because its completion permits that. With a commit gate: the newest approved one, 0: nothing (S7.8).
        withheld: transactions that are never committed, and move to the folder `quarantine` (S7.8).
        may_share: new checkpoints may reference its files while their content is unchanged (S7.4).
        dropped: operator uid -> states that the operator does not declare any more.
        way_back: effect of this restore on output that was committed later; None: there is no such output (S9.3).
    """

    location: str
    metadata: SnapshotMetadata
    log_number: int
    is_fork: bool
    finished: frozenset[Subtask]
    operators: tuple[OperatorState, ...]
    parallelism: int
    moved_splits: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    permitted: int | None = None
    withheld: Sequence[WithheldRange] = ()
    quarantine: str = ""
    way_back: RewindPlan | None = None
    may_share: bool = False
    dropped: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def rescales(self) -> bool:
        """True when the parallelism differs from the snapshot's."""
        return self.parallelism != self.metadata.parallelism

    def for_slot(self, index: int) -> dict[str, Any]:
        """Return the part of slot `index`'s deployment message that `subtask.snapshots.restored_state.load_restored`
        reads.
        """
        place = Rescale(self.metadata.parallelism, self.parallelism, self.metadata.max_parallelism, index)
        # Sources in `moved_splits` get their splits assigned again.
        # With the old state too, a split would be read twice.
        shares = {op.uid: restore_share(op, place) for op in self.operators if op.uid not in self.moved_splits}
        return {
            "location": self.location,
            "checkpoint_id": self.metadata.checkpoint_id if self.permitted is None else self.permitted,
            "generation": self.metadata.generation,
            "log_number": self.log_number,
            "is_fork": self.is_fork,
            "parallelism": self.metadata.parallelism,
            "shares": {uid: share.to_json() for uid, share in shares.items() if share is not None},
            "finished": [list(s) for s in self.finished if s[1] == index],
            "drained": list(self.metadata.drained_operators),
            "after_drain": self.metadata.stop_mode == "drain",
            "withheld": [withheld.to_json() for withheld in self.withheld],
            "quarantine": self.quarantine,
            "may_share": self.may_share,
            "dropped": {uid: list(names) for uid, names in self.dropped.items()},
        }


def check_snapshot_fits(
    location: str,
    metadata: SnapshotMetadata,
    graph: JobGraph,
    plan: ExecutionPlan,
    *,
    lineage: str,
    log_number: int,
    allow_non_restored_state: bool,
    commit_only: bool,
    state_backend: str | None = None,
) -> RestoreState:
    """Return the restore state, or raise SnapshotError with operators, numbers and the remedy if the snapshot does not
    fit.

    Snapshots of a drain are checked separately (`recovery.check_drained`).
    """
    where = f"snapshot {location}"
    target = RestoreTarget(
        graph_document(graph),
        plan.parallelism,
        plan.max_parallelism,
        allow_non_restored_state=allow_non_restored_state,
        allow_drained=True,
        commit_only=commit_only,
        state_backend=state_backend,
        is_fork=metadata.lineage != lineage,
    )
    verdict = check_compatibility(restore_target(metadata), target)
    for finding in verdict.refused:
        raise SnapshotError(finding.what, where=where, cause=finding.cause, remedy=finding.remedy)
    known = {node.uid for node in graph.nodes}
    runs_code = {node.uid for node in graph.nodes if node.spec is not None}
    operators = tuple(
        drop_finished_state(op) if op.uid in runs_code else op for op in metadata.operators if op.uid in known
    )
    status = {op.uid: op.status for op in operators}
    finished = frozenset(
        (chain.chain_id, index)
        for chain in plan.chains
        # An operator that the snapshot does not know has no status, so that its chain runs its code.
        if commit_only or all(status.get(graph.nodes[n].uid) == "finished" for n in chain.nodes)
        for index in range(plan.parallelism)
    )
    is_fork = metadata.lineage != lineage
    dropped: dict[str, list[str]] = {}
    for finding in verdict.findings:
        if finding.code == "lost_state" and finding.uid is not None and finding.state is not None:
            dropped.setdefault(finding.uid, []).append(finding.state)
    return RestoreState(location, metadata, log_number, is_fork, finished, operators, plan.parallelism, dropped=dropped)


def drop_finished_state(operator: OperatorState) -> OperatorState:
    """Return the operator without the state of its finished subtasks, if other subtasks have not finished.

    Finished subtasks have emitted everything (S6.2). Not for sources and sinks: positions are kept, and staged output
    is to be committed.
    """
    if operator.status != "partially_finished":
        return operator
    subtasks = tuple(replace(state, handle=None) if state.finished else state for state in operator.subtasks)
    return replace(operator, subtasks=subtasks)


def restore_target(metadata: SnapshotMetadata) -> SnapshotFacts:
    """Return the snapshot in the form that `jobs.restore.compatibility` takes."""
    operators = []
    for operator in metadata.operators:
        handles = [state.handle for state in operator.subtasks if state.handle is not None]
        tells_kinds = all(handle.kinds is not None for handle in handles)
        formats = tuple(sorted({name for handle in handles for name in handle.formats}))
        ended = frozenset(state.index for state in operator.subtasks if state.finished)
        operators.append(OperatorFacts(operator.uid, operator.status, bool(handles), tells_kinds, formats, ended))
    drained = metadata.drained_operators
    return SnapshotFacts(metadata.parallelism, metadata.max_parallelism, tuple(operators), metadata.graph, drained)
