"""Streams: what the user chains to draw a pipeline. Every call checks itself at once and runs nothing.

Columns, types and expressions are checked without data; each error names the place in the user's code. Streams are
immutable: a call gives a new one, and a stream may be read by several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.contract import Sink
from tidegate.contract.errors import PipelineError
from tidegate.operators.specs import (
    BatchFunction,
    BroadcastJoinSpec,
    FilterSpec,
    JoinKind,
    MapInArrowSpec,
    ProjectSpec,
    TimeUnit,
    UnionSpec,
    WatermarkSpec,
)
from tidegate.operators.user_process import KeyedProcess
from tidegate.pipeline.columns import checked_renames, refuse_duplicates, require_column, same_columns
from tidegate.pipeline.draft import DraftNode, GraphDraft, optional_uid, place, require_uid
from tidegate.pipeline.eventtime import EventTime, common_event_time, time_unit
from tidegate.pipeline.expressions import passed_column, require_boolean, require_expression, result_fields
from tidegate.pipeline.grouping import GroupedStream
from tidegate.pipeline.joining import BroadcastStream, check_broadcast_join
from tidegate.pipeline.location import user_location
from tidegate.pipeline.windows import duration_us
from tidegate.plan.graph import Edge


class Stream:
    """Records of one schema, bounded or not. Made by `Pipeline.read` and by the calls below.

    Attributes:
        schema: of the records.
        bounded: it comes to its end by itself.
    """

    def __init__(
        self, draft: GraphDraft, node_id: int, schema: pa.Schema, event_time: EventTime, *, bounded: bool
    ) -> None:
        self._draft = draft
        self._node_id = node_id
        self._event_time = event_time
        self.schema = schema
        self.bounded = bounded

    def __repr__(self) -> str:
        columns = ", ".join(f"{f.name}: {f.type}" for f in self.schema)
        return f"Stream[{columns}] ({'bounded' if self.bounded else 'unbounded'})"

    # ------------------------------------------------------------ event time

    def with_watermark(
        self, column: str, delay: str | timedelta, *, unit: TimeUnit | None = None, uid: str | None = None
    ) -> Stream:
        """Say which column holds event time and how much out of order records come (S4.4).

        The watermark is the latest time seen, per split and then the minimum over splits, minus `delay`; records behind
        it are late. Call it as near to the source as can be: behind an exchange splits cannot be told apart any more.

        Args:
            column: a timestamp, or int64 with `unit`.
            delay: such as "10 min"; "0 s" when each split is in order.
            unit: of an int64 column: "s", "ms", "us" or "ns".
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: no such column, of another type, or not a delay.
        """
        location = user_location()
        uid = optional_uid(uid, "watermark", location)
        where = place("watermark", uid, location)
        field = require_column(self.schema, column, where)
        known = time_unit(field, unit, where)
        delay_us = duration_us(delay, "delay", where)
        node = DraftNode(
            uid,
            "watermark",
            self._forward(),
            self.schema,
            location,
            stateful=True,
            spec=WatermarkSpec(column, delay_us, known),
        )
        return self._then(node, EventTime(column, known, location))

    # ------------------------------------------------------------ without state

    def select(self, *columns: str | pc.Expression, **expressions: pc.Expression) -> Stream:
        """The named columns, then the named expressions, and no others.

        Raises:
            PipelineError: no such column, types that do not fit, or a name twice.
        """
        location = user_location()
        where = place("select", None, location)
        wanted: list[tuple[str, pc.Expression]] = []
        for column in columns:
            name = passed_column(column, self.schema) if isinstance(column, pc.Expression) else column
            if name is None:
                raise PipelineError(
                    f"the expression {column} has no name", where=where, remedy=f"Name it: select(name={column})"
                )
            wanted.append((require_column(self.schema, name, where).name, pc.field(name)))
        wanted.extend((name, require_expression(value, where)) for name, value in expressions.items())
        if not wanted:
            raise PipelineError("select of no columns", where=where, remedy="Name at least one column")
        return self._project(wanted, "select", location)

    def with_columns(self, **expressions: pc.Expression) -> Stream:
        """All columns, with these added, or replaced where the name is there already.

        Every expression sees the columns as they are before the call.

        Raises:
            PipelineError: no such column, or types that do not fit.
        """
        location = user_location()
        where = place("with_columns", None, location)
        checked = {name: require_expression(value, where) for name, value in expressions.items()}
        if not checked:
            raise PipelineError(
                "with_columns of no columns", where=where, remedy='Give at least one: name=pc.field("delay") * 2'
            )
        wanted = [(name, checked.pop(name, None)) for name in self.schema.names]
        plain = [(name, pc.field(name) if value is None else value) for name, value in wanted]
        return self._project([*plain, *checked.items()], "with_columns", location)

    def filter(self, predicate: pc.Expression) -> Stream:
        """The records for which `predicate` is true; null counts as false.

        Raises:
            PipelineError: no such column, or not a boolean.
        """
        location = user_location()
        where = place("filter", None, location)
        require_boolean(require_expression(predicate, where), self.schema, where)
        spec = FilterSpec(predicate, self.schema)
        node = DraftNode(None, "filter", self._forward(), self.schema, location, spec=spec)
        return self._then(node, self._event_time)

    def map_in_arrow(self, fn: BatchFunction, schema: pa.Schema, *, uid: str | None = None) -> Stream:
        """Apply a function of record batches: it takes an iterator and gives batches of `schema`.

        It is called afresh for each delivered batch, the iterator holds that one batch, and what it gives is exhausted
        before any barrier passes: nothing that it keeps is part of a snapshot, and how records are cut into batches
        may differ from run to run. The event-time column counts as unchanged where `schema` has it, of the same type.

        Args:
            fn: takes Iterator[pyarrow.RecordBatch], gives pyarrow.RecordBatch objects.
            schema: of what it gives; checked batch by batch.
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: not a function, or not a schema.
        """
        location = user_location()
        uid = optional_uid(uid, "map_in_arrow", location)
        where = place("map_in_arrow", uid, location)
        if not callable(fn):
            raise PipelineError(
                f"map_in_arrow needs a function, got {type(fn).__name__}",
                where=where,
                remedy="Give a function that takes an iterator of record batches and yields record batches",
            )
        if not isinstance(schema, pa.Schema):
            raise PipelineError(
                f"map_in_arrow needs the schema of its result, got {type(schema).__name__}",
                where=where,
                remedy='Give one: schema=pa.schema([("name", pa.string())])',
            )
        refuse_duplicates(schema.names, where, remedy="Give every column a name of its own")
        node = DraftNode(uid, "map_in_arrow", self._forward(), schema, location, spec=MapInArrowSpec(fn, schema))
        return self._then(node, self._event_time.kept_by(same_columns(schema, self.schema), where))

    def union(self, *others: Stream) -> Stream:
        """The records of all, in order of arrival; columns are matched by name and must have equal types.

        Raises:
            PipelineError: other columns or types, or no other stream.
        """
        location = user_location()
        where = place("union", None, location)
        if not others:
            raise PipelineError("union of one stream", where=where, remedy="Give at least one other")
        for other in others:
            self._require_sibling(other, where)
            _require_same_columns(self.schema, other.schema, where)
        inputs = (self, *others)
        schema = pa.schema(
            [
                field.remove_metadata().with_nullable(any(s.schema.field(field.name).nullable for s in inputs))
                for field in self.schema
            ]
        )
        edges = tuple(Edge(stream._aligned(schema, location), "forward") for stream in inputs)
        node = DraftNode(None, "union", edges, schema, location, spec=UnionSpec())
        event_time = common_event_time([s._event_time for s in inputs], where)
        return Stream(self._draft, self._draft.add(node), schema, event_time, bounded=all(s.bounded for s in inputs))

    # ------------------------------------------------------------ with state

    def broadcast(self) -> BroadcastStream:
        """Mark this bounded stream as the side of a join that every subtask holds whole."""
        return BroadcastStream(self._draft, self._node_id, self.schema, bounded=self.bounded)

    def join(
        self,
        other: BroadcastStream,
        on: str | Sequence[str],
        how: JoinKind = "inner",
        *,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Stream:
        """Join with a broadcast side by equal keys; a null key matches nothing.

        Records wait, in snapshotted state, until the broadcast side has come to its end. Several matches give several
        records. Event time is this stream's.

        Args:
            other: `stream.broadcast()`, bounded.
            on: key columns, of the same names and types on both sides.
            how: "inner", or "left": records without a match stay, with nulls.
            uid: required.
            renamed: column of either side in older snapshots -> its name now, so that they can be restored (S5.5).

        Returns:
            This stream's columns, then the other's without the keys.

        Raises:
            PipelineError: no such column, types that differ, a name on both sides, no uid, or an unbounded side.
        """
        location = user_location()
        uid = require_uid(uid, "join", location)
        where = place("join", uid, location)
        keys, schema = check_broadcast_join(self.schema, other, on, how, where)
        self._require_sibling(other, where)
        node = DraftNode(
            uid,
            "join",
            (*self._forward(), Edge(other.node_id, "broadcast")),
            schema,
            location,
            stateful=True,
            spec=BroadcastJoinSpec(
                keys, how, self.schema, other.schema, schema, checked_renames(renamed, schema.names, where)
            ),
        )
        return self._then(node, self._event_time)

    def group_by(self, *keys: str) -> GroupedStream:
        """Group by key columns; follow it by `.window(...)` or `.process(...)`. Null is a key of its own.

        Raises:
            PipelineError: no such column, or of a type that cannot be a key.
        """
        return GroupedStream(self, keys, user_location())

    def process(self, process: KeyedProcess, *, schema: pa.Schema, uid: str | None = None) -> Stream:
        """Not offered without keys: say `.group_by(...).process(...)`.

        Raises:
            PipelineError: always.
        """
        raise PipelineError(
            "the state of a process is kept by key, and the stream is not grouped",
            where=place("process", uid, user_location()),
            remedy='Say by which columns first: .group_by("carrier").process(...); without state: .map_in_arrow(...)',
        )

    # ------------------------------------------------------------ sinks

    def write(self, sink: Sink, *, uid: str | None = None) -> None:
        """Write the records to a sink: the end of a branch.

        Raises:
            PipelineError: not a sink, or no uid. What the sink itself refuses comes when the pipeline is built.
        """
        self._draft.add(self._sink_node(sink, uid, "write"))

    def write_through(self, sink: Sink, *, uid: str | None = None) -> Stream:
        """Write the records to a sink, and go on with them.

        They go on as they were written, not as they are committed: what follows sees a record before readers of the
        sink do. All sinks of a job commit with the same checkpoint, each for itself, wherever in the graph they stand
        (S7.3, S7.4).

        Returns:
            This stream: the same records in the same order, schema, event time and watermarks. Reading it no further is
            the same as `write`.

        Raises:
            PipelineError: as for `write`.
        """
        return self._then(self._sink_node(sink, uid, "write_through"), self._event_time)

    # ------------------------------------------------------------ for this package

    def _sink_node(self, sink: Sink, uid: str | None, call: str) -> DraftNode:
        location = user_location()
        uid = require_uid(uid, "sink", location)
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"{call} needs a sink, got {sink!r}",
                where=place("sink", uid, location),
                remedy=f"Write Parquet({sink!r})" if isinstance(sink, str) else "Give one, such as Parquet(path)",
            )
        return DraftNode(uid, "sink", self._forward(), self.schema, location, stateful=sink.two_phase, sink=sink)

    def _forward(self) -> tuple[Edge]:
        return (Edge(self._node_id, "forward"),)

    def _then(self, node: DraftNode, event_time: EventTime) -> Stream:
        """The stream that a node with this one as its (first) input gives."""
        return Stream(self._draft, self._draft.add(node), node.schema, event_time, bounded=self.bounded)

    def _project(self, columns: Sequence[tuple[str, pc.Expression]], call: str, location: str) -> Stream:
        where = place(call, None, location)
        refuse_duplicates((name for name, _ in columns), where, remedy="Give one of them another name")
        schema = pa.schema(result_fields(columns, self.schema, where))
        node = DraftNode(None, "project", self._forward(), schema, location, spec=ProjectSpec(tuple(columns), schema))
        sources: Mapping[str, str] = {
            name: source for name, value in columns if (source := passed_column(value, self.schema)) is not None
        }
        return self._then(node, self._event_time.kept_by(sources, where))

    def _aligned(self, schema: pa.Schema, location: str) -> int:
        """Id of a node that gives this stream's records in exactly `schema`, which has the same names and types."""
        if self.schema.equals(schema):
            return self._node_id
        spec = ProjectSpec(tuple((name, pc.field(name)) for name in schema.names), schema)
        return self._draft.add(DraftNode(None, "project", self._forward(), schema, location, spec=spec))

    def _require_sibling(self, other: object, where: str) -> None:
        if not isinstance(other, Stream | BroadcastStream):
            raise PipelineError(
                f"a stream is needed, got {type(other).__name__}",
                where=where,
                remedy="Give what p.read(...) and its calls return",
            )
        if other._draft is not self._draft:
            raise PipelineError(
                "the streams belong to two pipelines",
                where=where,
                remedy="Read both from one Pipeline()",
            )


def _require_same_columns(left: pa.Schema, right: pa.Schema, where: str) -> None:
    for mine, theirs, side in ((left, right, "first"), (right, left, "other")):
        lacking = [name for name in mine.names if name not in theirs.names]
        if lacking:
            raise PipelineError(
                f"column {lacking[0]!r} is in the {side} stream of the union alone",
                where=where,
                remedy="Give all the same columns first, with .select(...)",
            )
    for field in left:
        other = right.field(field.name)
        if other.type != field.type:
            raise PipelineError(
                f"column {field.name!r} is {field.type} in the first stream of the union and {other.type} in another",
                where=where,
                remedy=f"Cast one of them first: .with_columns({field.name}=pc.field({field.name!r}).cast(...))",
            )
