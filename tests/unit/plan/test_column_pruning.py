"""Columns that each operator reads, and the graph that runs without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as td
from tidegate.operators.row_specs import FilterSpec
from tidegate.plan.column_needs import columns_needed
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan
from tidegate.plan.graph_document import graph_document
from tidegate.plan.graph_text import explain_graph
from tidegate.plan.job_graph import JobGraph
from tidegate.testing.collect_sink import CollectSink

SCHEMA = pa.schema(
    [(name, pa.string()) for name in "abc"]
    + [("k", pa.int64()), ("n", pa.int32()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))]
)
Draw = Callable[[td.Stream, td.Stream], td.Stream]


def no_rows(numbers: Any) -> dict[str, Any]:
    raise AssertionError("no source is read here")


def graph_of(draw: Draw) -> JobGraph:
    """The sources `left` and `right` with the columns a, b, c, k, n, v, ts, and what is drawn on them."""
    p = td.Pipeline()
    left = p.read(td.DataGen(no_rows, SCHEMA, rows=1), uid="left")
    right = p.read(td.DataGen(no_rows, SCHEMA, rows=1), uid="right")
    draw(left, right).write(CollectSink("pruned"), uid="out")
    right.write(td.Discard(), uid="all-of-right")
    return p.build()


def carried(plan: ExecutionPlan, source: str, reader: int = 0) -> str:
    """Columns of the edge from a source to the first of its readers, joined."""
    node, index = plan.graph.consumers(plan.graph.by_uid(source).node_id)[reader]
    return " ".join(plan.graph.edge_schema(node.inputs[index]).names)


def windowed(stream: Any) -> td.Stream:
    return stream.with_watermark("ts", "0 s").group_by("k").window(td.tumbling("1 s")).agg(s=td.sum("v"), uid="w")  # type: ignore[no-any-return]


def counted(stream: Any) -> td.Stream:
    return stream.group_by("k").agg(count=td.count(), uid="w")  # type: ignore[no-any-return]


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def by_row(batch: pa.RecordBatch, n: int) -> pa.Array:
    return batch.column("v")


CASES: dict[str, tuple[Draw, str]] = {
    "a sink reads all": (lambda x, y: x, "a b c k n v ts"),
    "window": (lambda x, y: windowed(x), "k v ts"),
    "window over processing time": (
        lambda x, y: x.group_by("k").window(td.tumbling("1 s", time="processing")).agg(s=td.sum("v"), uid="w"),
        "k v",
    ),
    "session": (
        lambda x, y: (
            x.with_watermark("ts", "0 s").group_by("k").window(td.session("1 s")).agg(l=td.max_by("a", by="v"), uid="w")
        ),
        "a k v ts",
    ),
    "aggregate": (lambda x, y: x.group_by("b", "k").agg(s=td.sum("v"), uid="w"), "b k v"),
    "aggregate of all rows": (lambda x, y: x.agg(s=td.sum("v"), uid="w"), "v"),
    "count of all rows": (lambda x, y: x.agg(c=td.count(), uid="w"), "n"),
    "filter": (lambda x, y: counted(x.filter(pc.field("b") == "x")), "b k"),
    "filter that reads two": (lambda x, y: counted(x.filter(pc.field("n") > pc.field("v"))), "k n v"),
    "select": (lambda x, y: x.select("k", "v"), "k v"),
    "select of which a part is read": (lambda x, y: counted(x.select("a", "k", other=pc.field("b"))), "k"),
    "a computed column may fail": (lambda x, y: counted(x.with_columns(i=pc.field("a").cast(pa.int64()))), "a k"),
    "deduplicate": (lambda x, y: counted(x.deduplicate("a", uid="d")), "a k"),
    "deduplicate within": (
        lambda x, y: counted(x.with_watermark("ts", "0 s").deduplicate("a", within="1 s", uid="d")),
        "a k ts",
    ),
    "union": (lambda x, y: counted(x.union(y)), "k"),
    "rebalance": (lambda x, y: counted(x.rebalance()), "k"),
    "repartition": (lambda x, y: counted(x.repartition("c")), "c k"),
    "partitioner of a user": (lambda x, y: counted(x.partition_by(by_row)), "a b c k n v ts"),
    "function of a user": (lambda x, y: counted(x.map_in_arrow(same, schema=SCHEMA)), "a b c k n v ts"),
    "broadcast join": (
        lambda x, y: counted(x.join(y.select("k", m=pc.field("v")).broadcast(), on="k", uid="j")),
        "k",
    ),
    "broadcast join with a condition": (
        lambda x, y: counted(
            x.join(y.select("k", m=pc.field("v")).broadcast(), on="k", where=pc.field("v") < pc.field("m"), uid="j")
        ),
        "k v",
    ),
    "join": (lambda x, y: counted(x.join(y.select("k", m=pc.field("v")), on="k", uid="j")), "a b c k n v ts"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_source_delivers_the_columns_that_are_read(name: str) -> None:
    draw, wanted = CASES[name]
    assert carried(make_execution_plan(graph_of(draw), 2, 128), "left") == wanted


def test_the_side_of_a_join_that_only_decides_delivers_its_keys() -> None:
    """S5.5: its rows are not stored; the other side's rows are, whole."""
    for how in ("semi", "anti"):
        graph = graph_of(lambda x, y, how=how: counted(x.join(y, on="k", how=how, suffix="_r", uid="j")))  # type: ignore[misc]
        plan = make_execution_plan(graph, 2, 128)
        assert (carried(plan, "left"), carried(plan, "right")) == ("a b c k n v ts", "k")


def test_a_side_output_that_is_read_has_all_columns() -> None:
    def draw(x: td.Stream, y: td.Stream) -> td.Stream:
        windows = windowed(x)
        windows.side_output("late").write(CollectSink("pruned-late"), uid="late")
        return windows

    assert carried(make_execution_plan(graph_of(draw), 2, 128), "left") == "a b c k n v ts"


def test_each_reader_receives_its_own_columns() -> None:
    def draw(x: td.Stream, y: td.Stream) -> td.Stream:
        x.group_by("a").agg(s=td.sum("v"), uid="sums").write(CollectSink("pruned-sums"), uid="sums-out")
        return counted(x)

    plan = make_execution_plan(graph_of(draw), 2, 128)
    assert {carried(plan, "left", reader) for reader in (0, 1)} == {"a v", "k"}
    by_output = {tuple(out.columns or ()) for out in plan.chains[0].outputs}
    assert by_output == {("a", "v"), ("k",)}


def test_a_condition_s_column_is_dropped_before_the_exchange() -> None:
    plan = make_execution_plan(graph_of(lambda x, y: counted(x.filter(pc.field("b") == "x"))), 2, 128)
    (chain,) = [chain for chain in plan.chains if chain.name.startswith("left")]
    assert chain.schema.names == ["b", "k"]
    assert [out.columns for out in chain.outputs] == [("k",)]
    assert plan.chains[chain.outputs[0].target_chain].inputs[0].schema.names == ["k"]


def test_what_users_and_snapshots_know_of_a_graph_stays() -> None:
    """S5.5: the digest, and the document that snapshots hold, have the columns that the user declares."""
    graph = graph_of(lambda x, y: windowed(x.filter(pc.field("b") == "x")))
    before = graph_document(graph)
    pruned, whole = (make_execution_plan(graph, 2, 128, prunes=prunes) for prunes in (True, False))
    assert pruned.digest == whole.digest
    assert graph_document(graph) == before
    assert [chain.nodes for chain in pruned.chains] == [chain.nodes for chain in whole.chains]
    assert whole.graph is graph


def test_explain_shows_the_columns_that_are_used() -> None:
    text = explain_graph(graph_of(lambda x, y: windowed(x)))
    assert text.count("of which are used") == 1
    assert "\n            of which are used k, v, ts" in text
    p = td.Pipeline()
    unfinished = p.read(td.DataGen(no_rows, SCHEMA, rows=1), uid="left").select("k")
    assert "are used" not in unfinished.explain()


def test_an_operator_that_another_package_derives_from_a_known_one_receives_all_columns() -> None:
    @dataclass(frozen=True, eq=False)
    class Stricter(FilterSpec):
        """Its operator may read other columns."""

    predicate = pc.field("b") == "x"
    inputs, wanted = [SCHEMA], frozenset(["k"])
    assert columns_needed(FilterSpec(predicate, SCHEMA), inputs, wanted) == ({"b", "k"},)
    assert columns_needed(Stricter(predicate, SCHEMA), inputs, wanted) == (frozenset(SCHEMA.names),)
