"""Reading a snapshot for a restore: checks that it fits the pipeline, then what each slot needs of it (S5.5, S6.2,
S6.4, S9.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.contract.errors import SnapshotError
from tidegate.contract.verdicts import Withheld
from tidegate.coordinator.events import Subtask
from tidegate.coordinator.going_back import WayBack
from tidegate.plan.execution import ExecutionPlan
from tidegate.plan.graph import JobGraph
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata
from tidegate.snapshot.redistribution import Rescale, share_of


@dataclass(frozen=True)
class Restore:
    """A snapshot that fits the pipeline.

    Attributes:
        is_fork: it belongs to another lineage, whose transactions are none of ours (S7.4).
        finished: subtasks that run no user code (S6.2); all of them when only commits are left (S7.7).
        operators: state of the operators that the pipeline has.
        parallelism: of the restored job; the snapshot's own is in `metadata`.
        moved_splits: at another parallelism, source uid -> all splits of its readers, as JSON, with their positions:
            they are assigned anew (S4.3).
        permitted: what the restore commits, with what is in front of it; None: all that the snapshot holds, which its
            completion permits. Behind a commit gate what is approved, 0: nothing (S7.8).
        withheld: what of it is never committed, and goes to the folder `quarantine` (S7.8).
        way_back: what the start from it means for what was committed behind it; None: nothing was (S9.3).
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
    withheld: Sequence[Withheld] = ()
    quarantine: str = ""
    way_back: WayBack | None = None

    @property
    def rescales(self) -> bool:
        """The parallelism is another than the snapshot's."""
        return self.parallelism != self.metadata.parallelism

    def for_slot(self, index: int) -> dict[str, Any]:
        """The part of the deployment message of slot `index`; `subtask.restored.load_restored` takes it."""
        place = Rescale(self.metadata.parallelism, self.parallelism, self.metadata.max_parallelism, index)
        shares = {op.uid: share_of(op, place) for op in self.operators if op.uid not in self.moved_splits}
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
            "withheld": [withheld.to_json() for withheld in self.withheld],
            "quarantine": self.quarantine,
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
    operators = tuple(op for op in metadata.operators if op.uid in known)
    if metadata.parallelism != plan.parallelism:
        _require_kinds(operators, metadata, plan.parallelism, where)
    status = {op.uid: op.status for op in operators}
    if not commit_only:
        _refuse_running_before_finished(status, graph, where)
        _refuse_mixed_chains(status, graph, plan, where)
    finished = frozenset(
        (chain.chain_id, index)
        for chain in plan.chains
        if commit_only or all(status.get(graph.nodes[n].uid) == "finished" for n in chain.nodes)
        for index in range(plan.parallelism)
    )
    is_fork = metadata.lineage != lineage
    return Restore(location, metadata, log_number, is_fork, finished, operators, plan.parallelism)


def _has_state(operator: OperatorState) -> bool:
    return any(state.handle is not None for state in operator.subtasks)


def _require_kinds(operators: Sequence[OperatorState], metadata: SnapshotMetadata, wanted: int, where: str) -> None:
    """Streams of earlier versions hold rows that do not tell how they are to be shared out."""
    for operator in operators:
        if any(state.handle is not None and state.handle.kinds is None for state in operator.subtasks):
            raise SnapshotError(
                f"the state of operator {operator.uid!r} can be restored with parallelism {metadata.parallelism}, "
                f"not with {wanted}",
                where=where,
                cause="an earlier version, which did not change the parallelism of a job, wrote the snapshot",
                remedy=f"Restore it with parallelism={metadata.parallelism}; a savepoint taken then can be rescaled",
            )


def _refuse_running_before_finished(status: Mapping[str, str], graph: JobGraph, where: str) -> None:
    """S6.4: rows of a running operator would come to subtasks that have ended."""
    for node in graph.nodes:
        for edge in node.inputs:
            feeder = graph.nodes[edge.upstream].uid
            if status.get(feeder) == "finished":
                continue
            if status.get(node.uid) == "finished":
                raise _misfit(
                    f"operator {feeder!r}, which has not finished, stands in front of {node.uid!r}, which has", where
                )
            if status.get(node.uid) == "partially_finished" and edge.exchange != "forward":
                raise _misfit(
                    f"operator {feeder!r}, which has not finished, feeds by {edge.exchange} all subtasks of "
                    f"{node.uid!r}, some of which have",
                    where,
                )


def _refuse_mixed_chains(status: Mapping[str, str], graph: JobGraph, plan: ExecutionPlan, where: str) -> None:
    """S6.4: the operators of a chain end together."""
    for chain in plan.chains:
        uids = [graph.nodes[n].uid for n in chain.nodes]
        ended = [uid for uid in uids if status.get(uid) == "finished"]
        running = [uid for uid in uids if status.get(uid) != "finished"]
        if ended and running:
            raise _misfit(
                f"operator {running[0]!r}, which has not finished, runs in one chain with {ended[0]!r}, which has",
                where,
            )


def _misfit(what: str, where: str) -> SnapshotError:
    return SnapshotError(
        what,
        where=where,
        cause="the pipeline is not the one that the snapshot was taken of",
        remedy="Restore a snapshot from before the end of that operator, or put new operators elsewhere",
    )
