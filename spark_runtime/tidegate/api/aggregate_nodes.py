"""Nodes that aggregate calls add to the graph, for streams, groups and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.draft.column_checks import checked_renames, refuse_duplicates, require_column
from tidegate.api.draft.graph_draft import DraftNode, call_place
from tidegate.api.stream_base import StreamBase
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import (
    AggregateOutput,
    BoundAggregate,
    RunningAggSpec,
    UnnestRowsSpec,
)
from tidegate.operators.row_specs import ProjectSpec
from tidegate.plan.job_graph import Edge
from tidegate.state.keys.key_types import stored_field

S = TypeVar("S", bound=StreamBase)

CONSTANT_KEY = "__everything"
"""A key column with the same value in every row: it sends all rows to one subtask."""
RANK = "rank"


def with_constant_key(stream: S, location: str) -> S:
    """Add a key column with the same value in every row."""
    where = call_place("aggregate", None, location)
    refuse_duplicates([*stream.schema.names, CONSTANT_KEY], where, remedy=f"Rename the column {CONSTANT_KEY}")
    schema = stream.schema.append(pa.field(CONSTANT_KEY, pa.int8(), nullable=False))
    columns = [(name, pc.field(name)) for name in stream.schema.names]
    zero = pc.scalar(pa.scalar(0, pa.int8()))
    spec = ProjectSpec((*columns, (CONSTANT_KEY, zero)), schema)
    return stream._then(DraftNode(None, "project", stream._forward(), schema, location, spec=spec), stream._event_time)


def drop_columns(stream: S, columns: Sequence[str], location: str) -> S:
    """Remove columns from the stream."""
    kept = [name for name in stream.schema.names if name not in columns]
    schema = pa.schema([stream.schema.field(name) for name in kept])
    spec = ProjectSpec(tuple((name, pc.field(name)) for name in kept), schema)
    return stream._then(DraftNode(None, "project", stream._forward(), schema, location, spec=spec), stream._event_time)


def running_aggregate(
    stream: S,
    keys: tuple[str, ...],
    aggs: tuple[BoundAggregate, ...],
    fields: Sequence[pa.Field],
    input_schema: pa.Schema,
    output: AggregateOutput,
    uid: str,
    renamed: Mapping[str, str] | None,
    location: str,
    *,
    is_partial: bool = False,
) -> S:
    """Aggregate a stream by key, without windows."""
    where = call_place("aggregate", uid, location)
    if output not in get_args(AggregateOutput):
        raise PipelineError(
            f'output must be "update" or "final", but is {output!r}',
            where=where,
            remedy='Write output="update" (on each change) or output="final" (once, at the end of the input)',
        )
    if output == "final" and not stream.bounded:
        raise PipelineError(
            "the final aggregates of an unbounded stream would never be emitted",
            where=where,
            remedy='Write output="update", aggregate in windows, or read a bounded source',
        )
    refuse_duplicates([*keys, *(f.name for f in fields)], where, remedy="Rename the aggregate or the key column")
    schema = pa.schema([*(stored_field(input_schema.field(key)).remove_metadata() for key in keys), *fields])
    mapping = checked_renames(renamed, schema.names, where)
    spec = RunningAggSpec(keys, aggs, input_schema, schema, output, mapping, is_partial)
    edge = Edge(stream._node_id, "hash", keys)
    node = DraftNode(uid, "aggregate", (edge,), schema, location, stateful=True, spec=spec)
    return stream._then(node, stream._event_time.without_column(f"the {where} gives records of its own"))


def top_rows(
    schema: pa.Schema, keys: Sequence[str], n: int, by: str, ascending: bool, time_column: str | None, where: str
) -> tuple[BoundAggregate, pa.Field]:
    """Return the aggregate that keeps the top rows of a key, and the field of its result: a list of all other
    columns."""
    require_column(schema, by, where)
    if not isinstance(n, int) or n < 1:
        raise PipelineError(
            f"the number of rows of top_n must be an integer above 0, but is {n!r}",
            where=where,
            remedy='Pass a number: top_n(3, by="price")',
        )
    others = [name for name in schema.names if name not in keys]
    refuse_duplicates([*schema.names, RANK], where, remedy=f"Rename the column {RANK!r}")
    orders = [by] if time_column is None or time_column == by else [by, time_column]
    type_ = pa.list_(pa.struct([stored_field(schema.field(name)).remove_metadata() for name in others]))
    function: Any = "bottom_rows" if ascending else "top_rows"
    name = "__rows"
    columns = [*others, *orders]
    return BoundAggregate(name, function, columns[0], tuple(columns[1:]), n, len(orders)), pa.field(name, type_)


def unnest(stream: S, column: str, location: str) -> S:
    """Emit a record for each element of a list of structs, with its rank."""
    fields = [field for field in stream.schema if field.name != column]
    structs = list(stream.schema.field(column).type.value_type)
    schema = pa.schema([*fields, pa.field(RANK, pa.int32()), *structs])
    node = DraftNode(None, "rows", stream._forward(), schema, location, spec=UnnestRowsSpec(column, RANK, schema))
    return stream._then(node, stream._event_time)
