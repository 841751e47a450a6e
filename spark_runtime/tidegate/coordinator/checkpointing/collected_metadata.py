"""Build the `_metadata` of a snapshot from the collected acknowledgements (S2.1, S6.2). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.checkpointing.finished_operators import naturally_ended_subtasks
from tidegate.coordinator.events import CompleteCheckpoint
from tidegate.coordinator.topology import Topology
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.metadata import OperatorState, SubtaskState

MAX_SUBTASKS_IN_HISTORY = 64
"""Most subtasks whose acknowledgement a "complete" entry stores. Limits the entry to about 15 KiB."""


def operator_metadata(complete: CompleteCheckpoint, topology: Topology) -> tuple[OperatorState, ...]:
    """Return the state of every operator: finished, partially finished or running, and a handle per subtask.

    Operators are finished only if all their sources ended naturally. A drained source and its downstream operators are
    not finished (S6.2).
    """
    really = naturally_ended_subtasks(complete, topology)
    out: list[OperatorState] = []
    for chain in topology.chains:
        mine = [(chain.chain_id, i) for i in range(topology.parallelism)]
        count = sum(s in really for s in mine)
        status: Literal["running", "partially_finished", "finished"]
        status = "finished" if count == len(mine) else "partially_finished" if count else "running"
        for uid in chain.operators:
            subtasks = tuple(_subtask_state(s, uid, s in really, complete) for s in mine)
            out.append(OperatorState(uid, status, subtasks))
    return tuple(out)


def drained_operators(complete: CompleteCheckpoint, topology: Topology) -> tuple[str, ...]:
    """Return the uids of operators that a drain fired early, because one of their sources had not ended (S7.5)."""
    if complete.stop != "drain":
        return ()
    really = naturally_ended_subtasks(complete, topology)
    subtasks = range(topology.parallelism)
    return tuple(f.uid for f in topology.fire_at_end if any((f.chain_id, i) not in really for i in subtasks))


def subtask_history(complete: CompleteCheckpoint) -> dict[str, dict[str, float]]:
    """Return the metrics of every subtask's acknowledgement for the history (S2.5).

    Keys are "chain.index". Values are `ack_ms` after the trigger, sync, async and alignment time, start delay, and
    bytes. If the job has more than MAX_SUBTASKS_IN_HISTORY subtasks, only that many are kept: the slowest.
    """
    slowest = sorted(complete.acks.values(), key=lambda ack: -ack.metrics.get("ack_ms", 0))
    kept = sorted(slowest[:MAX_SUBTASKS_IN_HISTORY], key=lambda ack: ack.subtask)
    return {f"{ack.subtask[0]}.{ack.subtask[1]}": dict(ack.metrics) for ack in kept}


def _subtask_state(subtask: Subtask, uid: str, finished: bool, complete: CompleteCheckpoint) -> SubtaskState:
    ack = complete.acks.get(subtask)
    document: Mapping[str, Any] | None = ack.operators.get(uid) if ack is not None else None
    handle = StateHandle.from_json(document) if document is not None else None
    return SubtaskState(subtask[1], finished, handle)
