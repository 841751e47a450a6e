"""Converts a JobGraph to text, as `explain` shows it."""

from __future__ import annotations

from tidegate.connectors.interface import ReadBySpark
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.plan.batch_plan import with_sinks_last
from tidegate.plan.column_pruning import source_columns
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
    tree = _Tree(graph)
    for node in graph.nodes:
        if node.node_id not in read:
            tree.add(node)
    return "\n".join(tree.lines)


class _Tree:
    """The lines of the trees so far."""

    def __init__(self, graph: JobGraph) -> None:
        self.lines: list[str] = []
        self._graph = graph
        self._seen: set[int] = set()
        read = {edge.upstream for node in graph.nodes for edge in node.inputs}
        # While a stream has no reader, nobody knows which columns it will need.
        is_finished = all(node.sink is not None or node.node_id in read for node in graph.nodes)
        self._columns = source_columns(graph) if is_finished else {}

    def add(self, node: Node, edge: Edge | None = None, first: str = "", rest: str = "") -> None:
        """Append the node's lines: `first` precedes its own line, `rest` the lines below it."""
        arrow = _edge_text(edge) if edge is not None else ""
        if node.node_id in self._seen:
            self.lines.append(f"{first}[{node.uid}] as above{arrow}")
            return
        self._seen.add(node.node_id)
        self.lines.append(f"{first}[{node.uid}] {describe_node(node)}{arrow}")
        below = rest + ("|  " if node.inputs else "   ")
        self.lines.append(f"{below}{schema_text(node.schema)}  ({node.location})")
        if node.uid in self._columns:
            self.lines.append(f"{below}of which are used {', '.join(self._columns[node.uid])}")
        if isinstance(node.source, ReadBySpark):
            self.lines.append(f"{below}in batch Spark reads {_spark_read_text(self._graph, node)}")
        for index, given in enumerate(node.inputs):
            last = index == len(node.inputs) - 1
            self.add(self._graph.nodes[given.upstream], given, rest + "+- ", rest + ("   " if last else "|  "))


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
