"""S3.7 at deployment: who may overtake, and where the in-flight data of a snapshot goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from builders.subtasks import memory_slot, no_location

from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.channel.elements import Watermark
from tidegate.connectors.datagen import DataGen
from tidegate.errors import SnapshotError
from tidegate.operators.stream_operator import CommitPermit
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.snapshot.channel_state import InFlightElement, channel_part
from tidegate.snapshot.parts import StatePart
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.subtask.snapshots.restored_state import RestoredState
from tidegate.subtask.subtask import Subtask
from tidegate.testing.collect_sink import CollectSink

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("ms"))])
NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("no source is read here")


def pipeline() -> Pipeline:
    """numbers (forward) and names (broadcast) -> join -> (hash) -> windows -> out."""
    p = Pipeline()
    names = p.read(DataGen(nothing, NAMES, rows=1), uid="names")
    (
        p.read(DataGen(nothing, SCHEMA, rows=1), uid="numbers")
        .with_watermark("ts", "0 s")
        .join(names.broadcast(), on="k", uid="join")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), uid="windows")
        .write(CollectSink("deployed-replay"), uid="out")
    )
    return p


def deployed(
    parts: Mapping[tuple[str, int], Sequence[StatePart]], parallelism: int = 2, unaligned_after_ms: int | None = 0
) -> dict[tuple[str, int], Subtask]:
    """Subtasks by uid of the chain's head, and index."""
    graph = pipeline().build()
    execution = make_execution_plan(graph, parallelism, 16)
    slot = memory_slot(open_location=no_location)
    deployment = Deployment(
        job_id="job",
        lineage="lineage",
        generation=1,
        run_id="r",
        indices=tuple(range(parallelism)),
        mode="exactly_once",
        wait_for_final=True,
        channel_capacity_bytes=1_000,
        splits={"numbers": {}, "names": {}},
        restored=RestoredState(CommitPermit(1, 1, 1), parts, ()),
        unaligned_after_ms=unaligned_after_ms,
    )
    subtasks = deploy(execution, deployment, slot, None)
    heads = {chain.chain_id: graph.nodes[chain.nodes[0]].uid for chain in execution.chains}
    return {(heads[s.subtask[0]], s.subtask[1]): s for s in subtasks}


def joined(*keys: int) -> pa.RecordBatch:
    """Records between join and windows."""
    times = pa.array(keys, pa.int64()).cast(pa.timestamp("ms"))
    columns = {"k": pa.array(keys, pa.int64()), "ts": times, "name": pa.array([f"n{k}" for k in keys])}
    return pa.record_batch(columns)


def test_subtasks_with_a_forward_or_broadcast_input_always_align() -> None:
    """S3.7."""
    subtasks = deployed({})
    assert {uid: subtasks[(uid, 0)]._overtakes for uid in ("numbers", "names", "join", "windows")} == {
        "numbers": True,
        "names": True,
        "join": False,
        "windows": True,
    }


def test_without_the_option_nobody_overtakes_and_nothing_can_be_overdrawn() -> None:
    """S3.7."""
    for subtask in deployed({}, unaligned_after_ms=None).values():
        assert not subtask._overtakes
        for edge in subtask._router.edges:
            for channel in edge.channels:
                channel.send(pa.record_batch({"v": list(range(200))}))
                channel.overdraw(True)
                assert not channel.has_capacity()


def test_a_subtask_gets_its_in_flight_data_back_on_the_channels_it_came_from() -> None:
    """S3.7."""
    elements = [InFlightElement(0, 0, joined(1)), InFlightElement(0, 1, joined(2)), InFlightElement(0, 1, 77)]
    windows = deployed({("windows", 1): [channel_part(elements, 1, 2)]})[("windows", 1)]
    replay = windows._inputs.replay_left()
    assert [number for number, _ in replay] == [0, 1, 1]
    assert replay[2][1] == Watermark(77)


def test_at_another_parallelism_every_row_goes_to_the_owner_of_its_key() -> None:
    """S3.7, S5.5."""
    parts = [
        channel_part([InFlightElement(0, 0, joined(*range(j, 40, 2))), InFlightElement(0, 0, 9)], j, 2)
        for j in range(2)
    ]
    subtasks = deployed({("windows", i): parts for i in range(3)}, parallelism=3)
    keys: list[int] = []
    for i in range(3):
        replay = subtasks[("windows", i)]._inputs.replay_left()
        assert all(number == 0 and isinstance(element, pa.RecordBatch) for number, element in replay)
        mine = [k for _, element in replay for k in element["k"].to_pylist()]  # type: ignore[union-attr]
        cut = subtasks[("join", 0)]._router.edges[0].partition
        assert cut is not None
        owned = cut(joined(*mine))
        assert all((part is not None) == (target == i) for target, part in enumerate(owned))
        keys += mine
    assert sorted(keys) == list(range(40))


@pytest.mark.parametrize(
    ("uid", "element", "message"),
    [
        ("windows", pa.record_batch({"k": pa.array([1], pa.int64())}), r"without the columns \['ts'\]"),
        ("windows", joined(1).set_column(0, "k", pa.array(["1"])), "with other types"),
        ("out", joined(1), "input 0 of the operator, which the pipeline no longer has"),
        ("join", joined(1), "forward or broadcast"),
    ],
)
def test_in_flight_data_that_the_pipeline_has_no_place_for_is_refused(
    uid: str, element: pa.RecordBatch, message: str
) -> None:
    """S3.7, S9.3: also when its operator is no longer the head of a chain."""
    with pytest.raises(SnapshotError, match=message) as refused:
        deployed({(uid, 0): [channel_part([InFlightElement(0, 0, element)], 0, 2)]})
    assert refused.value.where == f"operator {uid!r}, subtask 0"
