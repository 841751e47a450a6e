"""A JobGraph as text for people (`explain`) and as a document for snapshots (`graph_document`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.found_schema import FOUND_SCHEMA
from tidegate.connectors.interface import ReadBySpark, Sink, Source
from tidegate.connectors.push import PushSource
from tidegate.connectors.sink_operator import COMMITTABLES
from tidegate.connectors.split_documents import SPLITS
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.stream_operator import MAIN_OUTPUT, DeclaresStates
from tidegate.plan.job_graph import Edge, JobGraph, Node

GRAPH_DOCUMENT_VERSION = 5
"""Of the document that `graph_document` makes. Version 1 has no `states`; neither it nor version 2 has `outputs`; none
of them has `connector`; version 4 has no `found_schema`."""


_NO_CONNECTORS = ("ABC", "Generic", "Protocol", "object")


def schema_text(schema: pa.Schema) -> str:
    """One line: names and types; metadata is left out, so that it is equal wherever the columns are."""
    return ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in schema)


def describe_node(node: Node) -> str:
    """What the node does, one line, without secrets."""
    described = node.source or node.sink or node.spec
    assert described is not None, f"node {node.uid!r} has neither source, spec nor sink"
    return described.describe()


def explain_graph(graph: JobGraph) -> str:
    """A tree for each sink: the sink first, its inputs below it, indented.

    A node that several others read is described once and referred to by its uid from then on.
    """
    read = {edge.upstream for node in graph.nodes for edge in node.inputs}
    lines: list[str] = []
    seen: set[int] = set()
    for node in graph.nodes:
        if node.node_id not in read:
            _explain(graph, node, None, "", "", seen, lines)
    return "\n".join(lines)


def _explain(
    graph: JobGraph, node: Node, edge: Edge | None, first: str, rest: str, seen: set[int], lines: list[str]
) -> None:
    """Append the node's lines: `first` leads its own, `rest` those below it."""
    arrow = _edge_text(edge) if edge is not None else ""
    if node.node_id in seen:
        lines.append(f"{first}[{node.uid}] as above{arrow}")
        return
    seen.add(node.node_id)
    lines.append(f"{first}[{node.uid}] {describe_node(node)}{arrow}")
    below = rest + ("|  " if node.inputs else "   ")
    lines.append(f"{below}{schema_text(node.schema)}  ({node.location})")
    if isinstance(node.source, ReadBySpark):
        lines.append(f"{below}in batch Spark reads {_native_text(graph, node)}")
    for index, given in enumerate(node.inputs):
        last = index == len(node.inputs) - 1
        upstream = graph.nodes[given.upstream]
        _explain(graph, upstream, given, rest + "+- ", rest + ("   " if last else "|  "), seen, lines)


def _native_text(graph: JobGraph, source: Node) -> str:
    from tidegate.plan.batch_plan import sinks_at_the_end
    from tidegate.plan.spark_pushdown import native_read

    runs = sinks_at_the_end(graph)
    return native_read(runs, runs.nodes[source.node_id]).describe(runs)


def _edge_text(edge: Edge) -> str:
    """What is not plain of an edge: the side output that it reads, its exchange."""
    side = f" ({edge.output})" if edge.output != MAIN_OUTPUT else ""
    return side if edge.exchange == "forward" else f"{side} <{exchange_text(edge)}>"


def exchange_text(edge: Edge) -> str:
    """Name of the exchange, with its keys or the user's function."""
    by = ", ".join(edge.keys) or getattr(edge.partitioner, "__qualname__", "")
    return f"{edge.exchange} by {by}" if by else edge.exchange


def graph_document(graph: JobGraph) -> dict[str, Any]:
    """The graph as a JSON document: pinned in snapshots, compared by a preflight without any runtime (S5.5, S6.4).

    Per operator, in topological order: uid, kind, stateful, schema (text), inputs (uids), their exchanges and which
    outputs of those operators they read, `states` as `jobs.restore.state_shapes.StateShape` documents; null: it does
    not tell; and `connector`: of a source or sink the names of its class, of those it is derived from, and former ones;
    and `found_schema`: of a source the schema that it found in its input, which later builds use; null: it found none.
    """
    return {
        "version": GRAPH_DOCUMENT_VERSION,
        "operators": [
            {
                "uid": node.uid,
                "kind": node.kind,
                "stateful": node.stateful,
                "schema": schema_text(node.schema),
                "inputs": [graph.nodes[edge.upstream].uid for edge in node.inputs],
                "exchanges": [edge.exchange for edge in node.inputs],
                "outputs": [edge.output for edge in node.inputs],
                "states": _states(node),
                "connector": _connector(node),
                FOUND_SCHEMA: _found_schema(node),
            }
            for node in graph.nodes
        ],
    }


def _connector(node: Node) -> list[str] | None:
    """Whose snapshots it restores: names without modules, which may move; the first is its own."""
    connector = node.source or node.sink
    if connector is None:
        return None
    classes = [cls.__name__ for cls in type(connector).__mro__ if cls not in (Source, PushSource, Sink)]
    return [*(name for name in classes if name not in _NO_CONNECTORS), *getattr(connector, "former_names", ())]


def _found_schema(node: Node) -> dict[str, Any] | None:
    found = None if node.source is None else node.source.found_schema()
    return None if found is None else found.to_json()


def _states(node: Node) -> list[dict[str, Any]] | None:
    """What the node keeps; None: it does not tell."""
    if node.source is not None:
        shapes: Sequence[StateShape] = (StateShape(SPLITS, "list"),)
    elif node.sink is not None:
        shapes = (StateShape(COMMITTABLES, "list"),)
    elif isinstance(node.spec, DeclaresStates):
        shapes = node.spec.states()
    else:
        return None if node.stateful else []
    return [shape.to_json() for shape in shapes]
