"""Adds partial aggregates before the exchanges of a batch job (S8.1), and finds the exchanges of a streaming job before
which rows can be aggregated batch by batch. Pure.

Without them, every row is sent to the subtask of its key and sorted there. With them, one row is sent for each key and
pane that a subtask has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pt

from tidegate.operators.aggregates.aggregate_specs import (
    BoundAggregate,
    PartialAggSpec,
    RunningAggSpec,
    aggregate_fields,
)
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.operators.windows.window_specs import PartialWindowSpec, WindowAggSpec
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.state.aggregates.aggregate_registry import find_aggregate

PANE_START = "window_start_us"
"""Column of the partial rows of windows."""
SUFFIX = ".partial"
"""Ends the uid of an added node."""


def with_partial_aggregates(graph: JobGraph) -> JobGraph:
    """Return the graph with a partial aggregate before each aggregate over a hash exchange, where the result is the
    same: the aggregates do not depend on the order of rows, and no row can be late."""
    nodes: list[Node] = []
    moved: dict[int, int] = {}  # id in `graph` -> id in the result
    for node in graph.nodes:
        inputs = tuple(replace(edge, upstream=moved[edge.upstream]) for edge in node.inputs)
        ready = replace(node, inputs=inputs)
        if not graph.side_outputs_read(node.node_id) and (pair := _divided(ready)) is not None:
            nodes.append(replace(pair[0], node_id=len(nodes)))
            edge = replace(inputs[0], upstream=len(nodes) - 1, output=MAIN_OUTPUT, keys=pair[1])
            ready = replace(ready, inputs=(edge,), spec=pair[2])
        moved[node.node_id] = len(nodes)
        nodes.append(replace(ready, node_id=len(nodes)))
    return JobGraph(tuple(nodes))


def merges_partial_rows(spec: OperatorSpec | None) -> bool:
    """Return whether an operator of the resulting graph merges the rows of a partial aggregate."""
    return isinstance(spec, WindowAggSpec | RunningAggSpec) and spec.is_partial


def pane_column(spec: OperatorSpec | None) -> str | None:
    """Return the column of partial rows with the start of their pane, if each pane is a window; None: otherwise."""
    return PANE_START if isinstance(spec, WindowAggSpec) and spec.step_us >= spec.size_us else None


def pre_aggregated_windows(graph: JobGraph, node: Node) -> WindowAggSpec | None:
    """Return the spec of windows whose input may be aggregated before it is sent to the subtasks of its keys, in
    streaming mode. None: every row is sent.

    The result must be the same (see `with_partial_aggregates`), and a partial row must be small. All rows of a pane are
    late, or none, so partial rows need no time of their own. Bounds of calendar windows may differ between a sender and
    restored windows, because the rules of time zones change.
    """
    spec = node.spec
    if not isinstance(spec, WindowAggSpec) or spec.is_partial or graph.side_outputs_read(node.node_id):
        return None
    if spec.time_column is None or spec.lateness_us or spec.calendar is not None or spec.step_us > spec.size_us:
        return None
    state = list(spec.state_schema)[2 + len(spec.keys) :]
    is_small = all(pt.is_primitive(field.type) for field in state)
    by_key = len(node.inputs) == 1 and node.inputs[0].exchange == "hash" and node.inputs[0].keys == spec.keys
    return spec if by_key and is_small and _any_order(spec.aggregates) else None


def _divided(node: Node) -> tuple[Node, tuple[str, ...], OperatorSpec] | None:
    """Return the partial aggregate, its key columns, and the spec that merges its rows; None: it stays as it is."""
    if len(node.inputs) != 1 or node.inputs[0].exchange != "hash" or not node.inputs[0].keys:
        return None
    spec = node.spec
    if isinstance(spec, WindowAggSpec):
        # Windows in processing time or with lateness depend on
        # when rows arrive, which a partial result does not record.
        if spec.time_column is None or spec.lateness_us or spec.is_partial or not _any_order(spec.aggregates):
            return None
        partial = PartialWindowSpec(spec, node.uid)
        keys = tuple(f"key:{key}" for key in spec.keys)
        return _node(node, partial, partial.schema), keys, replace(spec, is_partial=True)
    if isinstance(spec, RunningAggSpec):
        if spec.output != "final" or spec.is_partial or not _any_order(spec.aggregates):
            return None
        fields = aggregate_fields(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        keys_first = [field.with_name(key) for key, field in zip(spec.keys, fields, strict=False)]
        schema = pa.schema([*keys_first, *fields[len(spec.keys) :]])
        grouped = PartialAggSpec(
            spec.keys, spec.aggregates, spec.input_schema, schema, spec.schema, whole_input=True, uid=node.uid
        )
        return _node(node, grouped, schema), spec.keys, replace(spec, is_partial=True)
    return None


def _node(node: Node, spec: OperatorSpec, schema: pa.Schema) -> Node:
    """Return the node before `node` that runs `spec`."""
    time: tuple[str, TimeUnit] | None = (PANE_START, "us") if isinstance(spec, PartialWindowSpec) else None
    edge = replace(node.inputs[0], exchange="forward", keys=())
    return Node(0, node.uid + SUFFIX, "partial aggregate", (edge,), schema, node.location, spec=spec, event_time=time)


def _any_order(aggregates: Sequence[BoundAggregate]) -> bool:
    return all(find_aggregate(aggregate.function).any_order for aggregate in aggregates)
