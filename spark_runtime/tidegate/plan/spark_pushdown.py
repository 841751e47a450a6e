"""Plans what a batch job reads of a DataFrame through Spark: only needed columns, and only rows that pass the filters.

Operators that Spark evaluates in full are not run again (S8.1). Pure. The plan follows the operators after the source,
as long as each is the only reader of the previous one. Each condition of a filter is pushed down separately, past
projections and watermarks, which process one row at a time. An unread column is filled with nulls, so that operators
downstream find their schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.row_specs import FilterSpec, ProjectSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.plan.column_needs import columns_needed
from tidegate.plan.column_pruning import columns_read_by_edge
from tidegate.plan.expression_trees import ColumnRef, conjuncts, read_expression
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.plan.pushdown_conditions import Condition, Field, Scope, condition_of, text_of

Accepts = Callable[[Condition], bool]
"""Decides whether Spark can evaluate a condition, from the DataFrame's types."""


@dataclass(frozen=True)
class SparkRows:
    """How rows of a DataFrame are passed to a task.

    Attributes:
        schema: required schema of the rows.
        present: names of its columns that are read, in order; the others are nulls.
        runs: ids of the operators that Spark has evaluated.
    """

    schema: pa.Schema
    present: tuple[str, ...]
    runs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class SparkRead:
    """A read through Spark.

    Attributes:
        columns: (name, value in terms of the source's columns).
        conditions: all must be true for a row.
        rows: how the rows are passed on.
    """

    columns: tuple[tuple[str, Condition], ...]
    conditions: tuple[Condition, ...]
    rows: SparkRows

    def describe(self, graph: JobGraph) -> str:
        """Return a description, one line."""
        shown = (name if what == Field(name) else f"{name}={text_of(what)}" for name, what in self.columns)
        where = f" where {' and '.join(map(text_of, self.conditions))}" if self.conditions else ""
        evaluated = (graph.nodes[node_id] for node_id in sorted(self.rows.runs))
        done = ", ".join(node.uid for node in evaluated if node.spec is not None and not node.spec.part_of)
        return f"{', '.join(shown)}{where}{f', which is all of {done}' if done else ''}"


def full_read(source: Node) -> SparkRead:
    """Return a read of all rows and columns."""
    names = source.schema.names
    return SparkRead(tuple((name, Field(name)) for name in names), (), SparkRows(source.schema, tuple(names)))


def plan_spark_read(graph: JobGraph, source: Node, accepts: Accepts = lambda condition: True) -> SparkRead:
    """Plan the read that replaces all rows of `source`, in a graph with its sinks at the end."""
    found = _PushdownPrefix(source, accepts)
    for node in _sole_consumers(graph, source):
        if not found.takes(node):
            break
    needed = _needed(graph, found.left, found.tail)
    # At least one column: a read of no column would lose the number of rows.
    wanted = [name for name in found.schema.names if name in needed] or found.schema.names[:1]
    rows = SparkRows(found.schema, tuple(wanted), frozenset(found.runs))
    return SparkRead(tuple((name, found.columns[name]) for name in wanted), tuple(found.conditions), rows)


@dataclass
class _PushdownPrefix:
    """The operators after a source that were analysed so far.

    Attributes:
        columns: columns of the rows that Spark returns, in terms of the source's columns.
        schema: of these rows.
        left: analysed operators that Spark does not evaluate in full.
        tail: the last analysed operator.
    """

    source: Node
    accepts: Accepts
    conditions: list[Condition] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    left: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schema = self.source.schema
        self.columns: dict[str, Condition] = {name: Field(name) for name in self.schema.names}
        self.tail = self.source
        self._scope: Scope = self.columns

    def takes(self, node: Node) -> bool:
        """Analyse the next operator. Returns False if operators after it cannot be analysed."""
        self.tail = node
        if isinstance(node.spec, FilterSpec):
            is_done = self._takes_filter(node.spec)
        elif isinstance(node.spec, ProjectSpec):
            is_done = self._takes_projection(node.spec)
        else:
            is_done = False
        if is_done:
            self.runs.append(node.node_id)
        else:
            self.left.append(node)
        return isinstance(node.spec, FilterSpec | ProjectSpec | WatermarkSpec)

    def _takes_filter(self, spec: FilterSpec) -> bool:
        tree = read_expression(spec.expression)
        if tree is None:
            return False
        parts = [condition_of(part, self._scope, self.source.schema, decides=True) for part in conjuncts(tree)]
        accepted = [part for part in parts if part is not None and self.accepts(part)]
        self.conditions += accepted
        return len(accepted) == len(parts)

    def _takes_projection(self, spec: ProjectSpec) -> bool:
        scope = {name: self._seen(expression) for name, expression in spec.columns}
        # Also if the projection is not pushed down: filters after it can still be traced to columns of the source.
        self._scope = scope
        known = {name: what for name, what in scope.items() if what is not None and self._may_be_asked_for(what)}
        # An operator that stays in Python before this one needs the columns as they are before the projection.
        if self.left or len(known) < len(scope):
            return False
        self.columns, self.schema = known, spec.schema
        return True

    def _may_be_asked_for(self, what: Condition) -> bool:
        return isinstance(what, Field) or self.accepts(what)

    def _seen(self, expression: pc.Expression) -> Condition | None:
        tree = read_expression(expression)
        if isinstance(tree, ColumnRef):
            return self._scope[tree.name]
        return None if tree is None else condition_of(tree, self._scope, self.source.schema)


def _sole_consumers(graph: JobGraph, node: Node) -> Iterator[Node]:
    """Return the operators of the source's chain, in order."""
    while len(readers := graph.consumers(node.node_id)) == 1:
        node, index = readers[0]
        if len(node.inputs) != 1 or node.inputs[index].exchange != "forward":
            return
        if node.inputs[index].output != MAIN_OUTPUT:
            return
        yield node


def _needed(graph: JobGraph, left: Sequence[Node], tail: Node) -> frozenset[str]:
    """Return the names of the columns that are read from the input of the first operator in `left`."""
    reads = columns_read_by_edge(graph, in_time_order=True)
    needed = frozenset() if tail.event_time is None else frozenset([tail.event_time[0]])
    for node, index in graph.consumers(tail.node_id):
        needed |= reads[node.node_id][index]
    for node in reversed(left):
        given = [graph.edge_schema(edge) for edge in node.inputs]
        if node.spec is None or graph.side_outputs_read(node.node_id):
            needed = frozenset(given[0].names)
        else:
            (needed,) = columns_needed(node.spec, given, needed)
    return needed
