"""Which subtasks of a snapshot count as finished, and when union state forbids it to complete (S6.2, S6.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from tidegate.channel.control.protocol import Acknowledged
from tidegate.coordinator.checkpointing.finished_operators import naturally_ended_subtasks, union_state_problem
from tidegate.coordinator.events import CompleteCheckpoint
from tidegate.coordinator.topology import ChainShape, Topology

SOURCE, FORWARD, SHUFFLED = 0, 1, 2
TOPOLOGY = Topology(
    2,
    (
        ChainShape(SOURCE, ("src",), (), True, False),
        ChainShape(FORWARD, ("op",), ((SOURCE, False),), False, False),
        ChainShape(SHUFFLED, ("out",), ((FORWARD, True),), False, False),
    ),
)
Places = Collection[tuple[int, int]]


def snapshot(*, gone: Places = (), ended: Places = (), stop: Any = None, kinds: Any = ("union",)) -> CompleteCheckpoint:
    """`gone`: had finished before the trigger; `ended`: acknowledged that all their data had been processed."""
    acks = {
        s: Acknowledged(s, 1, "r", {"op": {"kinds": list(kinds)}} if s[0] == FORWARD else {}, finished=s in ended)
        for s in TOPOLOGY.subtasks()
        if s not in gone
    }
    return CompleteCheckpoint(1, "stop-savepoint" if stop else "checkpoint", stop, "p", 0, acks, frozenset(gone), {})


def test_a_subtask_has_ended_by_itself_when_all_that_feeds_it_has() -> None:
    """S6.2: subtask by subtask where they are fed so; a shuffle is fed by all."""
    ended = {(SOURCE, 1), (FORWARD, 1), (SHUFFLED, 1)}
    assert naturally_ended_subtasks(snapshot(ended=ended), TOPOLOGY) == {(SOURCE, 1), (FORWARD, 1)}
    assert naturally_ended_subtasks(snapshot(gone=ended), TOPOLOGY) == {(SOURCE, 1), (FORWARD, 1)}
    everything = set(TOPOLOGY.subtasks())
    assert naturally_ended_subtasks(snapshot(gone=[(SOURCE, 0)], ended=everything), TOPOLOGY) == everything


def test_what_hangs_on_a_drained_source_has_not_ended_by_itself() -> None:
    """S6.2: source subtask 1 had come to its end, subtask 0 was drained."""
    ended = {(SOURCE, 1), (FORWARD, 0), (FORWARD, 1), (SHUFFLED, 0), (SHUFFLED, 1)}
    assert naturally_ended_subtasks(snapshot(ended=ended, stop="drain"), TOPOLOGY) == {(SOURCE, 1), (FORWARD, 1)}


BOTH = [(SOURCE, 0), (SOURCE, 1), (FORWARD, 0), (FORWARD, 1)]


@pytest.mark.parametrize(
    ("complete", "told"),
    [
        (snapshot(), None),
        (snapshot(gone=[(SOURCE, 1), (FORWARD, 1)]), "1 of its 2 subtasks have finished"),
        (snapshot(ended=[(SOURCE, 1), (FORWARD, 1)]), "1 of its 2 subtasks have finished"),
        (snapshot(ended=[(FORWARD, 1)]), "1 of its 2 subtasks have called finish()"),
        (snapshot(ended=[(SOURCE, 1), (FORWARD, 1)], stop="suspend"), "1 of its 2 subtasks have finished"),
        (snapshot(ended=[(SOURCE, 1), (FORWARD, 0), (FORWARD, 1)], stop="drain"), "1 of its 2 subtasks have finished"),
        (snapshot(ended=[(FORWARD, 0), (FORWARD, 1)], stop="drain"), None),
        (snapshot(ended=BOTH), None),
        (snapshot(gone=[(SOURCE, 1), (FORWARD, 1)], ended=BOTH), None),
        (snapshot(ended=[(SOURCE, 1), (FORWARD, 1)], kinds=("keyed", "broadcast")), None),
    ],
    ids=[
        "all run",
        "one is gone",
        "one has ended",
        "one has called finish, its source has not ended",
        "one ended, one suspended",
        "one ended, one drained",
        "all drained",
        "all ended",
        "all ended, one of them gone",
        "no union state",
    ],
)
def test_union_state_forbids_a_snapshot_of_which_only_a_part_has_finished(
    complete: CompleteCheckpoint, told: str | None
) -> None:
    """S6.3."""
    refusal = union_state_problem(complete, TOPOLOGY)
    assert (refusal is None) == (told is None), refusal
    if told is not None:
        assert refusal is not None and f"operator 'op' has union state, and {told}" in refusal
