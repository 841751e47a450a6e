"""Find subtasks that ended naturally before a snapshot, and check union state of the snapshot (S6.2, S6.3). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator.events import CompleteCheckpoint
from tidegate.coordinator.topology import Topology


def naturally_ended_subtasks(complete: CompleteCheckpoint, topology: Topology) -> frozenset[Subtask]:
    """Return the subtasks that ended naturally: they have processed all their input.

    These are sources that have read all their data, and subtasks whose every input comes only from such subtasks.
    Subtasks that a drain ended are excluded, because their source has more data (S6.2). Linear in the number of
    subtasks.
    """
    ended = set(complete.finished) | {s for s, ack in complete.acks.items() if ack.finished}
    natural: set[Subtask] = set()
    whole: list[bool] = []
    for chain in topology.chains:
        mine = [(chain.chain_id, i) for i in range(topology.parallelism)]
        natural.update(
            (c, i)
            for c, i in mine
            if (c, i) in ended and all(whole[up] if to_all else (up, i) in natural for up, to_all in chain.upstream)
        )
        whole.append(natural.issuperset(mine))
    return frozenset(natural)


def union_state_problem(complete: CompleteCheckpoint, topology: Topology) -> str | None:
    """Return why union state prevents this snapshot from completing, or None.

    Union state is complete only with the part of every subtask. Finished subtasks have no part any more. Parts of
    subtasks that have called finish() would be restored into subtasks that have not called it (S6.3).
    """
    using = sorted({(s[0], uid) for s, ack in complete.acks.items() for uid in _with_union(ack.operators)})
    if not using:
        return None
    natural = naturally_ended_subtasks(complete, topology)
    for chain_id, uid in using:
        mine = [(chain_id, i) for i in range(topology.parallelism)]
        ended = {s for s in mine if s in complete.finished or (s in complete.acks and complete.acks[s].finished)}
        called_finish = set(mine) if complete.stop == "drain" else ended
        for some, what in ((natural & set(mine), "have finished"), (called_finish, "have called finish()")):
            if 0 < len(some) < len(mine):
                return (
                    f"operator {uid!r} has union state, and {len(some)} of its {len(mine)} subtasks {what}: no "
                    f"snapshot can complete until all of them {what}"
                )
    return None


def _with_union(operators: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [uid for uid, handle in operators.items() if "union" in (handle.get("kinds") or ())]
