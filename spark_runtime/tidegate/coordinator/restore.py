"""Reading a snapshot for a restore: checks that it fits the pipeline, then what each slot needs of it (S5.5, S6.2,
S9.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.contract.errors import SnapshotError
from tidegate.coordinator.events import Subtask
from tidegate.plan.execution import ExecutionPlan
from tidegate.plan.graph import JobGraph
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata


@dataclass(frozen=True)
class Restore:
    """A snapshot that fits the pipeline.

    Attributes:
        is_fork: it belongs to another lineage, whose transactions are none of ours (S7.4).
        finished: subtasks that run no user code (S6.2); all of them when only commits are left (S7.7).
    """

    location: str
    metadata: SnapshotMetadata
    log_number: int
    is_fork: bool
    finished: frozenset[Subtask]

    def for_slot(self, index: int) -> dict[str, Any]:
        """The part of the deployment message of slot `index`."""
        handles: dict[str, Any] = {}
        for operator in self.metadata.operators:
            for state in operator.subtasks:
                if state.index == index and state.handle is not None:
                    handles[operator.uid] = state.handle.to_json()
        return {
            "location": self.location,
            "checkpoint_id": self.metadata.checkpoint_id,
            "generation": self.metadata.generation,
            "log_number": self.log_number,
            "is_fork": self.is_fork,
            "handles": handles,
            "finished": [list(s) for s in self.finished if s[1] == index],
        }


def check_restore(
    location: str,
    metadata: SnapshotMetadata,
    graph: JobGraph,
    plan: ExecutionPlan,
    *,
    lineage: str,
    log_number: int,
    allow_non_restored_state: bool,
    commit_only: bool,
) -> Restore:
    """Raises SnapshotError naming operators, numbers and the remedy when the snapshot does not fit."""
    where = f"snapshot {location}"
    if metadata.parallelism != plan.parallelism:
        raise SnapshotError(
            f"the snapshot was taken with parallelism {metadata.parallelism}, the job has {plan.parallelism}",
            where=where,
            cause="this version restores with unchanged parallelism",
            remedy=f"Set parallelism={metadata.parallelism}",
        )
    if metadata.max_parallelism != plan.max_parallelism:
        raise SnapshotError(
            f"max_parallelism is {metadata.max_parallelism} in the snapshot and {plan.max_parallelism} in the job",
            where=where,
            cause="max_parallelism is fixed for the life of a job",
            remedy=f"Set max_parallelism={metadata.max_parallelism}",
        )
    known = {node.uid for node in graph.nodes}
    lost = [op.uid for op in metadata.operators if op.uid not in known and _has_state(op)]
    if lost and not allow_non_restored_state:
        raise SnapshotError(
            f"the pipeline has no operator for the state of {', '.join(map(repr, lost))}",
            where=where,
            cause="an operator was removed or its uid changed",
            remedy="Give the operator its old uid, or set allow_non_restored_state to drop the state",
        )
    by_uid = {op.uid: op for op in metadata.operators}
    finished = frozenset(
        (chain.chain_id, index)
        for chain in plan.chains
        if commit_only or all(_is_finished(by_uid, graph.nodes[n].uid) for n in chain.nodes)
        for index in range(plan.parallelism)
    )
    return Restore(location, metadata, log_number, metadata.lineage != lineage, finished)


def _has_state(operator: OperatorState) -> bool:
    return any(state.handle is not None for state in operator.subtasks)


def _is_finished(by_uid: Mapping[str, OperatorState], uid: str) -> bool:
    return uid in by_uid and by_uid[uid].status == "finished"
