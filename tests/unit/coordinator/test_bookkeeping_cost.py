"""S2.1: what a checkpoint costs the coordinator grows with the number of subtasks, not with its square."""

from __future__ import annotations

import sys
from types import FrameType

from coordinator_driver import SOURCE, TOPOLOGY, WINDOW, Driver, of

from tidegate.coordinator import events as ev
from tidegate.coordinator.events import Acknowledged, Complete
from tidegate.coordinator.metadata_of import drained_operators, operator_states
from tidegate.coordinator.topology import ChainShape, Topology


def calls(parallelism: int) -> int:
    """Python and C calls of a run of its whole life: start, a checkpoint, its commit, the end with a final one."""
    topology = Topology(parallelism, TOPOLOGY.chains)
    count = 0

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_call)
    try:
        d = Driver(topology, interval_ms=None)
        d.start()
        d.ask(request_id="waits for the next line's")
        d.ask(request_id="too")
        d.ack_all(1)
        for i in range(parallelism):
            d.send(ev.SubtaskCommitted((WINDOW, i), 1))
        d.ack_all(2)
        d.end_data()
        (last,) = of([a for s in topology.subtasks() for a in d.ack(s, 3, finished=True)], ev.Complete)
        operator_states(last, topology)
        d.finish()
    finally:
        sys.setprofile(None)
    return count


def test_twice_the_subtasks_cost_twice_the_calls() -> None:
    few, many = calls(100), calls(200)
    assert many < 2.1 * few


def test_what_feeds_a_chain_is_found_through_many_diamonds() -> None:
    """S6.2: 40 diamonds in a row have 2**40 ways from the source to the end."""
    chains = [ChainShape(0, ("src",), (), True, False)]
    for n in range(1, 81, 2):
        above = ((n - 1, True),) if n == 1 else ((n - 1, True), (n - 2, True))
        chains.append(ChainShape(n, (f"left-{n}",), above, False, False))
        chains.append(ChainShape(n + 1, (f"right-{n}",), above, False, False))
    assert Topology(1, tuple(chains)).source_chains_above(80) == {0}


def test_a_drained_operator_is_told_from_one_whose_sources_ended_by_themselves() -> None:
    """S6.2, S7.5: the window hangs on both sources; only one of them has ended."""
    topology = Topology(
        1,
        (
            ChainShape(0, ("bounded",), (), True, False),
            ChainShape(1, ("unbounded",), (), True, False),
            ChainShape(2, ("of bounded",), ((0, True),), False, False),
            ChainShape(3, ("of both",), ((0, True), (1, True)), False, False),
        ),
    )
    acks = {(c, 0): Acknowledged((c, 0), 1, "r", finished=True) for c in (2, 3)}
    acks[1, 0] = Acknowledged((1, 0), 1, "r")
    complete = Complete(1, "stop-savepoint", "drain", "p", 0, acks, frozenset({(SOURCE, 0)}), {})
    assert [s.status for s in operator_states(complete, topology)] == ["finished", "running", "finished", "running"]
    assert drained_operators(complete, topology) == ("unbounded", "of both")
