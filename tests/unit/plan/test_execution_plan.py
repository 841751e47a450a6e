"""Chaining, channel ids and the digest of an ExecutionPlan; graphs as text and document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pytest

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.connectors.interface import Sink, Source
from tidegate.errors import OptionError, PipelineError
from tidegate.jobs.restore.compatibility import chains_of
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.row_specs import UnionSpec
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan
from tidegate.plan.graph_document import graph_document
from tidegate.plan.graph_text import explain_graph
from tidegate.plan.job_graph import Edge, JobGraph, Node

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])


class Described:
    """Stands for a source, spec or sink: a plan only describes them."""

    def __init__(self, text: str) -> None:
        self.text = text

    def found_schema(self) -> None:
        return None

    def describe(self) -> str:
        return self.text


class DescribedSpec(Described, OperatorSpec):
    """Stands for a spec."""


def node(node_id: int, uid: str, kind: str, inputs: Sequence[Edge] = ()) -> Node:
    stands = Described(f"{kind} of {uid}")
    return Node(
        node_id,
        uid,
        kind,
        tuple(inputs),
        SCHEMA,
        f"job.py:{node_id + 1}",
        source=cast(Source, stands) if kind == "source" else None,
        sink=cast(Sink, stands) if kind == "sink" else None,
        spec=DescribedSpec(f"{kind} of {uid}") if kind not in ("source", "sink") else None,
    )


def forward(upstream: int) -> Edge:
    return Edge(upstream, "forward")


def join_and_window() -> JobGraph:
    """flights -> filter -> join(<- airlines) -> by k -> daily -> two sinks."""
    return JobGraph(
        (
            node(0, "flights", "source"),
            node(1, "airlines", "source"),
            node(2, "flights.filter", "filter", [forward(0)]),
            node(3, "names", "join", [forward(2), Edge(1, "broadcast")]),
            node(4, "names.filter", "filter", [forward(3)]),
            node(5, "daily", "window", [Edge(4, "hash", ("k",))]),
            node(6, "out", "sink", [forward(5)]),
            node(7, "copy", "sink", [forward(5)]),
        )
    )


def uids(graph: JobGraph, execution: ExecutionPlan) -> list[list[str]]:
    return [[graph.nodes[n].uid for n in chain.nodes] for chain in execution.chains]


def test_nodes_are_chained_up_to_an_exchange_a_second_input_or_a_second_consumer() -> None:
    graph = join_and_window()
    assert uids(graph, make_execution_plan(graph, 2, 128)) == [
        ["flights", "flights.filter"],
        ["airlines"],
        ["names", "names.filter"],
        ["daily"],
        ["out"],
        ["copy"],
    ]


def test_a_straight_pipeline_is_one_chain_without_channels() -> None:
    graph = JobGraph(
        (node(0, "a", "source"), node(1, "a.filter", "filter", [forward(0)]), node(2, "out", "sink", [forward(1)]))
    )
    (chain,) = make_execution_plan(graph, 4, 128).chains
    assert chain.nodes == (0, 1, 2)
    assert (chain.is_source, chain.is_sink, chain.inputs, chain.outputs) == (True, True, (), ())
    assert make_execution_plan(graph, 4, 128).channels == 0


def test_chain_ids_are_topological_and_inputs_and_outputs_mirror_each_other() -> None:
    chains = make_execution_plan(join_and_window(), 3, 128).chains
    received = {(c.chain_id, i.input_index, i.upstream_chain, i.exchange, i.keys) for c in chains for i in c.inputs}
    sent = {(o.target_chain, o.input_index, c.chain_id, o.exchange, o.keys) for c in chains for o in c.outputs}
    assert received == sent
    assert len(sent) == 5
    assert [c.chain_id for c in chains] == list(range(len(chains)))
    assert all(given.upstream_chain < chain.chain_id for chain in chains for given in chain.inputs)


def test_a_chain_of_a_join_knows_exchange_keys_and_schema_of_each_input() -> None:
    execution = make_execution_plan(join_and_window(), 2, 128)
    probe, build = execution.chains[2].inputs
    assert (probe.input_index, probe.upstream_chain, probe.exchange) == (0, 0, "forward")
    assert (build.input_index, build.upstream_chain, build.exchange) == (1, 1, "broadcast")
    (hashed,) = execution.chains[3].inputs
    assert (hashed.exchange, hashed.keys, hashed.schema) == ("hash", ("k",), SCHEMA)


def test_a_union_of_a_stream_with_itself_has_two_inputs_from_one_chain() -> None:
    graph = JobGraph(
        (
            node(0, "a", "source"),
            replace(node(1, "a.union", "union", [forward(0), forward(0)]), spec=UnionSpec()),
            node(2, "out", "sink", [forward(1)]),
        )
    )
    execution = make_execution_plan(graph, 2, 128)
    assert uids(graph, execution) == [["a"], ["a.union", "out"]]
    assert [(o.target_chain, o.input_index) for o in execution.chains[0].outputs] == [(1, 0), (1, 1)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_channel_has_an_id_of_its_own_and_the_ids_have_no_gap(parallelism: int) -> None:
    execution = make_execution_plan(join_and_window(), parallelism, 128)
    ids: list[int] = []
    for chain in execution.chains:
        for given in chain.inputs:
            for target in range(parallelism):
                sources = [target] if given.exchange == "forward" else range(parallelism)
                ids.extend(execution.channel_id(chain.chain_id, given.input_index, s, target) for s in sources)
    assert sorted(ids) == list(range(execution.channels))


def test_a_job_with_more_channels_than_ids_is_refused() -> None:
    with pytest.raises(PipelineError, match="channels"):
        make_execution_plan(join_and_window(), 60_000, 2**20)


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 128), (129, 128)])
def test_parallelism_out_of_range_is_refused(parallelism: int, max_parallelism: int) -> None:
    with pytest.raises(OptionError, match="parallelism"):
        make_execution_plan(join_and_window(), parallelism, max_parallelism)


def test_two_plans_of_equal_graphs_have_one_digest() -> None:
    assert (
        make_execution_plan(join_and_window(), 2, 128).digest == make_execution_plan(join_and_window(), 2, 128).digest
    )


def test_the_digest_does_not_depend_on_where_the_code_lies() -> None:
    graph = join_and_window()
    moved = JobGraph(tuple(replace(n, location="/elsewhere/job.py:1") for n in graph.nodes))
    assert make_execution_plan(moved, 2, 128).digest == make_execution_plan(graph, 2, 128).digest


@pytest.mark.parametrize(
    "change",
    [
        {"uid": "other"},
        {"kind": "other"},
        {"schema": pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])},
        {"inputs": (Edge(4, "hash", ("v",)),)},
        {"inputs": (Edge(4, "rebalance"),)},
        {"inputs": (Edge(3, "hash", ("k",)),)},
    ],
    ids=["uid", "kind", "schema", "keys", "exchange", "upstream"],
)
def test_the_digest_tells_graphs_apart(change: dict[str, object]) -> None:
    graph = join_and_window()
    nodes = list(graph.nodes)
    nodes[5] = replace(nodes[5], **change)  # type: ignore[arg-type]
    assert make_execution_plan(JobGraph(tuple(nodes)), 2, 128).digest != make_execution_plan(graph, 2, 128).digest


def test_the_digest_tells_parallelisms_apart() -> None:
    digests = {make_execution_plan(join_and_window(), p, m).digest for p, m in [(1, 128), (2, 128), (2, 256)]}
    assert len(digests) == 3


def test_the_chain_of_a_node_is_found() -> None:
    execution = make_execution_plan(join_and_window(), 2, 128)
    assert execution.chain_of(4).chain_id == 2
    with pytest.raises(KeyError):
        execution.chain_of(99)


def test_a_plan_explains_its_chains_and_exchanges() -> None:
    text = make_execution_plan(join_and_window(), 2, 128).explain()
    assert text.splitlines()[0].startswith("6 chains x 2 = 12 subtasks, 14 channels, 128 key groups")
    assert "chain 2: names -> names.filter" in text
    assert "<- chain 2 (hash by k, 4 channels)" in text
    assert "<- chain 1 (broadcast, 4 channels)" in text


def test_a_graph_explains_itself_from_the_sinks_and_a_shared_node_once() -> None:
    lines = explain_graph(join_and_window()).splitlines()
    assert lines[0] == "[out] sink of out"
    assert "k: int64 not null, v: string" in lines[1]
    assert "(job.py:7)" in lines[1]
    assert sum("window of daily" in line for line in lines) == 1
    assert sum("[daily] as above" in line for line in lines) == 1
    assert any("[names.filter]" in line and line.endswith("<hash by k>") for line in lines)
    assert any("[airlines]" in line and line.endswith("<broadcast>") for line in lines)


def test_a_graph_document_names_operators_and_their_inputs_in_json() -> None:
    document = graph_document(join_and_window())
    assert json.loads(json.dumps(document)) == document
    assert document["version"] == 5
    assert document["operators"][3] == {
        "uid": "names",
        "kind": "join",
        "stateful": False,
        "schema": "k: int64 not null, v: string",
        "inputs": ["flights.filter", "airlines"],
        "exchanges": ["forward", "broadcast"],
        "outputs": ["main", "main"],
        "states": [],
        "connector": None,
        "found_schema": None,
    }


def test_a_graph_document_names_the_classes_of_connectors() -> None:
    """S5.5: its own first, without modules, then those it is derived from and its former names."""

    class Mine(DataGen):
        former_names = ("Former",)

    p = Pipeline()
    p.read(Mine(lambda n: {"k": n}, pa.schema([("k", pa.int64())])), uid="rows").write(Discard(), uid="out")
    told = {operator["uid"]: operator["connector"] for operator in graph_document(p.build())["operators"]}
    assert told == {"rows": ["Mine", "DataGen", "Former"], "out": ["Discard"]}


def split_in_two() -> JobGraph:
    """lines -> parse, whose side output `bad` alone goes on by forward; then one whose main output goes on, too."""
    bad = (("bad", pa.schema([("line", pa.string())])),)
    return JobGraph(
        (
            node(0, "lines", "source"),
            replace(node(1, "parse", "map_in_arrow", [forward(0)]), side_outputs=bad),
            node(2, "parse.bad", "side_output", [Edge(1, "forward", output="bad")]),
            node(3, "rejects", "sink", [forward(2)]),
        )
    )


def test_what_reads_a_side_output_begins_a_chain_and_gets_its_schema() -> None:
    graph = split_in_two()
    execution = make_execution_plan(graph, 2, 128)
    assert uids(graph, execution) == [["lines", "parse"], ["parse.bad", "rejects"]]
    assert execution.chains[1].inputs[0].schema.names == ["line"]
    assert [(o.target_chain, o.output) for o in execution.chains[0].outputs] == [(1, "bad")]
    assert graph.side_outputs_read(1) == {"bad"}
    assert chains_of(graph_document(graph)) == uids(graph, execution)
    assert "[parse] map_in_arrow of parse (bad)" in explain_graph(graph)


def test_which_output_is_read_is_in_the_digest_and_in_the_document() -> None:
    graph = split_in_two()
    plain = JobGraph((*graph.nodes[:2], replace(graph.nodes[2], inputs=(forward(1),)), graph.nodes[3]))
    assert make_execution_plan(graph, 2, 128).digest != make_execution_plan(plain, 2, 128).digest
    assert [operator["outputs"] for operator in graph_document(graph)["operators"]] == [[], ["main"], ["bad"], ["main"]]
