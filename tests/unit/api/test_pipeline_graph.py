"""What graph the calls of the pipeline API draw: nodes, edges, schemas, specs, uids and event time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate
from tidegate import DataGen, Discard, Pipeline, Stream, count, mean, tumbling
from tidegate.api.draft.column_checks import require_key
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.joins.join_specs import BroadcastJoinSpec
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.row_specs import ProjectSpec
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.plan.graph_text import explain_graph
from tidegate.plan.job_graph import Edge, JobGraph, Node

FLIGHTS = pa.schema(
    [
        pa.field("time", pa.timestamp("us"), nullable=False),
        pa.field("carrier", pa.string()),
        pa.field("delay", pa.float64()),
        pa.field("seats", pa.int32()),
    ]
)
AIRLINES = pa.schema([pa.field("carrier", pa.string()), pa.field("name", pa.string(), nullable=False)])


def nothing(numbers: Any) -> dict[str, Any]:
    """A generator that is never called here."""
    raise AssertionError("a pipeline runs nothing while it is built")


def read(p: Pipeline, schema: pa.Schema = FLIGHTS, uid: str = "flights", rows: int | None = None) -> Stream:
    return p.read(DataGen(nothing, schema, rows=rows), uid=uid)


def graph_of(stream: Stream, p: Pipeline) -> JobGraph:
    stream.write(Discard(), uid="out")
    return p.build()


def last_before_sink(stream: Stream, p: Pipeline) -> Node:
    return graph_of(stream, p).nodes[-2]


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_the_pipeline_of_the_design_gives_its_graph() -> None:
    p = Pipeline()
    airlines = read(p, AIRLINES, "airlines", rows=16)
    flights = read(p).with_watermark("time", "1 hour")
    (
        flights.filter(pc.field("delay").is_valid())
        .join(airlines.broadcast(), on="carrier", uid="names")
        .group_by("name")
        .window(tumbling("1 day"))
        .agg(flights=count(), delay=mean("delay"), uid="daily")
        .write(Discard(), uid="out")
    )
    graph = p.build()
    assert [(n.uid, n.kind, n.stateful) for n in graph.nodes] == [
        ("airlines", "source", True),
        ("flights", "source", True),
        ("flights.watermark", "watermark", True),
        ("flights.filter", "filter", False),
        ("names", "join", True),
        ("daily", "window", True),
        ("out", "sink", False),
    ]
    assert graph.by_uid("names").inputs == (Edge(3, "forward"), Edge(0, "broadcast"))
    assert graph.by_uid("daily").inputs == (Edge(4, "hash", ("name",)),)
    assert graph.by_uid("out").inputs == (Edge(5, "forward"),)
    spec = graph.by_uid("daily").spec
    assert isinstance(spec, WindowAggSpec)
    assert (spec.keys, spec.time_column, spec.time_unit) == (("name",), "time", "us")
    assert (spec.size_us, spec.offset_us) == (86_400_000_000, 0)
    assert spec.aggregates == (BoundAggregate("flights", "count"), BoundAggregate("delay", "mean", "delay"))
    assert spec.input_schema == graph.by_uid("names").schema
    assert make_execution_plan(graph, 2, 128).channels == 2 + 4 + 4


def test_what_is_written_through_goes_on_unchanged() -> None:
    p = Pipeline()
    flights = read(p).with_watermark("time", "1 hour")
    written = flights.write_through(Discard(), uid="raw")
    assert (written.schema, written.bounded) == (flights.schema, flights.bounded)
    (
        written.group_by("carrier")
        .window(tumbling("1 day"))
        .agg(n=count(), uid="daily")
        .write_through(Discard(), uid="out")
    )
    graph = p.build()
    assert [(n.uid, n.kind) for n in graph.nodes][-3:] == [("raw", "sink"), ("daily", "window"), ("out", "sink")]
    assert graph.by_uid("daily").inputs == (Edge(2, "hash", ("carrier",)),)
    assert [chain.name for chain in make_execution_plan(graph, 2, 128).chains] == [
        "flights -> flights.watermark -> raw",
        "daily -> out",
    ]
    assert explain_graph(graph).startswith("[out] Discard") and "+- [raw] Discard" in explain_graph(graph)


def test_select_gives_named_columns_then_expressions_in_their_types() -> None:
    p = Pipeline()
    made = read(p).select("delay", pc.field("time"), late=pc.field("delay") > 15, start=pc.field("time"))
    assert made.schema == pa.schema(
        [
            pa.field("delay", pa.float64()),
            pa.field("time", pa.timestamp("us"), nullable=False),
            pa.field("late", pa.bool_()),
            pa.field("start", pa.timestamp("us"), nullable=False),
        ]
    )
    node = last_before_sink(made, p)
    assert isinstance(node.spec, ProjectSpec)
    assert [name for name, _ in node.spec.columns] == made.schema.names
    assert node.spec.schema == node.schema == made.schema


def test_with_columns_replaces_in_place_and_adds_at_the_end() -> None:
    made = read(Pipeline()).with_columns(minutes=pc.field("delay") * 60, carrier=pc.utf8_lower(pc.field("carrier")))
    assert made.schema.names == ["time", "carrier", "delay", "seats", "minutes"]
    assert made.schema.field("minutes").type == pa.float64()


def test_expressions_of_one_call_see_the_columns_as_they_were() -> None:
    made = read(Pipeline()).with_columns(delay=pc.field("seats"), seats=pc.field("delay"))
    assert made.schema.field("delay").type == pa.int32()
    assert made.schema.field("seats").type == pa.float64()


def test_members_of_a_struct_column_can_be_used() -> None:
    schema = pa.schema([("where", pa.struct([("gate", pa.string())]))])
    made = read(Pipeline(), schema).select(gate=pc.field("where", "gate"))
    assert made.schema == pa.schema([("gate", pa.string())])


def test_a_stream_read_twice_feeds_both_readers() -> None:
    p = Pipeline()
    flights = read(p)
    flights.filter(pc.field("delay") > 0).write(Discard(), uid="late")
    flights.write(Discard(), uid="all")
    graph = p.build()
    assert {node.uid for node, _ in graph.consumers(0)} == {"flights.filter", "all"}


def test_a_left_join_makes_the_added_columns_nullable_and_an_inner_one_does_not() -> None:
    for how, nullable in (("inner", False), ("left", True)):
        p = Pipeline()
        airlines = read(p, AIRLINES, "airlines", rows=1)
        made = read(p).join(airlines.broadcast(), ["carrier"], how, uid="names")  # type: ignore[arg-type]
        assert made.schema.names == ["time", "carrier", "delay", "seats", "name"]
        assert made.schema.field("name").nullable is nullable
        spec = last_before_sink(made, p).spec
        assert isinstance(spec, BroadcastJoinSpec)
        assert (spec.on, spec.how, spec.right_schema) == (("carrier",), how, AIRLINES)


def test_aggregates_have_the_types_of_sql() -> None:
    schema = pa.schema(
        [
            ("time", pa.timestamp("ms", "UTC")),
            ("k", pa.date32()),
            ("i", pa.int8()),
            ("u", pa.uint64()),
            ("f", pa.float32()),
            ("day", pa.date32()),
            ("s", pa.string()),
        ]
    )
    windows = read(Pipeline(), schema).with_watermark("time", "0 s").group_by("k").window(tumbling("10 s"))
    made = windows.agg(
        uid="w",
        rows=tidegate.count(),
        names=tidegate.count("s"),
        i=tidegate.sum("i"),
        u=tidegate.sum("u"),
        f=tidegate.sum("f"),
        low=tidegate.min("f"),
        first=tidegate.min("time"),
        last=tidegate.max("day"),
        top=tidegate.max("u"),
        average=tidegate.mean("i"),
    )
    assert {f.name: f.type for f in made.schema} == {
        "k": pa.date32(),
        "window_start": pa.timestamp("us"),
        "window_end": pa.timestamp("us"),
        "rows": pa.int64(),
        "names": pa.int64(),
        "i": pa.int64(),
        "u": pa.int64(),
        "f": pa.float64(),
        "low": pa.float32(),
        "first": pa.timestamp("ms", "UTC"),
        "last": pa.date32(),
        "top": pa.uint64(),
        "average": pa.float64(),
    }


def test_a_window_offset_is_taken_modulo_the_size() -> None:
    assert tumbling("1 day", "5 hours").offset_us == 5 * 3600 * 10**6
    assert tumbling(timedelta(hours=1), offset="90 min").offset_us == 30 * 60 * 10**6


def test_an_integer_event_time_takes_its_unit() -> None:
    p = Pipeline()
    made = read(p, pa.schema([("ts_ms", pa.int64())])).with_watermark("ts_ms", "1500 ms", unit="ms")
    assert last_before_sink(made, p).spec == WatermarkSpec("ts_ms", 1_500_000, "ms")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_event_time_has_its_own_unit(unit: str) -> None:
    p = Pipeline()
    made = read(p, pa.schema([("t", pa.timestamp(unit))])).with_watermark("t", "0 s")
    spec = last_before_sink(made, p).spec
    assert isinstance(spec, WatermarkSpec)
    assert spec.unit == unit


def window_time(stream: Stream, p: Pipeline) -> str:
    spec = last_before_sink(stream.group_by("carrier").window(tumbling("1 h")).agg(n=count(), uid="w"), p).spec
    assert isinstance(spec, WindowAggSpec)
    return spec.time_column


def test_event_time_follows_a_rename() -> None:
    p = Pipeline()
    stream = read(p).with_watermark("time", "0 s").select("carrier", departed=pc.field("time"))
    assert window_time(stream, p) == "departed"


def test_event_time_stays_with_its_own_name_when_it_is_also_copied() -> None:
    p = Pipeline()
    stream = read(p).with_watermark("time", "0 s").with_columns(copy=pc.field("time"))
    assert window_time(stream, p) == "time"


def test_event_time_survives_a_map_that_keeps_the_column() -> None:
    p = Pipeline()
    stream = read(p).with_watermark("time", "0 s").map_in_arrow(pass_on, FLIGHTS)
    assert window_time(stream, p) == "time"


def test_event_time_of_a_union_is_that_of_all_its_inputs() -> None:
    p = Pipeline()
    one = read(p, uid="one").with_watermark("time", "0 s")
    other = read(p, uid="other").with_watermark("time", "1 h")
    assert window_time(one.union(other), p) == "time"


def test_a_later_watermark_takes_over() -> None:
    p = Pipeline()
    stream = read(p).with_watermark("time", "0 s").with_columns(landed=pc.field("time")).with_watermark("landed", "0 s")
    assert window_time(stream, p) == "landed"


def test_a_union_matches_columns_by_name_and_relaxes_not_null() -> None:
    p = Pipeline()
    strict = read(p, pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]), "strict")
    turned = read(p, pa.schema([pa.field("b", pa.string()), pa.field("a", pa.int64())]), "turned")
    made = strict.union(turned)
    assert made.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])
    graph = graph_of(made, p)
    union = next(n for n in graph.nodes if n.kind == "union")
    assert [graph.nodes[e.upstream].schema for e in union.inputs] == [made.schema, made.schema]
    operator = graph.nodes[union.inputs[1].upstream].spec
    assert isinstance(operator, ProjectSpec)
    batch = pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]}, schema=turned.schema)
    (out,) = create_operator(operator).process(batch, 0)
    assert out == pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]}, schema=made.schema)


def test_a_union_is_bounded_only_when_all_its_inputs_are() -> None:
    p = Pipeline()
    bounded, endless = read(p, uid="one", rows=1), read(p, uid="other")
    assert bounded.union(bounded).bounded
    assert not bounded.union(endless).bounded


def test_derived_uids_do_not_move_when_an_operator_is_added_elsewhere() -> None:
    def uids(*, filtered: bool) -> list[str]:
        p = Pipeline()
        stream = read(p)
        if filtered:
            stream = stream.filter(pc.field("delay") > 0)
        return [n.uid for n in graph_of(stream.with_watermark("time", "0 s"), p).nodes]

    assert uids(filtered=False) == ["flights", "flights.watermark", "out"]
    assert uids(filtered=True) == ["flights", "flights.filter", "flights.watermark", "out"]


def test_a_derived_uid_gives_way_to_one_that_the_user_gave_later() -> None:
    p = Pipeline()
    stream = read(p).filter(pc.field("delay") > 0).filter(pc.field("seats") > 0)
    stream.map_in_arrow(pass_on, FLIGHTS, uid="flights.filter").write(Discard(), uid="out")
    assert [n.uid for n in p.build().nodes] == [
        "flights",
        "flights.filter-2",
        "flights.filter-3",
        "flights.filter",
        "out",
    ]


def test_nodes_know_the_line_of_the_call() -> None:
    p = Pipeline()
    line = sys._getframe().f_lineno + 1
    stream = read(p).filter(pc.field("delay") > 0)
    assert graph_of(stream, p).nodes[1].location == f"{__file__}:{line}"


def test_explain_runs_without_asking_sinks() -> None:
    class Refusing(Discard):
        def check(self, schema: pa.Schema) -> None:
            raise PipelineError("the disk is full", where="disk")

    p = Pipeline()
    read(p).write(Refusing(), uid="out")
    assert "[flights]" in p.explain()
    assert p.build(check_sinks=False).nodes[1].uid == "out"
    with pytest.raises(PipelineError, match=r"the disk is full \[disk, sink 'out' at .*test_pipeline_graph.py:\d+\]"):
        p.build()


@pytest.mark.parametrize(
    "type_",
    [
        *(pa.int8(), pa.uint64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.binary(4), pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.float64()),
        *(pa.float16(), pa.decimal128(10, 2), pa.time64("us"), pa.duration("s"), pa.list_(pa.int64()), pa.null()),
        *(pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.struct([("x", pa.int8())])),
    ],
    ids=str,
)
def test_the_pipeline_and_the_runtime_agree_on_what_can_be_a_key(type_: pa.DataType) -> None:
    from tidegate.state.keys.key_bytes import canonical_bytes

    array = pa.nulls(2, pa.string()).dictionary_encode() if pa.types.is_dictionary(type_) else pa.nulls(2, type_)
    try:
        canonical_bytes(pa.record_batch({"k": array}), ["k"])
    except PipelineError:
        with pytest.raises(PipelineError, match="cannot be a key"):
            require_key(pa.field("k", type_), "here")
    else:
        require_key(pa.field("k", type_), "here")


def test_every_public_name_is_there() -> None:
    for name in tidegate.__all__:
        assert getattr(tidegate, name).__name__ == name
    assert set(tidegate.__all__) <= set(dir(tidegate))
    with pytest.raises(AttributeError, match="no attribute 'Pipelin'"):
        tidegate.Pipelin  # noqa: B018


def test_importing_the_package_or_the_contract_brings_no_heavy_library() -> None:
    code = (
        "import sys, tidegate, tidegate.jobs; dir(tidegate); "
        "print(sorted({'pyarrow', 'numpy', 'numba', 'pyspark'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_an_exchange_is_a_node_of_its_own_and_keeps_records_and_event_time() -> None:
    def whose(batch: pa.RecordBatch, n: int) -> Any:
        raise AssertionError("a pipeline runs nothing while it is built")

    p = Pipeline()
    timed = read(p).with_watermark("time", "0 s")
    for stream in (timed.rebalance(), timed.repartition("carrier"), timed.partition_by(whose), timed.broadcast_all()):
        assert stream.schema == timed.schema
        windows = stream.group_by("carrier").window(tumbling("1 day")).agg(n=count(), uid=f"w-{stream._node_id}")
        windows.write(Discard(), uid=f"out-{stream._node_id}")
    graph = p.build()
    found = {node.uid: node.inputs[0] for node in graph.nodes if node.uid.startswith("flights.")}
    assert {uid: (edge.exchange, edge.keys) for uid, edge in found.items()} == {
        "flights.watermark": ("forward", ()),
        "flights.rebalance": ("rebalance", ()),
        "flights.repartition": ("hash", ("carrier",)),
        "flights.partition_by": ("custom", ()),
        "flights.broadcast_all": ("broadcast", ()),
    }
    assert "<custom by test_an_exchange" in explain_graph(graph) and "<rebalance>" in explain_graph(graph)
