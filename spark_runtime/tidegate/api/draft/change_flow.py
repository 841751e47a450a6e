"""Change rows on their way through a pipeline: which operators may read them, and which would drop deletions.

Each old row (`tidegate.change_rows`) removes a row downstream. A source may send only some columns of it, such as the
key. An operator that decides by other columns drops deletions, and updates by which a row leaves its condition. Then a
copy of the table would keep these rows. So such operators are refused when the pipeline is built.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.change_rows import OldColumns, change_kind_column, old_columns_of
from tidegate.errors import PipelineError
from tidegate.operators.joins.join_specs import BroadcastJoinSpec
from tidegate.operators.row_specs import FilterSpec, ProjectSpec, UnionSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.plan.expression_trees import columns_read
from tidegate.plan.job_graph import Edge, JobGraph, Node

MOST_NAMES = 10
"""Columns that an error names."""


def refuse_changes(graph: JobGraph) -> None:
    """Check how the operators of a pipeline treat change rows.

    Raises:
        PipelineError: an operator would take each change for a new row, or would drop old rows.
    """
    for node in graph.nodes:
        takes = "all" if node.spec is None else node.spec.change_inputs
        for edge in node.inputs[{"all": len(node.inputs), "first": 1, "none": 0}[takes] :]:
            column = change_kind_column(graph.edge_schema(edge))
            if column is not None:
                what = f"{node.kind} {node.uid!r}"
                raise PipelineError(
                    f"{what} cannot process change rows",
                    where=f"{what} at {node.location}",
                    cause=f"column {column!r} has the kind of each change, and each change would be a new row",
                    remedy=f"Keep the inserted rows only, and leave out {column!r}; or write the changes to a sink "
                    "that applies them",
                )
    flow = _ChangeFlow(graph)
    for node in graph.nodes:
        flow.follow(node)


class _ChangeFlow:
    """Columns that old rows have at the main output of each node, as far as nodes were followed in their order."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._known: dict[int, OldColumns] = {}

    def follow(self, node: Node) -> None:
        """Note what the old rows of a node have. Raises PipelineError if it would drop some of them."""
        if change_kind_column(node.schema) is None and not isinstance(node.spec, FilterSpec | BroadcastJoinSpec):
            return
        spec, inputs = node.spec, [self._at(edge) for edge in node.inputs]
        schema = self._graph.edge_schema(node.inputs[0]) if node.inputs else node.schema
        if isinstance(spec, FilterSpec):
            self._check(node, schema, inputs[0], _read(spec.expression, schema), "a filter")
        if isinstance(spec, BroadcastJoinSpec):
            self._known[node.node_id] = self._joined(node, spec, schema, inputs[0])
        elif isinstance(spec, ProjectSpec):
            self._known[node.node_id] = _projected(spec, schema, inputs[0])
        elif isinstance(spec, FilterSpec | WatermarkSpec | UnionSpec) or node.sink is not None:
            self._known[node.node_id] = _common(inputs)
        else:
            # A source declares them, and so does the schema of a user's function.
            self._known[node.node_id] = old_columns_of(node.schema)

    def _at(self, edge: Edge) -> OldColumns:
        schema = self._graph.edge_schema(edge)
        return self._known.get(edge.upstream, frozenset()) if edge.output == MAIN_OUTPUT else old_columns_of(schema)

    def _joined(self, node: Node, spec: BroadcastJoinSpec, left: pa.Schema, old: OldColumns) -> OldColumns:
        """Return what old rows have after a lookup in a table that does not change while the job runs."""
        condition = frozenset[str]() if spec.where is None else _read(spec.where, spec.pairs)
        reads = frozenset(spec.on) | (condition & frozenset(left.names))
        if spec.how != "left":
            self._check(node, left, old, reads, f"a join with how={spec.how!r}")
        added = frozenset(name for _, name in spec.build_columns)
        return None if old is None else old | (added if reads <= old else frozenset())

    def _check(self, node: Node, schema: pa.Schema, old: OldColumns, reads: frozenset[str], what: str) -> None:
        kind = change_kind_column(schema)
        # The author of a condition on the kind of change decides about deletions on purpose.
        if kind is None or old is None or kind in reads or reads <= old:
            return
        names = ", ".join(sorted(reads - old)[:MOST_NAMES])
        there = f"only {', '.join(sorted(old)[:MOST_NAMES])}" if old else "no columns that are known"
        raise PipelineError(
            f"{what} on {names} would drop deletions of change rows",
            where=f"{node.kind} {node.uid!r} at {node.location}",
            cause=f"rows of deletions and before updates have {there}, so a row that is deleted or leaves the "
            "condition would stay in a copy of the table",
            remedy="Let the source send complete old rows: PostgresTable(old_rows='complete') with REPLICA IDENTITY "
            "FULL, or change_kind_field(old_columns='all') for a source or function of your own. Or use key columns "
            f"only; or decide on deletions yourself, with {kind!r} in the condition; or call changes_as_rows() first, "
            "for a log of changes",
        )


def _read(expression: pc.Expression, schema: pa.Schema) -> frozenset[str]:
    found = columns_read(expression, schema)
    return frozenset(schema.names) if found is None else found


def _projected(spec: ProjectSpec, schema: pa.Schema, old: OldColumns) -> OldColumns:
    if old is None:
        return None
    # A constant is no column of the table: it reads nothing, and is in old rows, too.
    return frozenset(name for name, expression in spec.columns if _read(expression, schema) <= old)


def _common(inputs: Iterable[OldColumns]) -> OldColumns:
    found: OldColumns = None
    for one in inputs:
        found = one if found is None else found if one is None else found & one
    return found
