"""S2.1: what a checkpoint costs the coordinator grows with the number of subtasks, and what a log costs with its
length: neither with the square."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType

import pytest
from coordinator_driver import SOURCE, TOPOLOGY, WINDOW, Driver, of

from tidegate.channel.control.protocol import Acknowledged, SubtaskCommitted
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.collected_metadata import drained_operators, operator_metadata
from tidegate.coordinator.checkpointing.finished_operators import naturally_ended_subtasks
from tidegate.coordinator.events import CompleteCheckpoint
from tidegate.coordinator.topology import ChainShape, EmitsAtEnd, Topology
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.history.checkpoints import checkpoint_views
from tidegate.jobs.history.submissions import entries_by_submission
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, DecisionKind
from tidegate.jobs.stores.in_memory import MemoryStore


def calls_of(work: Callable[[], object]) -> int:
    """Python and C calls."""
    count = 0

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def calls(parallelism: int) -> int:
    """Of a run of its whole life: start, a checkpoint, its commit, the end with a final one."""
    topology = Topology(parallelism, TOPOLOGY.chains)

    def life() -> None:
        d = Driver(topology, interval_ms=None)
        d.start()
        d.ask(request_id="waits for the next line's")
        d.ask(request_id="too")
        d.ack_all(1)
        for i in range(parallelism):
            d.send(SubtaskCommitted((WINDOW, i), 1))
        d.ack_all(2)
        d.end_data()
        (last,) = of([a for s in topology.subtasks() for a in d.ack(s, 3, finished=True)], ev.CompleteCheckpoint)
        operator_metadata(last, topology)
        d.finish()

    return calls_of(life)


def log_of(checkpoints: int) -> list[Decision]:
    """A driver's log after so many checkpoints, all committed."""
    written: list[tuple[DecisionKind, dict[str, object]]] = [("fence", {"spec": 1, "launch": 1})]
    for n in range(1, checkpoints + 1):
        data = {"checkpoint_id": n, "kind": "checkpoint", "path": f"job/checkpoints/chk-{n}-g1"}
        written += [("claim", data), ("complete", data), ("committed", {"checkpoint_id": n})]
    return [Decision(i, kind, 1, "r", "", "", data) for i, (kind, data) in enumerate(written, 1)]


def test_twice_the_subtasks_cost_twice_the_calls() -> None:
    few, many = calls(100), calls(200)
    assert many < 2.1 * few


def test_a_log_of_twice_the_length_costs_twice_the_calls() -> None:
    """S2.5: every start of a driver or run, and every look at a job's checkpoints, goes through the whole log."""
    few, many = (
        calls_of(partial(checkpoint_views, entries_by_submission(log_of(checkpoints)), ended=False))
        for checkpoints in (200, 400)
    )
    assert many < 2.1 * few


def test_an_append_costs_the_same_however_much_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.1: neither taken apart on its way to the store, nor read back; what is held is what a reader reads."""
    store, nonces = MemoryStore("append-cost"), map(str, itertools.count())
    log = DecisionLog(store, JobLayout("job"), lambda: "", lambda: next(nonces))
    generation_log = log.begin_generation(spec=1, launch=1)
    much = {"checkpoint_id": 1, "subtasks": {f"0.{i}": {"ack_ms": 1.5} for i in range(100)}}
    with monkeypatch.context() as patched:
        patched.delattr("tidegate.jobs.decision_log.read_record")
        few, many = (calls_of(partial(generation_log.append, "complete", data)) for data in ({}, much))
    assert many < few + 20
    assert generation_log.decisions == DecisionLog(store, JobLayout("job"), lambda: "", lambda: "").read()


def test_what_feeds_a_chain_is_found_through_many_diamonds() -> None:
    """S6.2: 40 diamonds in a row have 2**40 ways from the source to the end."""
    chains = [ChainShape(0, ("src",), (), True, False)]
    for n in range(1, 81, 2):
        above = ((n - 1, True),) if n == 1 else ((n - 1, True), (n - 2, True))
        chains.append(ChainShape(n, (f"left-{n}",), above, False, False))
        chains.append(ChainShape(n + 1, (f"right-{n}",), above, False, False))
    topology = Topology(1, tuple(chains))
    acks = {(c, 0): Acknowledged((c, 0), 1, "r", finished=c != 80) for c in range(1, 81)}
    complete = CompleteCheckpoint(1, "checkpoint", None, "p", 0, acks, frozenset({(0, 0)}), {})
    assert naturally_ended_subtasks(complete, topology) == {(c, 0) for c in range(80)}


def test_a_drained_operator_is_told_from_one_whose_sources_ended_by_themselves() -> None:
    """S6.2, S7.5: the window hangs on both sources; only one of them has ended. Named are those that fire at the end: a
    join when its build side's source was drained."""
    topology = Topology(
        1,
        (
            ChainShape(0, ("bounded",), (), True, False),
            ChainShape(1, ("unbounded",), (), True, False),
            ChainShape(2, ("of bounded",), ((0, True),), False, False),
            ChainShape(3, ("of both",), ((0, True), (1, True)), False, False),
        ),
        (EmitsAtEnd("of bounded", 2), EmitsAtEnd("of both", 3), EmitsAtEnd("join", 0), EmitsAtEnd("half a join", 1)),
    )
    acks = {(c, 0): Acknowledged((c, 0), 1, "r", finished=True) for c in (2, 3)}
    acks[1, 0] = Acknowledged((1, 0), 1, "r")
    complete = CompleteCheckpoint(1, "stop-savepoint", "drain", "p", 0, acks, frozenset({(SOURCE, 0)}), {})
    assert [s.status for s in operator_metadata(complete, topology)] == ["finished", "running", "finished", "running"]
    assert drained_operators(complete, topology) == ("of both", "half a join")
    assert drained_operators(replace(complete, stop="suspend"), topology) == ()
