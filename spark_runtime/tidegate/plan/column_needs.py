"""Which columns each operator reads of its inputs, by the columns of its output that are read. Pure.

Only specs of this package are known, by their exact class: a subclass may have an operator of its own. Every other
operator, and every function of a user, reads all columns. State is never narrower than the pipeline declares it: an
operator that stores whole rows reads whole rows (S5.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregates.aggregate_specs import BoundAggregate, PartialAggSpec, RunningAggSpec
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.joins.join_specs import LEFT, RIGHT, BroadcastJoinSpec, StreamJoinSpec
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.row_specs import FilterSpec, ProjectSpec, UnionSpec
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.operators.windows.window_specs import PartialWindowSpec, WindowAggSpec
from tidegate.plan.expression_trees import ColumnRef, columns_read, read_expression

Names: TypeAlias = frozenset[str]
Reads: TypeAlias = Callable[[Any, Sequence[pa.Schema], Names], Sequence[Iterable[str]]]
"""Returns the columns that a spec reads of each input. Its arguments are the spec, the schemas of the inputs, and the
columns of the main output that are read."""


def columns_needed(spec: OperatorSpec, inputs: Sequence[pa.Schema], wanted: Names) -> tuple[Names, ...]:
    """Return the columns of each input that the operator reads, or passes on to readers.

    Nothing may read a side output of the operator.

    Args:
        inputs: schemas of the inputs.
        wanted: columns of the main output that are read.
    """
    reads = _READS.get(type(spec), _all_columns)
    return tuple(map(frozenset, reads(spec, inputs, wanted)))


def kept_projections(spec: ProjectSpec, wanted: Names) -> tuple[tuple[str, pc.Expression], ...]:
    """Return the columns of a projection that must be computed: the read ones, and all that are not plain
    columns, because their computation may fail, and must fail whoever reads it."""
    return tuple(
        (name, expression)
        for name, expression in spec.columns
        if name in wanted or not isinstance(read_expression(expression), ColumnRef)
    )


def kept_pair_columns(spec: BroadcastJoinSpec, wanted: Names) -> Names:
    """Return the columns of a pair that must be built: the columns that are read, and the columns of the
    further condition."""
    return wanted if spec.where is None else wanted | _read_by(spec.where, spec.pairs)


def _all_columns(_spec: OperatorSpec, inputs: Sequence[pa.Schema], _wanted: Names) -> Sequence[Iterable[str]]:
    return [schema.names for schema in inputs]


def _filter(spec: FilterSpec, inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Names]:
    return [wanted | _read_by(spec.expression, inputs[0])]


def _projection(spec: ProjectSpec, inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Names]:
    reads = (_read_by(expression, inputs[0]) for _, expression in kept_projections(spec, wanted))
    return [frozenset().union(*reads)]


def _read_by(expression: pc.Expression, given: pa.Schema) -> Names:
    tree = read_expression(expression)
    if isinstance(tree, ColumnRef):
        return frozenset([tree.name])
    read = columns_read(expression, given)
    return frozenset(given.names) if read is None else read


def _watermark(spec: WatermarkSpec, _inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Names]:
    return [wanted | {spec.column}]


def _union(_spec: UnionSpec, inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Names]:
    return [wanted] * len(inputs)


def _deduplication(spec: DeduplicateSpec, _inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Names]:
    return [wanted.union(spec.keys, _optional(spec.time_column))]


def _windows(
    spec: WindowAggSpec | SessionAggSpec, inputs: Sequence[pa.Schema], wanted: Names
) -> Sequence[Iterable[str]]:
    if isinstance(spec, WindowAggSpec) and spec.is_partial:
        return _all_columns(spec, inputs, wanted)
    return [{*spec.keys, *_optional(spec.time_column), *_aggregated(spec.aggregates)}]


def _partial_windows(spec: PartialWindowSpec, inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Iterable[str]]:
    return _windows(spec.window, inputs, wanted)


def _aggregates(
    spec: PartialAggSpec | RunningAggSpec, inputs: Sequence[pa.Schema], wanted: Names
) -> Sequence[Iterable[str]]:
    if isinstance(spec, RunningAggSpec) and spec.is_partial:
        return _all_columns(spec, inputs, wanted)
    return [{*spec.keys, *_aggregated(spec.aggregates)}]


def _stream_join(spec: StreamJoinSpec, inputs: Sequence[pa.Schema], _wanted: Names) -> Sequence[Iterable[str]]:
    """Both sides are stored whole, except where the right side only decides which left rows match."""
    if spec.emits_pairs or spec.where is not None:
        return [schema.names for schema in inputs]
    right = spec.inputs[RIGHT]
    return [inputs[LEFT].names, {*right.keys, *_optional(right.time_column)}]


def _broadcast_join(spec: BroadcastJoinSpec, inputs: Sequence[pa.Schema], wanted: Names) -> Sequence[Iterable[str]]:
    """The build side is stored whole."""
    probe, build = inputs
    return [kept_pair_columns(spec, wanted).intersection(probe.names).union(spec.on), build.names]


def _aggregated(aggregates: Sequence[BoundAggregate]) -> Iterable[str]:
    return (column for aggregate in aggregates for column in aggregate.columns)


def _optional(column: str | None) -> tuple[str, ...]:
    return () if column is None else (column,)


_READS: Mapping[type[OperatorSpec], Reads] = {
    BroadcastJoinSpec: _broadcast_join,
    DeduplicateSpec: _deduplication,
    FilterSpec: _filter,
    PartialAggSpec: _aggregates,
    PartialWindowSpec: _partial_windows,
    ProjectSpec: _projection,
    RunningAggSpec: _aggregates,
    SessionAggSpec: _windows,
    StreamJoinSpec: _stream_join,
    UnionSpec: _union,
    WatermarkSpec: _watermark,
    WindowAggSpec: _windows,
}
