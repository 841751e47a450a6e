"""What the operators of a slot may hold of its memory for state (S5.2)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tidegate as td
from tidegate.plan.execution import plan
from tidegate.state.contract import KeyedStateBackend
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.subtask.slot import Slot, Wake
from tidegate.testing.collect import CollectSink
from tidegate.testing.in_process import InlineExecutor

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("no source is read here")


def stream(p: td.Pipeline, uid: str) -> td.Stream:
    return p.read(td.DataGen(nothing, SCHEMA, rows=1), uid=uid).with_watermark("ts", "0 s")


def test_operators_with_a_back_end_share_the_memory_for_state_among_all_subtasks() -> None:
    p = td.Pipeline()
    (
        stream(p, "left")
        .join(stream(p, "right"), on="k", ttl="1 h", suffix="_r", uid="join")
        .join_as_of(stream(p, "versions"), on="k", suffix="_v", uid="as-of")
        .deduplicate("k", within="1 h", uid="once")
        .write(CollectSink("state-memory"), uid="out")
    )
    graph = p.build()
    slot = Slot(
        run_id="r",
        generation=1,
        send=lambda message: None,
        open_location=lambda location: (_ for _ in ()).throw(AssertionError(location)),
        threshold_bytes=1,
        writers=InlineExecutor(),
        now_ms=lambda: 0,
        wake=Wake(),
    )
    deployment = Deployment(
        job_id="job",
        lineage="lineage",
        generation=1,
        run_id="r",
        indices=(0, 1),
        mode="exactly_once",
        wait_for_final=True,
        channel_capacity_bytes=1_000,
        splits={"left": {}, "right": {}, "versions": {}},
        state_memory_bytes=600,
    )
    subtasks = deploy(graph, plan(graph, 2, 16), deployment, slot, None)
    shares = {
        (operator.ctx.uid, operator.ctx.subtask): operator.ctx.state_memory_bytes
        for subtask in subtasks
        for operator in subtask._chain.operators
        if has_back_end(operator)
    }
    assert shares == {(uid, index): 100 for uid in ("join", "as-of", "once") for index in (0, 1)}


def has_back_end(operator: Any) -> bool:
    """It has one, or a state that has."""
    held = [*vars(operator).values()]
    held += [one for inner in held if hasattr(inner, "__dict__") for one in vars(inner).values()]
    return any(isinstance(one, KeyedStateBackend) for one in held)
