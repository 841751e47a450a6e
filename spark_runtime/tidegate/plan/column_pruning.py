"""Leaves out the columns of a graph that nothing reads. Pure.

The result is the graph that runs. It has the same nodes, edges and uids as the user's graph, whose schemas remain the
visible ones, in documents and digests. Each edge carries exactly the columns that its reader needs, and a source emits
at least the columns that its readers need. Columns are found backwards from the sinks, which read all of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.joins.join_specs import LEFT, RIGHT, BroadcastJoinSpec, StreamJoinSpec
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.row_specs import FilterSpec, ProjectSpec, UnionSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.plan.column_needs import Names, columns_needed, kept_pair_columns, kept_projections
from tidegate.plan.job_graph import Edge, JobGraph, Node

_PASSES_ROWS = (DeduplicateSpec, FilterSpec, UnionSpec, WatermarkSpec)
"""Specs whose operators emit rows with the columns of their input."""


def prune_columns(graph: JobGraph, *, in_time_order: bool = False) -> JobGraph:
    """Return the graph without the columns that nothing reads. Args: in_time_order: see `columns_read_by_edge`."""
    reads = columns_read_by_edge(graph, in_time_order=in_time_order)
    nodes: list[Node] = []
    for node in graph.nodes:
        edges = tuple(
            _pruned_edge(nodes[edge.upstream], edge, reads[node.node_id][index])
            for index, edge in enumerate(node.inputs)
        )
        nodes.append(_pruned_node(replace(node, inputs=edges), nodes, _wanted(graph, reads, node)))
    return JobGraph(tuple(nodes))


def source_columns(graph: JobGraph, *, in_time_order: bool = False) -> dict[str, tuple[str, ...]]:
    """Return uid -> columns that something reads, for each source with a column that nothing reads.

    Args:
        in_time_order: see `columns_read_by_edge`.
    """
    reads = columns_read_by_edge(graph, in_time_order=in_time_order)
    found: dict[str, tuple[str, ...]] = {}
    for node in graph.nodes:
        wanted = _wanted(graph, reads, node)
        if node.source is not None and not wanted.issuperset(node.schema.names):
            found[node.uid] = tuple(name for name in node.schema.names if name in wanted)
    return found


def columns_read_by_edge(graph: JobGraph, *, in_time_order: bool = False) -> dict[int, tuple[Names, ...]]:
    """Return the columns that each edge must carry, by the number of its reader in the graph, in input order.

    They are never none, because a batch without columns has no rows.

    Args:
        in_time_order: readers receive records in the order of event time, so that its column is always read. For batch
            mode.
    """
    reads: dict[int, tuple[Names, ...]] = {}
    for node in reversed(graph.nodes):
        given = [graph.edge_schema(edge) for edge in node.inputs]
        if node.spec is None or graph.side_outputs_read(node.node_id):
            needed = tuple(frozenset(schema.names) for schema in given)
        else:
            needed = columns_needed(node.spec, given, _wanted(graph, reads, node))
        if in_time_order:
            needed = tuple(
                names | _time_of(graph.nodes[edge.upstream], edge)
                for names, edge in zip(needed, node.inputs, strict=True)
            )
        reads[node.node_id] = tuple(map(_carried, node.inputs, given, needed))
    return reads


def _time_of(upstream: Node, edge: Edge) -> Names:
    if upstream.event_time is None or edge.output != MAIN_OUTPUT:
        return frozenset()
    return frozenset([upstream.event_time[0]])


def _wanted(graph: JobGraph, reads: dict[int, tuple[Names, ...]], node: Node) -> Names:
    """Return the columns of the node's main output that are read."""
    found = (
        reads[reader.node_id][index]
        for reader, index in graph.consumers(node.node_id)
        if reader.inputs[index].output == MAIN_OUTPUT
    )
    return frozenset().union(*found)


def _carried(edge: Edge, given: pa.Schema, needed: Names) -> Names:
    # A user's partitioner reads what it likes. Columns of one name cannot be selected by name.
    if edge.partitioner is not None or len(set(given.names)) < len(given):
        return frozenset(given.names)
    return needed.union(edge.keys) or frozenset([_narrowest(given)])


def _narrowest(schema: pa.Schema) -> str:
    """Return the column that costs least, for readers that only count rows."""
    return min(schema, key=lambda field: _width(field.type)).name


def _width(kind: pa.DataType) -> int:
    try:
        return int(kind.bit_width)
    except ValueError:  # text and nested types
        return 1 << 16


def _pruned_edge(upstream: Node, edge: Edge, needed: Names) -> Edge:
    emitted = upstream.output_schema(edge.output)
    columns = tuple(name for name in emitted.names if name in needed)
    return edge if len(columns) == len(emitted) else replace(edge, columns=columns)


def _pruned_node(node: Node, before: Sequence[Node], wanted: Names) -> Node:
    """Return the node for its pruned inputs. Args: wanted: columns of its main output that are read."""
    if node.source is not None:
        # The schema stays: only the edges decide what a reader emits beyond the needed columns.
        columns = [name for name in node.schema.names if name in wanted]
        if len(columns) < len(node.schema):
            node = replace(node, source=node.source.reading_only(columns))
    elif node.spec is not None:
        given = [edge.schema_from(before[edge.upstream]) for edge in node.inputs]
        spec = _pruned_spec(node.spec, given, wanted)
        schema = node.schema
        if type(spec) in _PASSES_ROWS:
            schema = given[0]
        elif isinstance(spec, ProjectSpec | BroadcastJoinSpec):
            schema = spec.schema
        node = replace(node, spec=spec, schema=schema)
    kept = node.event_time is not None and node.event_time[0] in node.schema.names
    return node if kept else replace(node, event_time=None)


def _pruned_spec(spec: OperatorSpec, given: Sequence[pa.Schema], wanted: Names) -> OperatorSpec:
    """Return the spec for inputs with these schemas. Other specs find their columns by name."""
    if type(spec) is FilterSpec:
        return replace(spec, schema=given[0])
    if type(spec) is ProjectSpec:
        kept = kept_projections(spec, wanted)
        return replace(spec, columns=kept, schema=_selected(spec.schema, [name for name, _ in kept]))
    if type(spec) is BroadcastJoinSpec:
        return _pruned_broadcast_join(spec, given, kept_pair_columns(spec, wanted))
    if type(spec) is StreamJoinSpec and len(given[RIGHT]) < len(spec.inputs[RIGHT].schema):
        left, right = spec.inputs
        columns = tuple((column, name) for column, name in right.columns if column in given[RIGHT].names)
        narrow = replace(right, schema=_selected(right.schema, given[RIGHT].names), columns=columns)
        return replace(spec, inputs=(left, narrow))
    return spec


def _pruned_broadcast_join(spec: BroadcastJoinSpec, given: Sequence[pa.Schema], kept: Names) -> BroadcastJoinSpec:
    probe = given[LEFT].names
    narrow = replace(
        spec,
        left_schema=_selected(spec.left_schema, probe),
        added=tuple((column, name) for column, name in spec.build_columns if name in kept),
        left_out=tuple(name for name in spec.left_schema.names if name not in probe),
    )
    return replace(narrow, schema=_selected(spec.schema, narrow.pairs.names))


def _selected(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    kept = frozenset(names)
    return pa.schema([field for field in schema if field.name in kept], schema.metadata)
