"""Shares of the operators of a slot in its memory for state (S5.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from builders.subtasks import memory_slot, no_location

import tidegate as td
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.state.keyed_state import KeyedStateBackend
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.testing.collect_sink import CollectSink

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("no source is read here")


def stream(p: td.Pipeline, uid: str) -> td.Stream:
    return p.read(td.DataGen(nothing, SCHEMA, rows=1), uid=uid).with_watermark("ts", "0 s")


def shares(draw: Callable[[td.Pipeline], td.Stream], state_backend: Any = "heap") -> dict[tuple[str, int], int]:
    """Return the share of 600 bytes of each subtask with a back end, in a slot with two subtasks of each operator."""
    p = td.Pipeline()
    draw(p).write(CollectSink("state-memory"), uid="out")
    graph = p.build()
    slot = memory_slot(open_location=no_location)
    deployment = Deployment(
        job_id="job",
        lineage="lineage",
        generation=1,
        run_id="r",
        indices=(0, 1),
        mode="exactly_once",
        wait_for_final=True,
        channel_capacity_bytes=1_000,
        splits={node.uid: {} for node in graph.nodes if node.source is not None},
        state_backend=state_backend,
        state_memory_bytes=600,
    )
    operators = [
        o
        for subtask in deploy(make_execution_plan(graph, 2, 16), deployment, slot, None)
        for o in operators_of(subtask)
    ]
    for operator in operators:
        operator.close()
    return {
        (operator.ctx.uid, operator.ctx.subtask): operator.ctx.state_memory_bytes
        for operator in operators
        if has_back_end(operator)
    }


def operators_of(subtask: Any) -> list[Any]:
    return list(subtask._chain.operators)


@pytest.mark.parametrize(
    ("state_backend", "uids"),
    [("rocksdb", ("join", "plain", "as-of", "once")), ("heap", ("plain", "as-of", "once"))],
)
def test_operators_with_a_back_end_share_the_memory_for_state_among_all_subtasks(
    state_backend: str, uids: tuple[str, ...]
) -> None:
    """With `heap`, a join with bounds on times keeps its rows in tables of its own."""
    found = shares(
        lambda p: (
            stream(p, "left")
            .join(stream(p, "right"), on="k", ttl="1 h", suffix="_r", uid="join")
            .join_as_of(stream(p, "versions"), on="k", suffix="_v", uid="as-of")
            .deduplicate("k", within="1 h", uid="once")
            .join(stream(p, "all"), on="k", suffix="_a", uid="plain")
        ),
        state_backend,
    )
    assert found == {(uid, index): 300 // len(uids) for uid in uids for index in (0, 1)}


AGGREGATED = {
    "groups": lambda s: s.group_by("k").agg(n=td.count(), uid="groups"),
    "windows": lambda s: s.group_by("k").window(td.tumbling("1 s")).agg(n=td.count(), uid="windows"),
    "sessions": lambda s: s.group_by("k").window(td.session("1 s")).agg(n=td.count(), uid="sessions"),
    "clocked": lambda s: s.group_by("k").window(td.tumbling("1 s", time="processing")).agg(n=td.count(), uid="clocked"),
}


@pytest.mark.parametrize("uid", AGGREGATED)
@pytest.mark.parametrize("state_backend", ["heap", "rocksdb"])
def test_aggregates_share_it_where_they_are_kept_outside_memory(uid: str, state_backend: str) -> None:
    def draw(p: td.Pipeline) -> td.Stream:
        return AGGREGATED[uid](stream(p, "left").deduplicate("k", uid="once"))

    stored = ("once", uid) if state_backend == "rocksdb" else ("once",)
    assert shares(draw, state_backend) == {(uid, index): 300 // len(stored) for uid in stored for index in (0, 1)}


@pytest.mark.parametrize("uid", AGGREGATED)
def test_in_batch_aggregates_are_kept_in_memory(uid: str) -> None:
    """S8.1: an operator has some keys at a time there; opening a database for them would cost more than they do."""
    p = td.Pipeline()
    AGGREGATED[uid](stream(p, "left").deduplicate("k", uid="once")).write(CollectSink("state-memory"), uid="out")
    specs = {node.uid: node.spec for node in p.build().nodes if node.spec is not None}
    assert specs[uid].backend_in_batch("rocksdb") == "heap"
    assert specs["once"].backend_in_batch("rocksdb") == "rocksdb"


def test_in_batch_a_join_keeps_its_rows_in_a_back_end() -> None:
    """S8.1: no watermark deletes rows there, and tables for rows of all times at once would be dear."""
    p = td.Pipeline()
    joined = stream(p, "left").join(stream(p, "right"), on="k", ttl="1 h", suffix="_r", uid="join")
    joined.write(CollectSink("state-memory"), uid="out")
    (spec,) = (node.spec for node in p.build().nodes if node.uid == "join" and node.spec is not None)
    assert [spec.backend_in_batch(name) for name in ("heap", "rocksdb")] == ["memory", "rocksdb"]
    assert [spec.uses_backend(spec.backend_in_batch(name)) for name in ("heap", "rocksdb")] == [True, True]


def has_back_end(operator: Any) -> bool:
    """It has one, or a state that has."""
    held = [*vars(operator).values()]
    for _ in range(2):
        held += [one for inner in held if hasattr(inner, "__dict__") for one in vars(inner).values()]
    return any(isinstance(one, KeyedStateBackend) for one in held)
