"""What a batch job asks of Spark in place of all rows of a DataFrame: the columns that somebody reads, the rows that
filters let through, and which operators Spark does in full, so that nobody else has to (S8.1). Pure.

Operators are looked at from the source on for as long as each is the only one that reads the one before it. A filter
goes to Spark condition by condition, past projections and watermarks, which look at one row at a time. A column that
nobody reads comes as nulls, so that the operators behind it find the schema that they were built for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.row_specs import FilterSpec, ProjectSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.plan.expression_trees import ColumnRef, columns_read, conjuncts, read_expression
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.plan.pushdown_conditions import Condition, Field, Scope, condition_of, text_of

Accepts = Callable[[Condition], bool]
"""Whether Spark may be asked for it, as the DataFrame's types are."""


@dataclass(frozen=True)
class SparkRows:
    """How rows of a DataFrame come to a task.

    Attributes:
        schema: that they are to have.
        present: names of those of its columns that come, in order; the others are nulls.
        runs: ids of the operators that Spark has done.
    """

    schema: pa.Schema
    present: tuple[str, ...]
    runs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class SparkRead:
    """What Spark is asked for.

    Attributes:
        columns: (name, what it is of the source's columns).
        conditions: all of which are true of the rows.
        rows: how they come then.
    """

    columns: tuple[tuple[str, Condition], ...]
    conditions: tuple[Condition, ...]
    rows: SparkRows

    def describe(self, graph: JobGraph) -> str:
        """One line."""
        shown = (name if what == Field(name) else f"{name}={text_of(what)}" for name, what in self.columns)
        where = f" where {' and '.join(map(text_of, self.conditions))}" if self.conditions else ""
        done = ", ".join(graph.nodes[node_id].uid for node_id in sorted(self.rows.runs))
        return f"{', '.join(shown)}{where}{f', which is all of {done}' if done else ''}"


def full_read(source: Node) -> SparkRead:
    """All rows and columns."""
    names = source.schema.names
    return SparkRead(tuple((name, Field(name)) for name in names), (), SparkRows(source.schema, tuple(names)))


def plan_spark_read(graph: JobGraph, source: Node, accepts: Accepts = lambda condition: True) -> SparkRead:
    """What to ask for in place of the rows of `source`, in a graph with its sinks at the end."""
    found = _PushdownPrefix(source, accepts)
    for node in _sole_consumers(graph, source):
        if not found.takes(node):
            break
    needed = _needed(graph, found.left, found.tail)
    wanted = [name for name in found.schema.names if name in needed] or found.schema.names[:1]
    rows = SparkRows(found.schema, tuple(wanted), frozenset(found.runs))
    return SparkRead(tuple((name, found.columns[name]) for name in wanted), tuple(found.conditions), rows)


@dataclass
class _PushdownPrefix:
    """Operators behind a source, as they are looked at one after the other.

    Attributes:
        columns: what rows that Spark gives have, in terms of the source's columns.
        schema: of these rows.
        left: operators that are left, as far as they were looked at.
        tail: the last that was looked at.
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
        """Look at the next operator; False: nothing can be told of what is behind it."""
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
        self._scope = scope
        known = {name: what for name, what in scope.items() if what is not None and self._may_be_asked_for(what)}
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
    """The operators of the source's chain, in order."""
    while len(readers := graph.consumers(node.node_id)) == 1:
        node, index = readers[0]
        if len(node.inputs) != 1 or node.inputs[index].exchange != "forward":
            return
        if node.inputs[index].output != MAIN_OUTPUT:
            return
        yield node


def _needed(graph: JobGraph, left: Sequence[Node], tail: Node) -> frozenset[str]:
    """Names of the columns that somebody reads of what comes to the first of `left`."""
    needed = _read_after(graph, tail)
    for node in reversed(left):
        given = graph.nodes[node.inputs[0].upstream].schema
        if isinstance(node.spec, FilterSpec):
            needed |= _read_by(node.spec.expression, given)
        elif isinstance(node.spec, WatermarkSpec):
            needed |= {node.spec.column}
        elif isinstance(node.spec, ProjectSpec):
            needed = _read_by_projection(node.spec, given, needed)
        else:
            needed = frozenset(given.names)
    return needed


def _read_by_projection(spec: ProjectSpec, given: pa.Schema, needed: Iterable[str]) -> frozenset[str]:
    """Plain columns that are needed, and all that is computed of: it may fail, so it is not computed of nulls."""
    read: frozenset[str] = frozenset()
    for name, expression in spec.columns:
        tree = read_expression(expression)
        if not isinstance(tree, ColumnRef):
            read |= _read_by(expression, given)
        elif name in needed:
            read |= {tree.name}
    return read


def _read_by(expression: pc.Expression, given: pa.Schema) -> frozenset[str]:
    read = columns_read(expression, given)
    return frozenset(given.names) if read is None else read


def _read_after(graph: JobGraph, tail: Node) -> frozenset[str]:
    """Columns that those read who come next; windows say which, all others read all."""
    needed = frozenset() if tail.event_time is None else frozenset([tail.event_time[0]])
    for node, index in graph.consumers(tail.node_id):
        spec = node.spec
        says = isinstance(spec, WindowAggSpec | SessionAggSpec) and not graph.side_outputs_read(node.node_id)
        if not says or node.inputs[index].exchange != "hash":
            return frozenset(tail.schema.names)
        assert isinstance(spec, WindowAggSpec | SessionAggSpec), "it says what it reads"
        needed |= {*spec.keys, *(column for aggregate in spec.aggregates for column in aggregate.columns)}
        needed |= set() if spec.time_column is None else {spec.time_column}
    return needed
