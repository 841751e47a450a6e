"""Compute which subtasks a snapshot triggers and waits for, from one view of all subtask states (S1.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.topology import Topology

SubtaskState = Literal["created", "running", "ended", "finished"]
"""`ended`: still running, has forwarded EndOfData, and waits for its final snapshot (S7.3)."""


@dataclass(frozen=True)
class CheckpointPlan:
    """Subtasks by their part in a snapshot.

    Attributes:
        to_trigger: subtasks that receive the trigger, because no upstream subtask is left to send them barriers.
        wait_for: running subtasks that must acknowledge; contains `to_trigger`.
        finished: subtasks that have finished.
        missing: subtasks that do not run yet.
    """

    to_trigger: tuple[Subtask, ...]
    wait_for: frozenset[Subtask]
    finished: frozenset[Subtask]
    missing: tuple[Subtask, ...]


def plan_checkpoint(topology: Topology, states: Mapping[Subtask, SubtaskState]) -> CheckpointPlan:
    """Return the plan for a snapshot that starts now. Linear in the number of subtasks."""
    to_trigger: list[Subtask] = []
    wait_for: list[Subtask] = []
    finished: list[Subtask] = []
    missing: list[Subtask] = []
    p = topology.parallelism
    all_finished = [False] * len(topology.chains)
    for chain in topology.chains:
        states_here = [states[(chain.chain_id, i)] for i in range(p)]
        # Chains are in topological order, so that the upstream chains below already have their entries.
        all_finished[chain.chain_id] = all(s == "finished" for s in states_here)
        for i, state in enumerate(states_here):
            subtask = (chain.chain_id, i)
            if state == "created":
                missing.append(subtask)
            elif state == "finished":
                finished.append(subtask)
            else:
                wait_for.append(subtask)
                # Also true for sources, because they have no inputs at all.
                fed = all(
                    all_finished[up] if all_to_all else states[(up, i)] == "finished"
                    for up, all_to_all in chain.upstream
                )
                if fed:
                    to_trigger.append(subtask)
    return CheckpointPlan(tuple(to_trigger), frozenset(wait_for), frozenset(finished), tuple(missing))
