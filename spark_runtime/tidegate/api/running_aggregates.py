"""Aggregates without windows, per group or over a whole stream, and windows over a whole stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.aggregates import Aggregate, bound_aggregates
from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import checked_renames, refuse_duplicates, require_column
from tidegate.api.draft.graph_draft import DraftNode, place, require_uid
from tidegate.api.stream_base import StreamBase
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import (
    Agg,
    AggregateOutput,
    PartialAggSpec,
    RunningAggSpec,
    UnnestRowsSpec,
)
from tidegate.operators.row_specs import ProjectSpec
from tidegate.plan.job_graph import Edge
from tidegate.state.keys.key_types import stored_field

if TYPE_CHECKING:
    from tidegate.api.grouped_stream import WindowedStream
    from tidegate.api.windows import Window

EVERYTHING = "__everything"
"""A key column that is equal everywhere: what has it is in one subtask."""
RANK = "rank"


class AggregateCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def agg(
        self,
        *,
        output: AggregateOutput = "update",
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
        **aggregates: Aggregate,
    ) -> Self:
        """Aggregates of the whole stream. Each batch is aggregated where it is; one subtask puts these together. A
        stream without records has no result.

        Args:
            output: see `GroupedStream.agg`.
            uid: required.
            renamed: output column in older snapshots -> its name now (S5.5).
            aggregates: output column = `count()`, `sum("delay")` and so on.

        Raises:
            PipelineError: no uid, no such column, a type that does not fit, or a name twice.
        """
        location = user_location()
        uid = require_uid(uid, "aggregate", location)
        where = place("aggregate", uid, location)
        keyed = with_everything(self, location)
        aggs, fields = bound_aggregates(aggregates, keyed.schema, keyed._event_time.column, where)
        results = pa.schema(fields)
        key = keyed.schema.field(EVERYTHING)
        states = [f for agg in aggs for f in agg.bound(keyed.schema, results.field(agg.name).type).state_schema()]
        partial = pa.schema([key, *states])
        spec = PartialAggSpec((EVERYTHING,), aggs, keyed.schema, partial, results)
        gone = keyed._event_time.gone(f"the {where} gives records of its own")
        node = DraftNode(f"{uid}.batches", "partial-aggregate", keyed._forward(), partial, location, spec=spec)
        batches = keyed._then(node, gone)
        merged = running(
            batches, (EVERYTHING,), aggs, fields, keyed.schema, output, uid, renamed, location, is_partial=True
        )
        return without(merged, (EVERYTHING,), location)

    def window_all(self, window: Window, *, allowed_lateness: str | timedelta | None = None) -> WindowedStream:
        """Cut the whole stream into windows; follow it by `.agg(...)`. All records go to one subtask.

        Raises:
            PipelineError: as `GroupedStream.window`.
        """
        from tidegate.api.grouped_stream import GroupedStream

        keyed: Any = with_everything(self, user_location())
        return GroupedStream(keyed, (EVERYTHING,), user_location()).window(window, allowed_lateness=allowed_lateness)


def with_everything(stream: Any, location: str) -> Any:
    """The stream with a key column that is equal everywhere."""
    where = place("aggregate", None, location)
    refuse_duplicates([*stream.schema.names, EVERYTHING], where, remedy=f"Rename the column {EVERYTHING}")
    schema = stream.schema.append(pa.field(EVERYTHING, pa.int8(), nullable=False))
    columns = [(name, pc.field(name)) for name in stream.schema.names]
    zero = pc.scalar(pa.scalar(0, pa.int8()))
    spec = ProjectSpec((*columns, (EVERYTHING, zero)), schema)
    return stream._then(DraftNode(None, "project", stream._forward(), schema, location, spec=spec), stream._event_time)


def without(stream: Any, columns: Sequence[str], location: str) -> Any:
    """The stream without some columns."""
    kept = [name for name in stream.schema.names if name not in columns]
    schema = pa.schema([stream.schema.field(name) for name in kept])
    spec = ProjectSpec(tuple((name, pc.field(name)) for name in kept), schema)
    return stream._then(DraftNode(None, "project", stream._forward(), schema, location, spec=spec), stream._event_time)


def running(
    stream: Any,
    keys: tuple[str, ...],
    aggs: tuple[Agg, ...],
    fields: Sequence[pa.Field],
    input_schema: pa.Schema,
    output: AggregateOutput,
    uid: str,
    renamed: Mapping[str, str] | None,
    location: str,
    *,
    is_partial: bool = False,
) -> Any:
    """Aggregates without windows of a stream, by key."""
    where = place("aggregate", uid, location)
    if output not in get_args(AggregateOutput):
        raise PipelineError(
            f"{output!r} is not an output of aggregates",
            where=where,
            remedy='Write output="update" (whenever they change) or output="final" (once, at the end of the input)',
        )
    if output == "final" and not stream.bounded:
        raise PipelineError(
            "the final aggregates of an unbounded stream would never be given",
            where=where,
            remedy='Write output="update", cut it into windows, or read a bounded source',
        )
    refuse_duplicates([*keys, *(f.name for f in fields)], where, remedy="Rename the aggregate or the key column")
    schema = pa.schema([*(stored_field(input_schema.field(key)).remove_metadata() for key in keys), *fields])
    mapping = checked_renames(renamed, schema.names, where)
    spec = RunningAggSpec(keys, aggs, input_schema, schema, output, mapping, is_partial)
    edge = Edge(stream._node_id, "hash", keys)
    node = DraftNode(uid, "aggregate", (edge,), schema, location, stateful=True, spec=spec)
    return stream._then(node, stream._event_time.gone(f"the {where} gives records of its own"))


def top_rows(
    schema: pa.Schema, keys: Sequence[str], n: int, by: str, ascending: bool, time_column: str | None, where: str
) -> tuple[Agg, pa.Field]:
    """The aggregate that keeps the best rows of a key, and the field of its result: a list of all other columns."""
    require_column(schema, by, where)
    if not isinstance(n, int) or n < 1:
        raise PipelineError(f"top_n of {n!r} rows", where=where, remedy='Give a number: top_n(3, by="price")')
    others = [name for name in schema.names if name not in keys]
    refuse_duplicates([*schema.names, RANK], where, remedy=f"Rename the column {RANK!r}")
    orders = [by] if time_column is None or time_column == by else [by, time_column]
    type_ = pa.list_(pa.struct([stored_field(schema.field(name)).remove_metadata() for name in others]))
    function: Any = "bottom_rows" if ascending else "top_rows"
    name = "__rows"
    columns = [*others, *orders]
    return Agg(name, function, columns[0], tuple(columns[1:]), n, len(orders)), pa.field(name, type_)


def unnested(stream: Any, column: str, location: str) -> Any:
    """A record for each element of a list of structs, with its rank."""
    fields = [field for field in stream.schema if field.name != column]
    structs = list(stream.schema.field(column).type.value_type)
    schema = pa.schema([*fields, pa.field(RANK, pa.int32()), *structs])
    node = DraftNode(None, "rows", stream._forward(), schema, location, spec=UnnestRowsSpec(column, RANK, schema))
    return stream._then(node, stream._event_time)
