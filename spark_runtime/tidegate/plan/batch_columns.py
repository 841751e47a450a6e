"""Adds projections to a batch job that leave out the columns that nothing reads (S8.1). Pure.

A stage of a batch job emits the rows of its last operator. Where a reader needs fewer columns, a projection is added
before the exchange, so that fewer columns are sent and sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from tidegate.operators.row_specs import ProjectSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.plan.column_pruning import prune_columns, source_columns
from tidegate.plan.job_graph import Edge, JobGraph, Node

SUFFIX = ".columns"
"""Ends the uid of an added node, with the number of the node in the graph."""


@dataclass(frozen=True, eq=False)
class SelectedColumnsSpec(ProjectSpec):
    """Passes some columns unchanged.

    Attributes:
        uid: uid of the operator that emits the rows.
    """

    uid: str = ""

    @property
    def part_of(self) -> str:
        """Return the uid of the operator that emits the rows."""
        return self.uid


def with_used_columns(graph: JobGraph) -> JobGraph:
    """Return the graph without the columns that nothing reads. Ids of nodes change, uids do not."""
    used = source_columns(graph, in_time_order=True)
    nodes: list[Node] = []
    moved: dict[int, int] = {}  # id before -> id now
    rows: dict[int, int] = {}  # id before -> id now of the node that emits the rows of the main output
    for node in prune_columns(graph, in_time_order=True).nodes:
        inputs: list[Edge] = []
        for edge in node.inputs:
            upstream = (rows if edge.output == MAIN_OUTPUT else moved)[edge.upstream]
            whole = replace(edge, upstream=upstream, columns=None)
            columns = tuple(nodes[upstream].output_schema(edge.output).names) if edge.columns is None else edge.columns
            inputs.append(_selected(nodes, whole, columns))
        moved[node.node_id] = rows[node.node_id] = len(nodes)
        nodes.append(replace(node, node_id=len(nodes), inputs=tuple(inputs)))
        if node.uid in used:  # its readers may leave out the other columns, so that nothing else may read its rows
            edge = _selected(nodes, Edge(moved[node.node_id], "forward"), used[node.uid])
            rows[node.node_id] = edge.upstream
    return JobGraph(tuple(nodes))


def _selected(nodes: list[Node], edge: Edge, columns: Sequence[str]) -> Edge:
    """Return an edge that carries these columns; adds a projection where the edge has more."""
    upstream = nodes[edge.upstream]
    schema = replace(edge, columns=tuple(columns)).schema_from(upstream)
    if schema.names == upstream.output_schema(edge.output).names:
        return edge
    spec = SelectedColumnsSpec(tuple((name, pc.field(name)) for name in columns), schema, uid=upstream.uid)
    timed = edge.output == MAIN_OUTPUT and upstream.event_time is not None and upstream.event_time[0] in columns
    nodes.append(
        Node(
            len(nodes),
            f"{upstream.uid}{SUFFIX}-{len(nodes)}",
            "columns",
            (Edge(edge.upstream, "forward", output=edge.output),),
            schema,
            upstream.location,
            spec=spec,
            event_time=upstream.event_time if timed else None,
        )
    )
    return replace(edge, upstream=len(nodes) - 1, output=MAIN_OUTPUT)
