"""Converts a JobGraph to text, as `explain` shows it."""

from __future__ import annotations

from tidegate.connectors.interface import ReadBySpark
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.plan.batch_plan import with_sinks_last
from tidegate.plan.graph_document import schema_text
from tidegate.plan.job_graph import Edge, JobGraph, Node
from tidegate.plan.spark_pushdown import plan_spark_read


def describe_node(node: Node) -> str:
    """Return a description of the node, one line, without secrets."""
    described = node.source or node.sink or node.spec
    assert described is not None, f"node {node.uid!r} has neither source, spec nor sink"
    return described.describe()


def explain_graph(graph: JobGraph) -> str:
    """Return a tree for each sink: the sink first, its inputs below it, indented.

    A node with several readers is described once, and later shown by its uid only.
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
    """Append the node's lines: `first` precedes its own line, `rest` the lines below it."""
    arrow = _edge_text(edge) if edge is not None else ""
    if node.node_id in seen:
        lines.append(f"{first}[{node.uid}] as above{arrow}")
        return
    seen.add(node.node_id)
    lines.append(f"{first}[{node.uid}] {describe_node(node)}{arrow}")
    below = rest + ("|  " if node.inputs else "   ")
    lines.append(f"{below}{schema_text(node.schema)}  ({node.location})")
    if isinstance(node.source, ReadBySpark):
        lines.append(f"{below}in batch Spark reads {_spark_read_text(graph, node)}")
    for index, given in enumerate(node.inputs):
        last = index == len(node.inputs) - 1
        upstream = graph.nodes[given.upstream]
        _explain(graph, upstream, given, rest + "+- ", rest + ("   " if last else "|  "), seen, lines)


def _spark_read_text(graph: JobGraph, source: Node) -> str:
    runs = with_sinks_last(graph)
    return plan_spark_read(runs, runs.nodes[source.node_id]).describe(runs)


def _edge_text(edge: Edge) -> str:
    """Return the side output that an edge reads, and its exchange, if they are not the default."""
    side = f" ({edge.output})" if edge.output != MAIN_OUTPUT else ""
    return side if edge.exchange == "forward" else f"{side} <{exchange_text(edge)}>"


def exchange_text(edge: Edge) -> str:
    """Return the name of the exchange, with its keys or the user's function."""
    by = ", ".join(edge.keys) or getattr(edge.partitioner, "__qualname__", "")
    return f"{edge.exchange} by {by}" if by else edge.exchange
